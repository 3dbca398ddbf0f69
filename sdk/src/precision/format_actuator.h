// FormatActuator applies the plan's number formats to all blocks, and forwards the program's
// requests for formats while training. Before the first step it times every block in every
// available format. Training thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/log.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/precision_format.h"
#include "coordinator/core/status.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/block_watch.h"

namespace cox::detail {

class FormatActuator final : public Actuator, public Measuring, public Steering, public Reporting {
 public:
  FormatActuator(const Config& config, BlockWatch& blocks, Log log);

  const char* name() const override { return "precision"; }
  // Returns invalid_argument for a rule that fits no block, and for a requested format that cannot
  // run here.
  Status check(LoopKind) override;
  Status negotiate(transport::Communicator& ranks) override;
  bool is_wanted() const override { return is_wanted_; }
  std::string without() const override { return "number formats do not change"; }
  void contribute(JobFacts& job) const override { job.capabilities.precisions |= formats_; }
  bool wants_calibration() const override {
    return is_wanted_ && !config_.format && blocks_.size() > 0;
  }
  void calibrate(const SampleStep& sample, CalibrationHost& host) override;
  // Acts only on a plan with other formats than the last one. Does nothing if the policy only
  // observes.
  void apply(const Plan& plan, RoundId round) override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  Fragment next_fragment() override;

  // Sends the request with the next report. `block`: a name, or "*" for all blocks. Throws
  // cox::Error for an unknown block, or a format that the job cannot run.
  void request(std::string_view block, PrecisionRequest request);

  // Returns whether a block runs in the format now.
  bool has(Precision format) const;
  // Returns whether the policy is free to choose the format for a block.
  bool may_choose(Precision format) const {
    return is_steered_ && !config_.format && contains(formats_, format);
  }

 private:
  Status check_formats(at::DeviceType device) const;
  PrecisionSet formats_of_adopted() const;
  // Sets the format of every block, for all calls from now on.
  void set_formats(std::span<const Precision> formats);
  // Returns the microseconds of every block in every available format, from a few runs of `step`
  // (forward and backward of a sample). Restores the plan's formats, also after an error.
  Result<PrecisionFacts> measure(const std::function<Status()>& step);
  Status measure_format(std::size_t format, const std::function<Status()>& step,
                        PrecisionFacts& facts);

  const PrecisionConfig& config_;
  BlockWatch& blocks_;
  Log log_;
  bool is_wanted_;   // blocks may run in other types than the program's
  bool is_steered_;  // false if the policy only observes: blocks keep the program's types
  PrecisionSet formats_ = only(Precision::fp32);  // formats that the plan may request
  PrecisionSet emulated_ = 0;
  std::vector<Precision> followed_;
  std::deque<PrecisionRequest> requests_;
};

}  // namespace cox::detail
