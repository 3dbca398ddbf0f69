// BlockWatch is the actuator that listens to the blocks of a model: it registers them, collects
// what each costs and sends it to the coordinator, one profile a signal. The actuators of memory
// and number formats reach the blocks through it. Measurements come from the training thread and
// from autograd's; everything else is called by the training thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/block_registry.h"
#include "sdk/src/blocks/visit_watch.h"

namespace cox::detail {

class BlockWatch final : public Actuator, public BlockSink {
 public:
  // Steps that measure everything, then one in kTimesEverySteps measures times.
  static constexpr std::uint64_t kFullSteps = 2;
  static constexpr std::uint64_t kTimesEverySteps = 32;

  const char* name() const override { return "blocks"; }
  // Finds the blocks of a model and listens to them. Throws cox::Error when there are too many or
  // another session listens already.
  void attach(torch::nn::Module& model) override;
  // Listens to blocks of adopted models, which the operator stream tells instead: adds some with
  // these names and numbers of elements, numbered after those that are there. Whoever follows the
  // stream tells the VisitWatch, which lives until release(). REQUIRES: no model is attached.
  VisitWatch& adopt(const std::vector<std::string>& names,
                    const std::vector<std::uint64_t>& elements);
  void release() override;
  void contribute(JobFacts& job) const override { job.blocks = names(); }
  // Chooses what the coming step measures.
  void begin_step() override;
  // Returns a profile that was not sent yet.
  Fragment next_fragment() override;

  std::vector<std::string> names() const;
  std::size_t size() const { return registry_ ? registry_->size() : adopted_names_.size(); }
  // Blocks of an attached model, which alone run in FP8 and have a loss scale.
  std::size_t marked() const { return registry_ ? registry_->size() : 0; }
  // The actions that blocks can take: an adopted one is kept or recomputed, also at a level; the
  // blocks of an attached model have no levels.
  ActionSet actions() const;

  // Sets the memory action of the block's later calls or visits. Where our autograd engine is not
  // in force, blocks are kept. REQUIRES for all with a block: block < size().
  void set_action(BlockId block, MemoryAction action);
  // Sets the number format of the block's later calls or visits; release_format() leaves it to the
  // program.
  void set_format(BlockId block, Precision format);
  void release_format(BlockId block);
  // Returns the blocks that are kept whatever their action, with the reason, in ascending order.
  std::vector<PinnedBlock> pinned() const;
  // Checks the block's next call to be recomputed anew. An adopted one was checked for good.
  void unpin(BlockId block);
  // Null while no model is adopted.
  VisitWatch* visits() { return visits_.get(); }
  // Null while no model is attached.
  BlockRegistry* registry() { return registry_ ? &*registry_ : nullptr; }

  // Runs a step with all blocks timed, and tells `edge` of every edge of a block, if it is given:
  // on the thread that passes it, autograd's in backward. Returns failed_precondition without
  // blocks, else what `step` returns.
  using Edge = std::function<void(BlockId block, BlockEdge edge, Nanoseconds now)>;
  Status run_timed(const std::function<Status()>& step, Edge edge = {});
  // Runs a step and returns the microseconds, forward and backward, of every block.
  Result<std::vector<std::int64_t>> timed(const std::function<Status()>& step);

  void block_measured(BlockId block, const BlockMeasurement& measurement) noexcept override;
  void block_edge(BlockId block, BlockEdge edge) noexcept override;

 private:
  struct Known {
    BlockMeasurement measurement;
    bool is_complete = false;  // measured in full
    bool is_unsent = false;
  };

  MeasureMode next_mode();

  std::optional<BlockRegistry> registry_;
  std::shared_ptr<VisitWatch> visits_;      // of adopted models
  std::vector<std::string> adopted_names_;  // of their blocks
  Edge edge_;                               // while run_timed() runs
  std::uint64_t steps_ = 0;
  std::uint64_t full_until_ = kFullSteps;

  std::mutex mutex_;  // guards known_, new_shapes_ and spent_
  std::vector<Known> known_;
  std::size_t next_ = 0;
  bool new_shapes_ = false;
  std::vector<Seconds> spent_;  // per block, while timed() runs; else empty
};

}  // namespace cox::detail
