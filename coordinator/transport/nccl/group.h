// NcclGroup: one NCCL communicator of all ranks of a Communicator. Ranks use it to broadcast and
// reduce device memory on native streams. Created collectively: over the Communicator (MPI,
// loopback) the ranks compare their libraries, share the unique id, and agree whether all have the
// group. Failures: docs/gpu.md, "Masks and gradients over NCCL". Thread rule: one thread at a time.
// No other thread may be inside NCCL with the group during abort().
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/nccl/library.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {

struct NcclGroupOptions {
  std::chrono::nanoseconds start_limit = std::chrono::seconds(60);  // limit of NCCL's own start
  std::chrono::nanoseconds end_limit = std::chrono::seconds(5);     // limit of end, and of abort
  int max_ctas = 0;  // most thread blocks of a collective; 0 = NCCL's choice
  WaitPolicy wait;   // how create() waits for other ranks, and when a rank is late
};

// NCCL's communicator is non-blocking. A call returns at once and may reach the stream later. Wait
// until settle() returns done before the next call, or before a mark behind the call. Nothing here
// waits for other ranks or for the device, except create(), abort() and the destructor, all with a
// limit. All ranks start the same operations in the same order with the same counts and types.
//
// Errors. A refused call and a later error (a lost peer, a link that is down) look the same: a
// Status with NCCL's own text, which stays until the end. After an error, or after a deadline of
// the caller, work on the stream may never complete by itself; abort() ends the work. An abort is
// local and NCCL reports it to no other rank, so all ranks must abort in the same step. Ranks agree
// on the step over the host path: StepBallot::mask_lane_min is MaskLane::failed once a rank has
// failed.
class NcclGroup {
 public:
  // Creates the group. Collective over `ranks`, which need not outlive the group; blocking. Pass a
  // library that failed to open as its error. Either all ranks return a group, or every rank gets
  // the reason of the lowest rank with one. `before_start`, if set, runs before NCCL starts, to
  // choose the device. Returns unavailable when a rank's start fails or is too late, and
  // failed_precondition when the ranks found different releases.
  static Result<std::unique_ptr<NcclGroup>> create(
      Communicator& ranks, const Result<NcclLibrary>& library, const NcclGroupOptions& options,
      const std::function<Status()>& before_start = {});
  // Ends the group within its limit, and aborts it after the limit. Work on streams should be over
  // by then.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  RankId rank() const { return rank_; }

  // The operations. Addresses lie on the device; counts are in elements. Operations may work in
  // place, as NCCL defines. REQUIRES: settle() has returned done.
  Status broadcast(const void* send, void* receive, std::size_t count, nccl::Type type, RankId root,
                   void* stream);
  Status all_reduce(const void* send, void* receive, std::size_t count, nccl::Type type,
                    nccl::Operator operation, void* stream);
  // Polls NCCL's asynchronous state. Returns done once the last call has been handed to its stream,
  // so that a new mark lies behind the call. Never waits. An error stays.
  Result<Progress> settle();

  // Returns ok, or the first error.
  const Status& status() const { return status_; }
  // Ends all work that this rank has put on streams through the group. Buffers of unfinished work
  // hold undefined bytes. `why` becomes status() unless an error came first. Later calls are
  // no-ops. If NCCL's abort takes longer than the limit, it continues in a thread of its own. If
  // the thread cannot be started, the destructor tries again. status() reports both cases.
  void abort(const Status& why);
  // Returns whether an abort did not end. The streams may then stay busy for ever, so no caller may
  // wait for them. NCCL may also still write to its buffers.
  bool may_still_write() const { return is_busy_; }

 private:
  NcclGroup(const NcclLibrary& library, RankId rank, std::int32_t size,
            std::chrono::nanoseconds end_limit);
  void begin_start(const nccl::UniqueId& id, int max_ctas);
  Status finish_start(Communicator& ranks, const NcclGroupOptions& options);
  Status called(const char* what, nccl::Outcome outcome);
  Status fail(const char* what, nccl::Outcome outcome);
  Status check_ready() const;
  Status end();

  const nccl::Functions& nccl_;
  const RankId rank_;
  const std::int32_t size_;
  const std::chrono::nanoseconds end_limit_;
  nccl::Communicator* handle_ = nullptr;  // null: never started, or aborted, or ended
  bool is_settled_ = true;
  bool is_busy_ = false;  // an abort is still running
  Status status_;
};

}  // namespace cox::transport
