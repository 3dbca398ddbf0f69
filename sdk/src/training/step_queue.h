// StepQueue: which samples the coming steps take, and their batches, got ahead of time where that
// is asked for. A step's shares are fixed when it enters the queue, `ahead` steps before it runs,
// on every rank in the same round; so new shares switch everywhere together, `ahead` steps later.
// TrainingData keeps the queue of a trainer's data set. Training thread; the queue owns the thread
// that gets batches.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coxswain/dataset.h"
#include "coxswain/sample_plan.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/actuator_list.h"
#include "sdk/src/checkpoint/checkpoint_folder.h"
#include "sdk/src/data/prefetch.h"
#include "sdk/src/session/session_state.h"

namespace cox {
struct TrainerOptions;
}

namespace cox::detail {

// Options that differ have different fingerprints; the learning rate is no part of it.
std::uint64_t fingerprint_of(const TrainerOptions& options);
// invalid_argument for a batch that cannot be shared among the ranks under these settings.
Status validate(const TrainerOptions& options, int world_size, const Config& config);

// StepShare: which samples of a step this rank computes, and in which micro-batches. The batch of a
// step is cut into micro-batches (whole ones but for the last), and ranks get contiguous runs of
// them in proportion to their shares; without a micro-batch the unit is one sample and a rank's
// samples are one micro-batch. A pure function of numbers that all ranks agree on.
struct ShareRequest {
  std::uint64_t cursor = 0;
  std::int64_t step_samples = 0;          // wanted; fewer at the end of an epoch
  std::int64_t micro_batch = 0;           // samples; 0 = a rank's samples at once
  std::span<const std::uint32_t> shares;  // relative, one a rank; empty = even
  RankId rank{};
  std::int32_t world_size = 1;
};

struct StepShare {
  SampleBatch step;                     // of all ranks
  SampleSlice slice;                    // this rank's, from the start of the batch
  std::int64_t micro_batch = 0;         // samples; 0 = none of a fixed size
  std::uint64_t micro_batches = 0;      // of all ranks
  std::uint64_t most_on_a_rank = 0;     // micro-batches
  std::uint64_t first_micro_batch = 0;  // of this rank, counted over all ranks
  std::uint64_t own_micro_batches = 0;

  // The i-th micro-batch of this rank, from the start of its slice.
  SampleSlice part(std::uint64_t i) const;
};

// ShareActuator carries out what the plan says of the batch: how many samples a step has and how
// ranks share them. Registered with the session by the trainer.
class ShareActuator final : public Actuator, public Steering {
 public:
  // Both must outlive this.
  ShareActuator(const TrainerOptions& options, const Membership& job)
      : options_(options), job_(job) {}

  void contribute(JobFacts& job) const override;
  void apply(const Plan& plan, RoundId round) override;

  // For a step that begins at `cursor`, under the plan in force. Valid until the next apply().
  ShareRequest request(std::uint64_t cursor) const;

 private:
  const TrainerOptions& options_;
  const Membership& job_;
  std::vector<std::uint32_t> shares_;
  std::int64_t step_samples_ = 0;
};

Result<StepShare> share_of(const SamplePlan& plan, const ShareRequest& request);

class StepQueue {
 public:
  // `dataset` must outlive it. `ahead`: steps whose batches are got before they run; 0 = none.
  // Batches are moved to `device` without waiting for it.
  StepQueue(const Dataset& dataset, const SamplePlan& plan, std::size_t ahead,
            c10::Device device = c10::Device(c10::DeviceType::CPU));

  struct Step {
    StepShare share;
    Batch batch;  // of this rank's share
  };
  // The step at request.cursor; the rest of `request` is for the steps that enter the queue now.
  // A cursor that is not the next one (a rollback, a resume) empties the queue first; the one just
  // taken gives the same step again. Blocks for the batch. Throws what the data set throws.
  const Step& take(const ShareRequest& request);
  // Returns why batches are got by take() although `ahead` asks for a thread; else ok.
  Status prefetch_status() const {
    return prefetcher_ ? prefetcher_->thread_status() : ok_status();
  }
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
  c10::Device device_;
  std::deque<Planned> planned_;  // consecutive steps
  std::optional<Prefetcher<Batch>> prefetcher_;
  std::optional<std::uint64_t> taken_cursor_;
  Step taken_;
};

// TrainingData gives a trainer the samples of each step, from the data set of its present loop. All
// ranks have the same data set, and it is the one of the save that was resumed from.
class TrainingData {
 public:
  // All of it must outlive this. `position` says where in the data the next step begins; open()
  // writes what it says of the data set.
  TrainingData(SessionState& state, const TrainerOptions& options, TrainingPosition& position);

  // Begins to take samples from `dataset`, which must outlive the steps that do. Collective. Throws
  // cox::Error, on all ranks when ranks have different data, or other data than the save.
  void open(const Dataset& dataset, c10::Device device);
  // Returns the samples of the next step, as StepQueue::take() does. REQUIRES: open() was called.
  const StepQueue::Step& take() { return queue_->take(shares_->request(position_.cursor)); }
  // As StepQueue::forget().
  void forget() {
    if (queue_) queue_->forget();
  }

 private:
  void check_resumed(std::uint64_t saved, std::uint64_t found, const std::string& what) const;

  SessionState& state_;
  const TrainerOptions& options_;
  TrainingPosition& position_;
  Added<ShareActuator> shares_;
  std::optional<StepQueue> queue_;  // from open() on
};

}  // namespace cox::detail
