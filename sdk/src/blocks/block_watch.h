// BlockWatch is the actuator that listens to the blocks of a model: it registers them, collects
// what each costs and sends it to the coordinator, one profile a signal. The actuators of memory
// and number formats reach the blocks through it. Measurements come from the training thread and
// from autograd's; everything else is called by the training thread.
//
// Blocks come from one of three places: the model marks them (cox::Block, cox::run, cox::wrap); or
// the model is as its user wrote it, and they are found from its parameters and followed in the
// operator stream, in a loop of ours (Trainer, an own loop that attaches), within its steps; or in
// a loop that only adopts its models, which follows the stream itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/operator_table.h"
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
  // Finds the blocks of a model and listens to them. A model that marks none, and cannot be
  // followed (it has no parameters, or more than kMaxBlocks parts, or Python's torch runs the
  // engine), has none. Throws cox::Error when there are too many or another session listens
  // already.
  void attach(torch::nn::Module& model) override;
  // Listens to blocks of adopted models, which the operator stream tells instead: adds some with
  // these names and numbers of elements, numbered after those that are there. Whoever follows the
  // stream tells the VisitWatch, which lives until release(). REQUIRES: no model is attached.
  VisitWatch& adopt(const std::vector<std::string>& names,
                    const std::vector<std::uint64_t>& elements);
  void release() override;
  void contribute(JobFacts& job) const override { job.blocks = names(); }
  // Chooses what the coming step measures. The blocks of a model that marks none are followed until
  // end_step().
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  // Returns a profile that was not sent yet.
  Fragment next_fragment() override;

  std::vector<std::string> names() const;
  std::size_t size() const { return registry_ ? registry_->size() : adopted_names_.size(); }
  // Whether the loop is ours, so that losses are scaled and steps skipped.
  bool is_ours() const { return registry_.has_value() || follower_ != nullptr; }
  // The blocks of a model that marks none, in a loop of ours; else null.
  const BlockMap* followed() const;
  // Follows them while it exists, between steps too.
  class [[nodiscard]] Following {
   public:
    explicit Following(BlockWatch& blocks);
    ~Following();
    Following(const Following&) = delete;
    Following& operator=(const Following&) = delete;

   private:
    BlockWatch* const opened_;
  };
  // The actions that blocks can take: those that are marked have no levels of recompute, the others
  // no tiles.
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
  // Returns the times of every block in a step, as they were measured last; 0 before that.
  std::vector<BlockTime> times();
  // Sets the FLOPs of every block in a step, forward and backward, for the profiles to come.
  void set_flops(std::span<const double> flops);
  // Null where blocks are marked, or there are none.
  VisitWatch* visits() { return visits_.get(); }
  // Null unless an attached model marks its blocks.
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
    double flops = 0;          // of a step; 0 = not known
    bool is_complete = false;  // measured in full
    bool is_unsent = false;
  };

  class Follower;
  struct EndFollower {
    void operator()(Follower* follower) const;
  };

  void follow(torch::nn::Module& model);
  MeasureMode next_mode();

  std::optional<BlockRegistry> registry_;
  std::shared_ptr<VisitWatch> visits_;               // of models that mark no blocks
  std::vector<std::string> adopted_names_;           // of their blocks
  std::unique_ptr<Follower, EndFollower> follower_;  // of the one that is attached
  Edge edge_;                                        // while run_timed() runs
  std::uint64_t steps_ = 0;
  std::uint64_t full_until_ = kFullSteps;

  std::mutex mutex_;  // guards known_, new_shapes_ and spent_
  std::vector<Known> known_;
  std::size_t next_ = 0;
  bool new_shapes_ = false;
  std::vector<Seconds> spent_;  // per block, while timed() runs; else empty
};

}  // namespace cox::detail
