// BlockWatch is the actuator that listens to the blocks of a model: it registers them, follows the
// attached model in steps, and sends what each block costs to the coordinator, one profile a signal
// (BlockMeasurements). The actuators of memory and number formats reach the blocks through it.
// Training thread only.
//
// Blocks are found from the parameters of a model as its user wrote it, and their visits are told
// by the operator stream: within the steps of a loop of ours (a Trainer, a Reducer that was given
// the model) this follows the stream itself, from the beginning of a step to its end; a loop that
// only adopts its models does it from adopt() on (training/adoption.h).
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/settings/run.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/block_steering.h"
#include "sdk/src/blocks/measurement.h"
#include "sdk/src/blocks/visit_listener.h"
#include "sdk/src/blocks/visit_watch.h"

namespace cox::detail {

class BlockWatch final : public Actuator, public Steering, public Reporting {
 public:
  explicit BlockWatch(BlocksConfig config = {}) : config_(std::move(config)) {}

  // Finds the blocks of a model and follows them in steps. A model that cannot be followed (it has
  // no parameters, or more than kMaxBlocks parts, or Python's torch runs the engine) has none.
  // Throws cox::Error for settings that do not fit it.
  void attach(torch::nn::Module& model) override;
  // Divides a model of that name, which may be empty, as the settings say, where they do, or else
  // by these patterns (BlockMap::make).
  Result<BlockMap> divide(const torch::nn::Module& model, std::span<const std::string> patterns,
                          std::string_view name) const;
  // Adds the blocks of an adopted model, numbered after those that are there, and with the first
  // model those of blocks.scopes. Whoever follows the stream tells the VisitWatch, which lives
  // until release(). Returns invalid_argument for a scope that is called like a block,
  // resource_exhausted for more than kMaxBlocks; nothing has changed then. REQUIRES: no model is
  // attached.
  Status adopt(const BlockMap& map);
  void release() override;
  void contribute(JobFacts& job) const override { job.blocks = names_; }
  // Chooses what the coming step measures. The blocks of an attached model are followed until
  // end_step().
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  // Returns a profile that was not sent yet.
  Fragment next_fragment() override;

  const std::vector<std::string>& names() const { return names_; }
  std::size_t size() const { return names_.size(); }
  // The blocks of the attached model, in a loop of ours, where losses are scaled and steps skipped;
  // null where there is none, or models are adopted.
  const BlockMap* followed() const;
  // Follows the attached model while it exists, between steps too.
  class [[nodiscard]] Following {
   public:
    explicit Following(BlockWatch& blocks);
    ~Following();
    Following(const Following&) = delete;
    Following& operator=(const Following&) = delete;

   private:
    BlockWatch* const opened_;
  };
  // Both are null where there are no blocks.
  VisitWatch* visits() { return listener_ ? &listener_->visits() : nullptr; }
  VisitListener* listener() { return listener_.get(); }
  // Returns the blocks that are kept whatever their action, with the reason, in ascending order.
  std::vector<PinnedBlock> pinned() const;
  BlockMeasurements& measurements() { return measured_; }

 private:
  class Follower;

  void note_device(const BlockMap& map);

  const BlocksConfig config_;
  BlockMeasurements measured_;
  std::shared_ptr<VisitListener> listener_;
  std::vector<std::string> names_;
  std::shared_ptr<Follower> follower_;  // of the model that is attached
};

}  // namespace cox::detail
