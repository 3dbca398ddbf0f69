// The mask: a plan as bytes, from the coordinator to all ranks. encode_plan() makes its frames, a
// PlanAssembler on each rank puts them together again, in any order, with duplicates and losses.
// Precision and the actions of profile 0 take 4 bits a block, so 256 blocks are one frame of 160
// bytes, and 8 bits where a block has a level of recompute; everything else rides behind them only
// when it differs from its default (full) or from the base plan (delta). Formats in
// docs/wire-format.md. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/status.h"
#include "coordinator/wire/frame.h"

namespace cox::wire {

// Returns the frames of `plan`, head first. With a `base` that its receivers hold, they carry the
// changes against it where that is shorter and possible (same incarnation and blocks, at most 255
// numbers apart). activated_round does not travel. Errors: invalid_argument when blocks, profiles
// or ranks are more than the format carries or do not fit together; resource_exhausted beyond 65535
// continuations.
Result<std::vector<Frame>> encode_plan(const Plan& plan, const Plan* base);

enum class Assembly : std::uint8_t {
  nothing_new = 0,   // the held plan stays: an older one, or a frame seen before
  incomplete = 1,    // a piece of the next plan; more must come
  complete = 2,      // held() is a newer plan now
  base_unknown = 3,  // this rank missed a plan: ask the coordinator for the full one
};

class PlanAssembler {
 public:
  // `held` is the plan this rank starts with (number 0); it must fit the job.
  PlanAssembler(JobFacts job, Plan held);

  // Takes one frame. Errors: data_loss for bytes that are damaged or give no valid plan (ask for
  // the full plan), failed_precondition for another version or incarnation. The held plan changes
  // only with `complete`, to a plan that is valid for the job and has a larger number. Memory is
  // bounded by what the job's largest plan needs.
  Result<Assembly> feed(std::span<const std::byte> bytes);

  const Plan& held() const { return held_; }

 private:
  // Pending is the plan being put together. All its frames agree on number, distance and count.
  struct Pending {
    std::uint64_t number = 0;
    std::uint8_t base_distance = 0;
    std::uint16_t continuations = 0;
    bool has_head = false;
    FrameHeader head{};
    std::vector<std::vector<std::byte>> pieces;  // payloads: head, then continuations
    std::size_t missing = 0;
  };

  Result<Assembly> feed_piece(const FrameView& frame);
  Status open_pending(const FrameHeader& header);
  Result<Assembly> finish();

  JobFacts job_;
  Plan held_;
  std::size_t max_continuations_ = 0;
  Pending pending_;  // number 0 = none
};

}  // namespace cox::wire
