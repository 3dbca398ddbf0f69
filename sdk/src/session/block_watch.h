// BlockWatch: the session's ear on the blocks of a model. Collects what each block costs and sends
// it to the coordinator, one profile a signal. Measurements come from the training thread and from
// autograd's; everything else is called by the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/signal.h"
#include "sdk/src/blocks/block_registry.h"
#include "sdk/src/memory/memory_trial.h"

namespace cox::detail {

class BlockWatch final : public BlockSink {
 public:
  // Steps that measure everything, then one in kTimesEverySteps measures times.
  static constexpr std::uint64_t kFullSteps = 2;
  static constexpr std::uint64_t kTimesEverySteps = 32;

  // Finds the blocks of a model and listens to them. Throws cox::Error when there are too many or
  // another session listens already.
  void attach(torch::nn::Module& model);
  void release();

  std::vector<std::string> names() const;
  std::size_t size() const { return registry_ ? registry_->size() : 0; }

  // For all calls from now on; one action per block. A block that was pinned to keep and is asked
  // for something else after having been kept gets another chance.
  void steer(const Actions& actions);
  void set_offload(const OffloadFrames& frames);
  // The format of every block, for all calls from now on.
  void set_precision(std::span<const Precision> formats);
  // Every block computes in what is in force where it is called.
  void release_precision();
  // Blocks that are kept whatever is asked for, with the reason.
  std::vector<PinnedBlock> pinned() const;
  // Runs a step and reads its counted bytes stage by stage. `moved`: bytes offloaded so far.
  Result<StepReading> traced(const std::function<Status()>& step,
                             const std::function<std::int64_t()>& moved);

  // Runs a step and returns the microseconds, forward and backward, of every block.
  Result<std::vector<std::int64_t>> timed(const std::function<Status()>& step);

  // Chooses what the coming step measures.
  void begin_step();

  // Goes out with the next signals, before everything else.
  void request(const PrecisionRequest& request) { requests_.push_back(request); }
  // A request, a failure or a profile that was not sent yet, as a fragment for the next signal.
  Fragment next_fragment();

  // Null while no model is attached.
  BlockRegistry* registry() { return registry_ ? &*registry_ : nullptr; }

  void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept override;
  void block_edge(BlockId block, BlockEdge edge) noexcept override;

 private:
  struct Known {
    BlockMeasurement measurement;
    bool is_complete = false;  // measured in full
    bool is_unsent = false;
  };
  Fragment next_failure();

  std::optional<BlockRegistry> registry_;
  Actions actions_;  // as asked for
  std::deque<PrecisionRequest> requests_;
  TraceRecorder trace_;
  std::uint64_t steps_ = 0;
  std::uint64_t full_until_ = kFullSteps;

  std::mutex mutex_;  // guards known_, new_shapes_ and spent_
  std::vector<Known> known_;
  std::size_t next_ = 0;
  bool new_shapes_ = false;
  std::vector<Seconds> spent_;  // per block, while timed() runs; else empty
};

}  // namespace cox::detail
