// FormatActuator carries out what the plan says of number formats: it sets the format of every
// block. It passes on what the program asks of formats while it trains. Before the first step it
// calibrates: it times every block in every format that can be run. Training thread only.
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
  // Returns invalid_argument for a rule that fits no block and for a format that is asked for and
  // cannot be run here.
  Status check(LoopKind) override;
  Status negotiate(transport::Communicator& ranks) override;
  bool is_wanted() const override { return is_wanted_; }
  std::string without() const override { return "number formats stay as the program has them"; }
  void contribute(JobFacts& job) const override { job.capabilities.precisions |= formats_; }
  bool wants_calibration() const override {
    return is_wanted_ && !config_.format && blocks_.size() > 0;
  }
  void calibrate(const SampleStep& sample, CalibrationHost& host) override;
  // Does something only when the plan asks for something else, and nothing where the policy only
  // observes.
  void apply(const Plan& plan, RoundId round) override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  Fragment next_fragment() override;

  // Sends the request with the next report. `block`: a name, or "*" for all. Throws cox::Error for
  // an unknown block or a format that this job cannot run.
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
  // Returns the microseconds of every block in every format that can be run, from a few runs of
  // `step` (forward and backward of a sample). Leaves the formats of the plan followed, also on an
  // error.
  Result<PrecisionFacts> measure(const std::function<Status()>& step);
  Status measure_format(std::size_t format, const std::function<Status()>& step,
                        PrecisionFacts& facts);

  const PrecisionConfig& config_;
  BlockWatch& blocks_;
  Log log_;
  bool is_wanted_;   // blocks may run in anything but the types of the program
  bool is_steered_;  // not where the policy only observes: blocks then run as the program has them
  PrecisionSet formats_ = only(Precision::fp32);  // that the plan may ask for
  PrecisionSet emulated_ = 0;
  std::vector<Precision> followed_;
  std::deque<PrecisionRequest> requests_;
};

}  // namespace cox::detail
