// MaskBroadcast: sends masks to CUDA ranks by ncclBroadcast, on a stream of their own. Replaces the
// boards and the leaders' broadcast for frames that travel down; reports travel up as always. All
// ranks of the job have one, or none has. poll() never waits: neither host nor training stream is
// ever behind the lane. Thread rule: the rank's training thread.
//
//   rank 0's outbox -- pinned memory --> device -- ncclBroadcast --> device --> pinned memory
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "coordinator/core/ballot.h"
#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/nccl/device_lane.h"
#include "coordinator/transport/nccl/group.h"
#include "coordinator/transport/nccl/library.h"
#include "coordinator/transport/wait.h"
#include "coordinator/wire/frame.h"

namespace cox::runtime {

// Makes this rank's lane for masks, on its device. Called once, at the start of a job.
using MakeLane = std::function<Result<std::unique_ptr<transport::DeviceLane>>()>;

// A parcel of up to eight frames has one size, so no size travels first. The ranks start a
// broadcast in the step whose merged ballot shows two facts: a frame waits, and every rank's last
// broadcast is over (StepBallot::mask_lane_min). All ranks get the same ballot, so all start the
// same broadcasts in the same order.
//
// A rank votes MaskLane::failed after an error of NCCL or of the device, and after a broadcast that
// every rank has started and that is not over within the limit. The next merged ballot tells all
// ranks, and all leave NCCL in the same step. No plan depends on NCCL: a rank holds the plans that
// arrived whole, and the ranks agree on numbers as before.
class MaskBroadcast {
 public:
  struct Setup {
    MakeLane make_lane;
    std::string library = transport::NcclLibrary::kName;
    std::chrono::nanoseconds limit = std::chrono::seconds(60);  // of NCCL's start, of a broadcast
    transport::WaitPolicy wait;                                 // for other ranks at the start
  };
  static constexpr std::size_t kFramesAtOnce = 8;
  using Frames = std::span<const std::span<const std::byte>>;

  // Makes the broadcast, on every rank or none. All ranks get the same error. Collective; blocks.
  static Result<std::unique_ptr<MaskBroadcast>> create(transport::Communicator& world,
                                                       const Setup& setup);

  // Returns whether NCCL has not yet queued the started broadcast on its stream.
  bool is_setting_out() const { return status_.ok() && stage_ == Stage::launching; }

  // Returns the rank's vote.
  MaskLane lane() const;

  // Starts a broadcast; `frames` (at most kFramesAtOnce) count on rank 0 only. REQUIRES: the merged
  // ballot was MaskLane::free.
  void start(Frames frames);
  // Records that a ballot was merged after the last start(). Every rank has started the broadcast
  // by now, so the time limit begins.
  void round_agreed();

  enum class Arrival : std::uint8_t { nothing, frames, damaged };
  // Advances the broadcast. Never waits.
  Arrival poll();
  // Returns the frames of the last poll(). Valid until the next start().
  Frames frames() const { return std::span(frames_).first(count_); }

  // Ends NCCL on the rank, after the ranks agreed to leave NCCL.
  void give_up(const Status& why);
  // Returns ok, or the first error.
  const Status& status() const { return status_; }

 private:
  struct Parcel;
  enum class Stage : std::uint8_t { idle, launching, copying };
  MaskBroadcast(std::unique_ptr<transport::DeviceLane> lane,
                std::array<transport::StagingBuffer, 2> buffers,
                std::unique_ptr<transport::NcclGroup> group, std::chrono::nanoseconds limit);
  void fill(Frames frames);
  Status launch();
  Status move_on();
  Arrival unpack();

  std::unique_ptr<transport::DeviceLane> lane_;
  std::unique_ptr<transport::NcclGroup> group_;      // destroyed before its lane
  std::array<transport::StagingBuffer, 2> buffers_;  // used in turn; a Parcel each
  std::chrono::nanoseconds limit_;
  Stage stage_ = Stage::idle;
  std::uint32_t started_ = 0;  // number of earlier broadcasts
  std::optional<transport::WaitLimit> patience_;
  std::array<std::span<const std::byte>, kFramesAtOnce> frames_{};
  std::size_t count_ = 0;
  Status status_;
};

}  // namespace cox::runtime
