// MemoryCalibration is the actuator of activation memory before the first step. The calibration
// reports the actions that the settings and the model allow. On a sample batch it measures every
// block under every action, exchanges the results with the other ranks, and lets the policies
// decide anew. Then its MemoryActuator follows the plan. Training thread only.
//
//   SampleTrial (measures) -> memory_agreement.h (exchanges) -> MemoryFacts of rank 0 -> plan
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/log.h"
#include "coordinator/core/settings/memory.h"
#include "coordinator/planner/memory_facts.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/memory/sample_trial.h"
#include "sdk/src/parallel/gradient_holders.h"

namespace cox::detail {

// Returns the actions that the settings allow the blocks of a model on `device`.
ActionSet actions_of(const MemoryConfig& config, c10::Device device);

class MemoryCalibration final : public Actuator, public Measuring {
 public:
  // All references outlive the calibration. `run_directory`: the folder in which rank 0 stores the
  // job's profile for `cox plan`; empty = nowhere.
  MemoryCalibration(const MemoryConfig& config, std::string run_directory, RankId rank,
                    BlockWatch& blocks, MemoryProbe& probe, Log log);

  const char* name() const override { return "memory"; }
  Status prepare() override;  // installs the counting allocator if memory is planned
  void attach(torch::nn::Module&) override { memory_.forget(); }
  void release() override { memory_.forget(); }
  bool is_wanted() const override { return memory_.is_wanted(); }
  std::string without() const override { return "activations are kept"; }
  // Returns invalid_argument for a rule that fits no block. Called once, when the blocks are known.
  Status check(LoopKind loop) override;
  void contribute(JobFacts& job) const override;
  bool wants_calibration() const override { return is_wanted() && blocks_.size() > 0; }
  void calibrate(const SampleStep& sample, CalibrationHost& host) override;

  MemoryActuator& actuator() { return memory_; }
  // Returns the reducers that know how a step will treat its gradients.
  GradientHolders& gradient_holders() { return holders_; }

 private:
  std::int64_t tier_bytes() const { return config_.tier_bytes / probe_.sharers().of_node; }
  // Returns this rank's problem, without stages if the sample cannot be measured.
  MemoryProblem measured(SampleTrial& trial, const SampleStep& sample) const;
  void restrict_to_rules(MemoryProblem& problem) const;
  // Gives rank 0 the measurements, and all ranks the resulting plan. Throws cox::Error if a rank's
  // budget cannot be met.
  void plan_from(const std::vector<planner::RankProblem>& problems, CalibrationHost& host);
  std::string explain_peak(const std::vector<planner::RankProblem>& problems,
                           const MemoryFacts& facts) const;
  void keep_profile(const std::vector<planner::RankProblem>& problems) const;

  const MemoryConfig& config_;
  const std::string run_directory_;
  BlockWatch& blocks_;
  MemoryProbe& probe_;
  Log log_;
  MemoryActuator memory_;
  GradientHolders holders_;
};

}  // namespace cox::detail
