// The mask: a plan as bytes, from the coordinator to all ranks. encode_plan() splits a plan into
// frames. A PlanAssembler on each rank joins the frames in any order, despite duplicates and
// losses. Precision and the actions of profile 0 take 4 bits a block, or 8 if a block has a level
// of recompute. 256 blocks of 4 bits are one frame of 160 bytes. Other fields follow only if they
// differ from the default (full plan) or the base plan (delta). Formats in docs/wire-format.md. One
// thread at a time.
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

// Returns the frames of `plan`, head first. With a `base` that the receivers hold, the frames carry
// only the changes against the base if a delta is shorter and possible. A delta needs the same
// incarnation, the same blocks, and numbers at most 255 apart. activated_round does not travel.
// Errors: invalid_argument if blocks, profiles or ranks exceed the format or do not fit together;
// resource_exhausted beyond 65535 continuations.
Result<std::vector<Frame>> encode_plan(const Plan& plan, const Plan* base);

enum class Assembly : std::uint8_t {
  nothing_new = 0,   // the held plan stays: an older plan, or a frame received before
  incomplete = 1,    // a piece of the next plan; more frames must come
  complete = 2,      // held() is a newer plan now
  base_unknown = 3,  // this rank missed a plan: ask the coordinator for the full one
};

class PlanAssembler {
 public:
  // `held` is the plan that this rank starts with (number 0). REQUIRES: `held` fits the job.
  PlanAssembler(JobFacts job, Plan held);

  // Adds one frame. Errors: data_loss for damaged bytes and for bytes that give no valid plan,
  // after which the caller asks for the full plan; failed_precondition for another version or
  // incarnation. The held plan changes only with `complete`. The new plan is valid for the job and
  // has a larger number. The job's largest plan bounds the memory.
  Result<Assembly> feed(std::span<const std::byte> bytes);

  const Plan& held() const { return held_; }

 private:
  // Pending is the plan that is being assembled. All its frames agree on number, distance and
  // count.
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
