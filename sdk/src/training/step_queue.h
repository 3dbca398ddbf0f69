// StepQueue plans which samples the coming steps use, and loads batches ahead if requested. A
// step's shares are fixed when the step enters the queue, `ahead` steps before it runs, on every
// rank in the same round. So new shares switch on all ranks together, `ahead` steps later.
// TrainingData owns the queue of a trainer's data set. Training thread; the queue owns the thread
// that loads batches.
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

// Returns different fingerprints for different options. The fingerprint does not include the
// learning rate.
std::uint64_t fingerprint_of(const TrainerOptions& options);
// Returns invalid_argument for a batch that cannot be divided among the ranks under the settings.
Status validate(const TrainerOptions& options, int world_size, const Config& config);

// ShareRequest is the input of share_of().
struct ShareRequest {
  std::uint64_t cursor = 0;
  std::int64_t step_samples = 0;          // requested; fewer at the end of an epoch
  std::int64_t micro_batch = 0;           // samples; 0 = a rank's samples at once
  std::span<const std::uint32_t> shares;  // relative, one a rank; empty = even
  RankId rank{};
  std::int32_t world_size = 1;
};

// StepShare is the part of a step's samples that this rank computes, and its micro-batches. The
// batch of a step is cut into micro-batches; only the last may be partial. Ranks get contiguous
// runs of micro-batches in proportion to their shares. Without a micro-batch the unit is one
// sample, and all samples of a rank are one micro-batch. A pure function of numbers on which all
// ranks agree.
struct StepShare {
  SampleBatch step;                     // all ranks' samples
  SampleSlice slice;                    // this rank's, from the start of the batch
  std::int64_t micro_batch = 0;         // samples; 0 = no fixed size
  std::uint64_t micro_batches = 0;      // all ranks' micro-batches
  std::uint64_t most_on_a_rank = 0;     // micro-batches
  std::uint64_t first_micro_batch = 0;  // this rank's first, counted over all ranks
  std::uint64_t own_micro_batches = 0;

  // Returns the i-th micro-batch of this rank, from the start of its slice.
  SampleSlice part(std::uint64_t i) const;
};

// ShareActuator applies the plan's fields on the batch: the number of samples of a step, and the
// ranks' shares. The trainer registers the actuator with the session.
class ShareActuator final : public Actuator, public Steering {
 public:
  // REQUIRES: both arguments outlive the ShareActuator.
  ShareActuator(const TrainerOptions& options, const Membership& job)
      : options_(options), job_(job) {}

  void contribute(JobFacts& job) const override;
  void apply(const Plan& plan, RoundId round) override;

  // Returns the request for a step that begins at `cursor`, under the plan in force. Valid until
  // the next apply().
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
  // `ahead` is the number of steps whose batches are loaded before they run; 0 = none. Batches are
  // moved to `device` without waiting for the device. REQUIRES: `dataset` outlives the queue.
  StepQueue(const Dataset& dataset, const SamplePlan& plan, std::size_t ahead,
            c10::Device device = c10::Device(c10::DeviceType::CPU));

  struct Step {
    StepShare share;
    Batch batch;  // batch of this rank's share
  };
  // Returns the step at request.cursor. The other fields of `request` apply to steps that enter the
  // queue now. A cursor other than the next one (a rollback, a resume) empties the queue first; the
  // cursor just taken returns the same step again. Blocks for the batch. Throws what the data set
  // throws.
  const Step& take(const ShareRequest& request);
  // Returns why take() loads batches itself although `ahead` asks for a thread; else ok.
  Status prefetch_status() const {
    return prefetcher_ ? prefetcher_->thread_status() : ok_status();
  }
  // Drops the planned steps. The data set is not used before the next take(). Waits for a batch
  // that is being loaded.
  void forget();

 private:
  struct Planned {
    std::uint64_t cursor = 0;  // end of the step before
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

// TrainingData supplies a trainer with the samples of each step, from the data set of its present
// loop. All ranks must have the same data set, which must also be the data set of a resumed save.
class TrainingData {
 public:
  // REQUIRES: all arguments outlive the TrainingData. `position` is where the next step begins in
  // the data. open() writes the data set's facts into `position`.
  TrainingData(SessionState& state, const TrainerOptions& options, TrainingPosition& position);

  // Begins to use `dataset`, which must outlive the steps that use it. Collective. Throws
  // cox::Error on all ranks if ranks have different data, or other data than the save.
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
