// BlockWatch is the actuator that listens to the blocks of a model: it registers them, collects
// what each costs and sends it to the coordinator, one profile a signal. The actuators of memory
// and number formats reach the blocks through it. Measurements come from the training thread and
// from autograd's; everything else is called by the training thread.
//
// Blocks are found from the parameters of a model as its user wrote it, and their visits are told
// by the operator stream: within the steps of a loop of ours (a Trainer, a Reducer that was given
// the model) this follows the stream itself, from the beginning of a step to its end; a loop that
// only adopts its models does it from adopt() on (training/adoption.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/operator_table.h"
#include "coordinator/core/settings/run.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/block_steering.h"
#include "sdk/src/blocks/measurement.h"
#include "sdk/src/blocks/visit_listener.h"
#include "sdk/src/blocks/visit_watch.h"

namespace cox::detail {

class BlockWatch final : public Actuator, public Steering, public Reporting, public BlockSink {
 public:
  // Steps that measure everything, then one in kTimesEverySteps measures times.
  static constexpr std::uint64_t kFullSteps = 2;
  static constexpr std::uint64_t kTimesEverySteps = 32;

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
  // Makes `times` those of every block in a step, as they were measured last; 0 before that. Where
  // it has as many blocks already, their names stay.
  void read_times(std::vector<BlockTime>& times);
  // Sets the FLOPs of every block in a step, forward and backward, for the profiles to come.
  void set_flops(std::span<const double> flops);

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

  // The clock of visits. While a step is timed by itself, it waits for the blocks' device first:
  // time is then where the work is. In the steps of a job it waits for nothing, so that the times
  // of blocks on a device are those in which the host gives it their work.
  class TrialClock {
   public:
    void measure(c10::Device device) { device_ = device; }
    void begin() { waits_ = true; }
    void end() { waits_ = false; }
    Nanoseconds now() const noexcept;

   private:
    c10::Device device_ = c10::Device(c10::DeviceType::CPU);
    std::atomic<bool> waits_{false};
  };

  MeasureMode next_mode();

  const BlocksConfig config_;
  std::shared_ptr<VisitListener> listener_;
  std::vector<std::string> names_;
  std::unique_ptr<Follower, EndFollower> follower_;  // of the model that is attached
  const std::shared_ptr<TrialClock> clock_ =
      std::make_shared<TrialClock>();  // the listener may outlive us
  Edge edge_;                          // while run_timed() runs
  std::uint64_t steps_ = 0;
  std::uint64_t full_until_ = kFullSteps;

  std::mutex mutex_;  // guards known_, new_shapes_ and spent_
  std::vector<Known> known_;
  std::size_t next_ = 0;
  bool new_shapes_ = false;
  std::vector<Seconds> spent_;  // per block, while timed() runs; else empty
};

}  // namespace cox::detail
