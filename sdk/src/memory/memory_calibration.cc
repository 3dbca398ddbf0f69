#include "sdk/src/memory/memory_calibration.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <utility>

#include "coordinator/io/file.h"
#include "coordinator/policies/memory/budget.h"
#include "coordinator/runtime/control_plane.h"
#include "coxswain/error.h"
#include "metrics/records/planning_files.h"
#include "sdk/src/blocks/block_rules.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/memory/memory_agreement.h"
#include "sdk/src/memory/sample_trial.h"

namespace cox::detail {
namespace {

using planner::RankProblem;

// Rounds down by at most 1/64. Free memory changes all the time, and ranks of a node read it at
// different moments; rounded limits give such ranks the same plan.
std::int64_t rounded(std::int64_t limit_bytes) {
  const std::uint64_t step = std::bit_floor(static_cast<std::uint64_t>(limit_bytes)) / 64;
  return step == 0 ? limit_bytes : limit_bytes - limit_bytes % static_cast<std::int64_t>(step);
}

// Corrects the measured bytes for three differences between a trial run and a real step. A run
// holds the old gradients to its end, which a step releases before backward. A run holds a batch of
// its own. A run has no update, whose peak a step has.
void cover_rest_of_step(MemoryProblem& problem, const SampleStep& sample) {
  const std::int64_t not_held = sample.released_bytes + sample.spare_bytes;
  problem.base_bytes = std::max<std::int64_t>(0, problem.base_bytes - not_held);
  for (Stage& stage : problem.stages) {
    for (StageOption& option : stage.options) option.forward_high_bytes += sample.released_bytes;
  }
  // The peak of the update is booked on the first stage, where it holds under every plan.
  StageOption& start = problem.stages.front().options[static_cast<std::size_t>(MemoryAction::keep)];
  start.forward_high_bytes =
      std::max(start.forward_high_bytes, sample.update_peak_bytes - problem.base_bytes);
}

}  // namespace

ActionSet actions_of(const MemoryConfig& config, c10::Device device) {
  const bool has_tier = !config.tier_directory.empty() || !device.is_cpu();
  ActionSet actions = kEveryAction;
  if (!config.recompute) actions = without_kind(actions, MemoryAction::recompute);
  if (!config.tile) actions = without_kind(actions, MemoryAction::tile);
  if (!config.offload || !has_tier) actions = without_kind(actions, MemoryAction::offload);
  return actions;
}

MemoryCalibration::MemoryCalibration(const MemoryConfig& config, std::string run_directory,
                                     RankId rank, BlockWatch& blocks, MemoryProbe& probe, Log log)
    : config_(config),
      run_directory_(std::move(run_directory)),
      blocks_(blocks),
      probe_(probe),
      log_(std::move(log)),
      memory_(config, rank, blocks, log_) {}

Status MemoryCalibration::prepare() {
  return is_wanted() ? install_counting_allocator() : ok_status();
}

Status MemoryCalibration::check(LoopKind) {
  const std::vector<std::string> names = blocks_.names();
  const Status forced = check_rules_fit("memory.force", config_.force, names);
  return forced.ok() ? check_rules_fit("memory.forbid", config_.forbid, names) : forced;
}

void MemoryCalibration::contribute(JobFacts& job) const {
  if (is_wanted()) job.capabilities.actions |= actions_of(config_, probe_.memory().device());
}

void MemoryCalibration::calibrate(const SampleStep& sample, CalibrationHost& host) {
  probe_.look_around();
  const auto limit_bytes = rounded(static_cast<std::int64_t>(probe_.reading().limit_bytes));
  const TensorMemory& memory = probe_.memory();
  const ActionSet actions = actions_of(config_, memory.device());
  if (contains(actions, MemoryAction::offload) && memory_.offloader() == nullptr)
    memory_.open_tier(memory.device(), tier_bytes());
  SampleTrial trial({blocks_, memory, memory_.offloader(), log_},
                    {.actions = actions, .budget_bytes = memory_.budget_bytes(limit_bytes)},
                    {sample, holders_.held(sample.micro_batches), [&host] { host.forget_run(); }});
  if (contains(actions, MemoryAction::recompute_1))
    trial.choose_levels(require(with_figures_of_root(host.ranks(), trial.measure_regions())));
  const RankProblem mine{measured(trial, sample), limit_bytes, sample.samples};
  memory_.foresee(mine);
  const auto problems = require(gather_problems(host.ranks(), mine));
  plan_from(problems, host);
  memory_.apply(host.plan(), {});
}

MemoryProblem MemoryCalibration::measured(SampleTrial& trial, const SampleStep& sample) const {
  if (!trial.can_run()) return {};
  auto problem = trial.measure();
  if (problem.ok()) {
    cover_rest_of_step(*problem, sample);
    restrict_to_rules(*problem);
    return *std::move(problem);
  }
  log_.warning(problem.status().message());
  return {};
}

void MemoryCalibration::restrict_to_rules(MemoryProblem& problem) const {
  const std::vector<std::string> names = blocks_.names();
  for (Stage& stage : problem.stages) {
    if (stage.block == kGap) continue;
    const ActionSet allowed =
        allowed_actions(config_, names[static_cast<std::size_t>(stage.block)]);
    for (std::size_t a = 0; a < stage.options.size(); ++a) {
      StageOption& option = stage.options[a];
      option.allowed = option.allowed && contains(allowed, static_cast<MemoryAction>(a));
    }
    // Allows keep if the forced action of the block is impossible on this rank.
    if (std::ranges::none_of(stage.options, &StageOption::allowed))
      stage.options[static_cast<std::size_t>(MemoryAction::keep)].allowed = true;
  }
  if (tier_bytes() > 0) problem.tier_bytes = tier_bytes();
  if (config_.most_recomputed < 1) {
    problem.most_recomputed = static_cast<std::int32_t>(
        std::floor(config_.most_recomputed * static_cast<double>(names.size())));
  }
}

void MemoryCalibration::plan_from(const std::vector<RankProblem>& problems, CalibrationHost& host) {
  if (host.ranks().rank() == kRoot) {
    keep_profile(problems);
    auto known = planner::memory_facts(problems, blocks_.size());
    const bool is_measured = std::ranges::any_of(
        problems, [](const RankProblem& each) { return !each.problem.stages.empty(); });
    if (known.ok()) {
      host.facts().memory = std::move(*known);
    } else if (is_measured) {  // else each rank has logged its reason
      log_.warning(known.status().message());
    }
  }
  Status possible;
  const bool observes = config_.mode == PolicyMode::observe;
  for (const Reason& reason : host.learn()) {
    if (reason.code != ReasonCode::memory_infeasible || observes) continue;
    possible = invalid_argument(reason.text, explain_peak(problems, host.facts().memory));
  }
  host.agree(possible);
}

// Returns "; at that peak: ..." for the first rank whose budget cannot be met, the rank in the
// policy's reason.
std::string MemoryCalibration::explain_peak(const std::vector<RankProblem>& problems,
                                            const MemoryFacts& facts) const {
  for (std::size_t r = 0; r < facts.model_of_rank.size(); ++r) {
    const MemoryModel& model = facts.models[facts.model_of_rank[r]];
    RankMemory rank;
    rank.rank = RankId(static_cast<std::int32_t>(r));
    rank.limit_bytes = facts.limit_bytes[r];
    rank.keep_bytes = model.front.back().peak_bytes;
    const bool is_met = budget_of(config_, rank).bytes >= model.front.front().peak_bytes;
    if (is_met || problems[r].problem.stages.empty()) continue;
    return "; " + planner::least_peak_text(problems[r].problem, model, blocks_.names());
  }
  return {};
}

// Writes the profile for `cox plan`, beside the run record.
void MemoryCalibration::keep_profile(const std::vector<RankProblem>& problems) const {
  if (run_directory_.empty()) return;
  const auto file = std::filesystem::path(run_directory_) / "memory_profile.json";
  const Status kept =
      io::replace_file(file, io::to_json(planner::profile_of(problems, blocks_.names())));
  if (!kept.ok()) log_.warning(kept.message());
}

}  // namespace cox::detail
