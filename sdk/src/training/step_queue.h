// StepQueue: which samples the coming steps take, and their batches, got ahead of time where that
// is asked for. A step's shares are fixed when it enters the queue, `ahead` steps before it runs,
// on every rank in the same round; so new shares switch everywhere together, `ahead` steps later.
// Training thread; owns the thread that gets batches.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "coxswain/dataset.h"
#include "coxswain/sample_plan.h"
#include "sdk/src/data/prefetch.h"
#include "sdk/src/training/step_share.h"

namespace cox::detail {

class StepQueue {
 public:
  // `dataset` must outlive it. `ahead`: steps whose batches are got before they run; 0 = none.
  StepQueue(const Dataset& dataset, const SamplePlan& plan, std::size_t ahead);

  struct Step {
    StepShare share;
    Batch batch;  // of this rank's share
  };
  // The step at request.cursor; the rest of `request` is for the steps that enter the queue now.
  // A cursor that is not the next one (a rollback, a resume) empties the queue first; the one just
  // taken gives the same step again. Blocks for the batch. Throws what the data set throws.
  const Step& take(const ShareRequest& request);
  // Drops what was planned; the data set is not looked at before the next take(). Waits for the
  // batch that is being got.
  void forget();

 private:
  struct Planned {
    std::uint64_t cursor = 0;  // where the step before it ended
    StepShare share;
  };
  void fill(const ShareRequest& request);
  Batch get(const Planned& planned);

  const Dataset& dataset_;
  SamplePlan plan_;
  std::size_t ahead_;
  std::deque<Planned> planned_;  // consecutive steps
  std::optional<Prefetcher<Batch>> prefetcher_;
  std::optional<std::uint64_t> taken_cursor_;
  Step taken_;
};

}  // namespace cox::detail
