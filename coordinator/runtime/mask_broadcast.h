// MaskBroadcast: masks on their way to CUDA ranks, by ncclBroadcast on a stream of their own. It
// takes the place of the boards and of the leaders' broadcast for frames that go down; reports go
// up as they always do. All ranks of the job have one, or none has.
//
//   rank 0's outbox -- pinned memory --> device -- ncclBroadcast --> device --> pinned memory
//
// A parcel of up to eight frames has one size, so no size travels first. The ranks start a
// broadcast in the step whose merged ballot says that a frame waits and that every rank's last
// broadcast is over (StepBallot::mask_lane_min); all see the same ballot, so all start the same
// ones in the same order. poll() moves it on without waiting for anything: neither host nor
// training stream is ever behind the lane.
//
// What fails. An error of NCCL or of the device, and a broadcast that is not over within the limit
// although every rank has started it, make this rank vote MaskLane::failed. The next merged ballot
// tells all ranks, and all give up NCCL in the same step. No plan depends on it: a rank holds what
// arrived whole, and the ranks agree on numbers as before. Thread rule: the rank's training thread.
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

  // Collective, waits. Either every rank gets one, or every rank the same reason.
  static Result<std::unique_ptr<MaskBroadcast>> create(transport::Communicator& world,
                                                       const Setup& setup);

  // Returns whether NCCL has not yet handed the broadcast that was started to its stream.
  bool is_setting_out() const { return status_.ok() && stage_ == Stage::launching; }

  // Returns this rank's vote.
  MaskLane lane() const;

  // Starts a broadcast; `frames` (at most kFramesAtOnce) count on rank 0 only. REQUIRES: the merged
  // ballot said MaskLane::free.
  void start(Frames frames);
  // Says that a ballot was merged after the last start(): every rank has started it by now, so its
  // time begins to count.
  void round_agreed();

  enum class Arrival : std::uint8_t { nothing, frames, damaged };
  // Moves the broadcast on. Never waits.
  Arrival poll();
  // Returns what the last poll() brought. Valid until the next start().
  Frames frames() const { return std::span(frames_).first(count_); }

  // Ends NCCL on this rank: the ranks agreed on it.
  void give_up(const Status& why);
  // Ok, or the first thing that went wrong.
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
  std::unique_ptr<transport::NcclGroup> group_;      // goes before its lane
  std::array<transport::StagingBuffer, 2> buffers_;  // used in turn; a Parcel each
  std::chrono::nanoseconds limit_;
  Stage stage_ = Stage::idle;
  std::uint32_t started_ = 0;  // broadcasts before this one
  std::optional<transport::WaitLimit> patience_;
  std::array<std::span<const std::byte>, kFramesAtOnce> frames_{};
  std::size_t count_ = 0;
  Status status_;
};

}  // namespace cox::runtime
