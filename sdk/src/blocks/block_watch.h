// BlockWatch is the actuator for a model's blocks. BlockWatch registers the blocks, follows the
// attached model in steps, and sends each block's costs to the coordinator, one profile a signal
// (BlockMeasurements). The actuators of memory and number formats access the blocks through it.
// Training thread only.
//
// Blocks follow from the parameters of the user's model, and visits from the operator stream. In a
// loop of ours (a Trainer, a Reducer with the model) BlockWatch follows the stream from the
// beginning of a step to its end. A loop that only adopts models follows it from adopt() on
// (training/adoption.h).
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

  // Finds the blocks of a model and follows them in steps. A model that cannot be followed has no
  // blocks: one without parameters, one with more than kMaxBlocks parts, or one under the engine of
  // Python's torch. Throws cox::Error for settings that do not fit the model.
  void attach(torch::nn::Module& model) override;
  // Divides a model named `name`, which may be empty. Uses the settings' patterns if there are any,
  // else `patterns` (BlockMap::make).
  Result<BlockMap> divide(const torch::nn::Module& model, std::span<const std::string> patterns,
                          std::string_view name) const;
  // Adds the blocks of an adopted model, numbered after the existing ones; the first model adds
  // those of blocks.scopes too. The follower of the stream calls the VisitWatch, which lives until
  // release(). Returns invalid_argument for a scope with a block's name, and resource_exhausted for
  // more than kMaxBlocks; both change nothing. REQUIRES: no model is attached.
  Status adopt(const BlockMap& map);
  void release() override;
  void contribute(JobFacts& job) const override { job.blocks = names_; }
  // Chooses the measurements of the coming step. Follows an attached model's blocks until
  // end_step().
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  // Returns a profile not sent yet.
  Fragment next_fragment() override;

  const std::vector<std::string>& names() const { return names_; }
  std::size_t size() const { return names_.size(); }
  // Returns the blocks of the attached model. Null without an attached model, and for adopted
  // models: only a loop of ours scales losses and skips steps.
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
  // Both are null without blocks.
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
  std::shared_ptr<Follower> follower_;  // follows the attached model
};

}  // namespace cox::detail
