// NcclGroup: one NCCL communicator of all ranks of a Communicator, through which they broadcast and
// reduce device memory on native streams. It is made collectively: the ranks use the
// Communicator (MPI, loopback) to agree on the library, to pass the unique id, and to learn in the
// same moment whether all have the group or none.
//
// NCCL's communicator is non-blocking. A call returns at once, and may still be on its way to the
// stream afterwards; settle() says when it has got there, and only then may the next call be made
// or a mark be set behind it. Nothing here waits for other ranks or for the device, but create(),
// abort() and the destructor, all with a limit.
//
// Errors. A call that NCCL refuses and an error that comes later (a peer is lost, a link is down)
// are the same to the caller: a Status with NCCL's own text, which stays until the end. After one,
// or after a deadline of the caller's, work on the stream may never complete by itself: abort()
// ends it. Aborting is local and NCCL tells nobody, so all ranks have to do it, in the same step:
// they agree on that over the host path (the control plane in the step's ballot, where
// `masks_failed_max` is 1 as soon as one rank has failed). All ranks start the same operations in
// the same order with the same counts and types.
//
// Thread rule: one thread at a time; no other thread may be inside NCCL with this group while it is
// aborted.
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
  std::chrono::nanoseconds start_limit = std::chrono::seconds(60);  // for NCCL's own start
  std::chrono::nanoseconds end_limit = std::chrono::seconds(5);     // for its end, or its abort
  int max_ctas = 0;  // most thread blocks of a collective; 0 = NCCL's choice
  WaitPolicy wait;   // for the other ranks, of create(); its timeout is that of a late rank
};

class NcclGroup {
 public:
  // Makes the group. Collective over `ranks`, which need not outlive it; waits. A library that this
  // rank could not open is passed as it is: either all ranks return a group, or none does and every
  // rank gets the reason of the lowest rank that had one. `before_start`, if there is any, is
  // called before NCCL starts, for the choice of the device. unavailable when a rank's start fails
  // or is not over in time, failed_precondition when the ranks found different releases.
  static Result<std::unique_ptr<NcclGroup>> create(
      Communicator& ranks, const Result<NcclLibrary>& library, const NcclGroupOptions& options,
      const std::function<Status()>& before_start = {});
  // Ends the group within its limit; aborts it where that is not enough. Work that was given to a
  // stream should be over by then.
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  RankId rank() const { return rank_; }

  // The operations. Addresses are of the device; counts are of elements. They may work in place, as
  // NCCL defines it. REQUIRES: settle() has said done.
  Status broadcast(const void* send, void* receive, std::size_t count, nccl::Type type, RankId root,
                   void* stream);
  Status all_reduce(const void* send, void* receive, std::size_t count, nccl::Type type,
                    nccl::Operator operation, void* stream);
  // Returns done once the last call has been handed to its stream, so that a mark set now lies
  // behind it. Polls NCCL's asynchronous state. Never waits. An error stays.
  Result<Progress> settle();

  // Ok, or the first error.
  const Status& status() const { return status_; }
  // Ends everything that this rank has given to streams through the group, done or not; buffers
  // hold anything. `why` becomes status() unless there was an error before. Later calls do nothing.
  // Where NCCL takes longer than the limit it goes on in a thread of its own, where that cannot be
  // started nothing is ended until the destructor tries again; status() says so.
  void abort(const Status& why);
  // Whether an abort did not end. Then the streams may stay busy for ever, so that nobody may wait
  // for them, and may still write to the buffers that they were given.
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
  bool is_busy_ = false;  // behind an abort
  Status status_;
};

}  // namespace cox::transport
