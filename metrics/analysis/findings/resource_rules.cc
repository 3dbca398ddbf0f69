#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/analysis/findings/rule_input.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

// ---- The coordinator's actions.

void flapping_plans(const RuleInput& input, Findings& out) {
  const std::vector<double> plans = input.own(0, "plan");
  if (plans.size() < 40) return;
  std::size_t changes = 0;
  for (std::size_t s = 1; s < plans.size(); ++s) {
    if (!is_absent(plans[s]) && !is_absent(plans[s - 1]) && plans[s] != plans[s - 1]) ++changes;
  }
  const double every =
      static_cast<double>(plans.size()) / static_cast<double>(std::max<std::size_t>(1, changes));
  if (changes < 6 || every > 10) return;
  Finding f{"PLAN.FLAPPING", Severity::medium, "Plans change all the time"};
  f.detail = fmt::format("The plan changed {} times, every {} steps.", changes, fixed(every, 1));
  f.suggestion = "cox replay RUN --verbose names the policy; raise its threshold or its interval.";
  f.evidence = {{"changes", static_cast<double>(changes)}};
  out.push_back(std::move(f));
}

// Steps without an update: `skipped` is the same on all ranks.
struct SkippedSteps {
  std::size_t scaled = 0;     // skipped by a loss scaler
  std::size_t at_floor = 0;   // the part of `scaled` at the smallest scale
  std::size_t unscaled = 0;   // with no loss scaler at work
  std::size_t all_floor = 0;  // at the smallest scale, skipped or not
  // Seconds that no other finding counts. Counts steps skipped by a scaler, or the other skipped
  // steps if there are more of them.
  StepSeconds lost;

  std::size_t most() const { return std::max(scaled, unscaled); }
};

// Returns the smallest loss scale that the run allows, at least 1: a smaller scale never helps.
double scale_floor(const RuleInput& input) {
  return std::max(1.0, input.setting("loss_scale.min").value_or(1));
}

SkippedSteps count_skipped(const RuleInput& input) {
  constexpr double kRounding = 1 + 1e-6;  // settings are decimal numbers, scales are floats
  const double floor = scale_floor(input) * kRounding;
  const std::vector<double> skipped = input.own(0, "skipped");
  const std::vector<double> scale = input.own(0, "loss_scale");
  SkippedSteps out;
  StepSeconds lost_scaled;
  StepSeconds lost_unscaled;
  for (std::size_t s = 0; s < skipped.size(); ++s) {
    const bool is_scaled = scale[s] > 0;
    const bool is_floor = is_scaled && scale[s] <= floor;
    out.all_floor += is_floor ? 1u : 0u;
    if (skipped[s] != 1) continue;
    out.at_floor += is_floor ? 1u : 0u;
    ++(is_scaled ? out.scaled : out.unscaled);
    StepSeconds& lost = is_scaled ? lost_scaled : lost_unscaled;
    lost.resize(skipped.size(), 0);
    lost[s] = std::max(0.0, input.view.wall(s) - input.counted.in_step(s));
  }
  out.lost = std::move(out.scaled >= out.unscaled ? lost_scaled : lost_unscaled);
  return out;
}

std::string scale_text(double scale) {
  return fmt::format("{:.6g}", scale);
}

// Returns advice if the smallest scale is too large, or no scale is small enough.
std::string advice_at_floor(double floor) {
  if (floor <= 1) return "fp16 cannot hold these gradients: use bf16 for the blocks that overflow.";
  return fmt::format(
      "Lower loss_scale.min, which holds the scale at {}; where gradients still overflow at 1, use "
      "bf16 for these blocks.",
      scale_text(floor));
}

Finding scaler_skips(const RuleInput& input, const SkippedSteps& steps) {
  const double floor = scale_floor(input);
  const bool is_floor = steps.at_floor * 2 > steps.scaled;
  Finding f = costly(input, is_floor ? "PRECISION.SCALE_AT_FLOOR" : "PRECISION.SKIPPED_STEPS",
                     is_floor ? "Gradients overflow even with the smallest loss scale"
                              : "Many steps are skipped after an overflow",
                     sum_of(steps.lost));
  if (is_floor) f.severity = Severity::high;
  f.detail = fmt::format("{} of {} steps were skipped, {} of them with a loss scale of {} or less.",
                         steps.scaled, input.view.size(), steps.at_floor, scale_text(floor));
  f.suggestion = is_floor
                     ? advice_at_floor(floor)
                     : "Start from a lower loss scale or let it grow more slowly (loss_scale).";
  f.evidence = {{"skipped", static_cast<double>(steps.scaled)},
                {"at_floor", static_cast<double>(steps.at_floor)},
                {"smallest_scale", floor}};
  input.counted.add(f, steps.lost);
  return f;
}

// Reports skipped steps without a loss scaler, which no scale explains.
Finding unscaled_skips(const RuleInput& input, const SkippedSteps& steps) {
  Finding f = costly(input, "PRECISION.SKIPPED_STEPS",
                     "Many steps are skipped, and no loss scaler is at work", sum_of(steps.lost));
  f.detail = fmt::format(
      "{} of {} steps were skipped, because a gradient or a loss was not finite, or the guard held "
      "them back.",
      steps.unscaled, input.view.size());
  f.suggestion =
      "Check the batches of these steps and the learning rate, and clip gradients; the "
      "guard's reasons name the rank (cox replay RUN --verbose).";
  f.evidence = {{"skipped", static_cast<double>(steps.unscaled)}};
  input.counted.add(f, steps.lost);
  return f;
}

// Reports a scale at its floor with few overflows: training goes on, but small gradients become
// zero. A scale without any overflow may be the user's choice.
Finding low_scale(const RuleInput& input, const SkippedSteps& steps) {
  const double floor = scale_floor(input);
  Finding f{"PRECISION.SCALE_LOW", Severity::low, "The loss scale stays at its smallest"};
  f.detail = fmt::format(
      "In {} of {} steps the loss scale was {} or less, and {} of these steps {} skipped after an "
      "overflow. Training goes on, but small gradients may become zero in fp16.",
      steps.all_floor, input.view.size(), scale_text(floor), steps.at_floor,
      steps.at_floor == 1 ? "was" : "were");
  f.suggestion = "Use bf16 for the blocks that overflow; Overflows by block names them.";
  f.evidence = {{"steps", static_cast<double>(steps.all_floor)},
                {"skipped", static_cast<double>(steps.at_floor)},
                {"smallest_scale", floor}};
  return f;
}

void skipped_steps(const RuleInput& input, Findings& out) {
  const std::size_t all = input.view.size();
  if (all < 2 * kLeastSteps) return;
  const SkippedSteps steps = count_skipped(input);
  const bool is_many = steps.most() >= 3 && steps.most() * 100 >= 3 * all;
  if (is_many && steps.scaled >= steps.unscaled) {
    out.push_back(scaler_skips(input, steps));
  } else if (is_many && !has_diverged(input)) {
    out.push_back(unscaled_skips(input, steps));
  } else if (steps.at_floor > 0 && steps.all_floor * 2 >= all) {
    out.push_back(low_scale(input, steps));
  }
}

bool withholds(const Reason& reason) {
  constexpr std::array kAlways = {ReasonCode::not_capable, ReasonCode::precision_no_evidence,
                                  ReasonCode::precision_not_faster};
  constexpr std::array kVetoes = {ReasonCode::precision_forbidden, ReasonCode::precision_raised};
  if (reason.policy != PolicyKind::precision) return false;
  return std::ranges::count(kAlways, reason.code) > 0 ||
         (std::ranges::count(kVetoes, reason.code) > 0 && reason.outcome == Outcome::vetoed);
}

bool limits_shares(const Reason& reason) {
  return reason.policy == PolicyKind::shares && (reason.code == ReasonCode::shares_limited ||
                                                 reason.code == ReasonCode::shares_unmeetable);
}

// Returns whether a later reason makes an earlier one stale. The same policy either changed the
// reason's block, or now withholds another format from the same block. A reason without a block
// concerns several blocks.
bool overtakes(const Reason& later, const Reason& reason) {
  if (later.policy != reason.policy || later.round == reason.round) return false;
  const bool is_same = later.block == reason.block;
  const bool is_change = later.outcome == Outcome::changed || later.outcome == Outcome::clamped;
  if (is_change) return is_same || later.block < 0 || reason.block < 0;
  return is_same && reason.block >= 0 && withholds(later);
}

// Returns the reasons of a kind that are not stale, oldest first.
std::vector<const Reason*> in_force(const RuleInput& input, bool (*is_kind)(const Reason&)) {
  const std::span<const Reason> all = input.view.run->decisions;
  std::vector<const Reason*> out;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto is_over = [&](const Reason& later) { return overtakes(later, all[i]); };
    if (is_kind(all[i]) && std::ranges::none_of(all.subspan(i + 1), is_over))
      out.push_back(&all[i]);
  }
  return out;
}

void withheld_precision(const RuleInput& input, Findings& out) {
  constexpr std::size_t kTold = 3;
  const std::vector<const Reason*> why = in_force(input, withholds);
  if (why.empty()) return;
  Finding f{"PRECISION.WITHHELD", Severity::low, "Blocks compute in more bits than they might"};
  for (std::size_t i = 0; i < std::min(kTold, why.size()); ++i)
    f.detail += fmt::format("{}{}", i == 0 ? "" : "; ", why[i]->text);
  if (why.size() > kTold) f.detail += fmt::format("; and {} more", why.size() - kTold);
  f.detail += ".";
  f.suggestion =
      "If the reason is a setting (precision.*), change that setting; otherwise no change helps.";
  f.evidence = {{"reasons", static_cast<double>(why.size())}};
  out.push_back(std::move(f));
}

// The policy's sentence names the limit: a cap or a minimum, of memory or of the settings.
void pinned_shares(const RuleInput& input, Findings& out) {
  const double waiting = input.seconds_of("waiting");
  if (input.share(waiting) < 0.05) return;
  const std::vector<const Reason*> limits = in_force(input, limits_shares);
  if (limits.empty()) return;
  Finding f =
      costly(input, "SHARES.PINNED", "Limits hold the shares of the batch where they are", waiting);
  f.detail =
      fmt::format("Ranks wait for slower ones for {} of the time, and shares cannot follow: {}.",
                  percents(input.share(waiting)), limits.back()->text);
  f.suggestion =
      "Where a cap holds a faster rank, raise shares.max_samples, give it more memory "
      "(memory.budget) or plan activation memory for it; where a minimum holds a slower one, lower "
      "shares.min_samples.";
  f.evidence = {{"waiting_share", input.share(waiting)}};
  count_rest(input, {"DIST.STRAGGLER", "DIST.LOAD_IMBALANCE"}, f,
             mean_of_steps(input.view, &RunView::wait));
  out.push_back(std::move(f));
}

void stalling_saves(const RuleInput& input, Findings& out) {
  const double seconds = input.seconds_of("saving");
  const auto saves = static_cast<std::size_t>(
      std::ranges::count_if(input.view.saving, [](float each) { return each > 0; }));
  if (saves < 2 || input.share(seconds) < 0.02) return;
  Finding f = costly(input, "SAVE.STALLS", "Saves hold all ranks up", seconds);
  const double each = seconds / static_cast<double>(saves);
  const std::size_t every = input.view.size() / saves;
  f.detail = fmt::format(
      "{} saves, one in {} steps, took {} each while every rank waited: {} of the time.", saves,
      every, seconds_text(each), percents(input.share(seconds)));
  f.suggestion = "Save less often (checkpoint.every_steps), or to a faster disk.";
  f.evidence = {{"saves", static_cast<double>(saves)}, {"seconds_each", each}};
  out.push_back(std::move(f));
}

void lost_rows(const RuleInput& input, Findings& out) {
  constexpr double kFew = 0.005;  // share of the steps; a report is late now and then
  double dropped = 0;
  for (const RankRecord& rank : input.view.run->ranks) dropped += rank.info.dropped_rows;
  const auto missing = static_cast<double>(input.view.missing);
  if (dropped > 0 || missing > kFew * static_cast<double>(input.view.size())) {
    Finding f{"RECORD.DROPPED", Severity::low, "The record has holes"};
    f.detail = fmt::format("{} steps were not recorded{}", fixed(std::max(dropped, missing), 0),
                           dropped > 0 ? ": the disk was full or too slow."
                                       : " by every rank: reports were lost, or rows.");
    f.suggestion = dropped > 0 ? "Give the run directory a faster disk or more room."
                               : "Check the log of the ranks, and coxswain_report_faults_total.";
    f.evidence = {{"rows", dropped}, {"missing_steps", missing}};
    out.push_back(std::move(f));
  }
  if (input.view.impossible == 0) return;
  Finding f{"RECORD.IMPOSSIBLE", Severity::low, "Some steps have times that cannot be"};
  f.detail = fmt::format("{} steps with times below zero or not finite are left out.",
                         input.view.impossible);
  f.suggestion = "Check the program that wrote the record, and the clock of the machine.";
  f.evidence = {{"steps", static_cast<double>(input.view.impossible)}};
  out.push_back(std::move(f));
}

constexpr std::array<NamedRule, 6> kResourceRules = {{{"flapping plans", flapping_plans},
                                                      {"skipped steps", skipped_steps},
                                                      {"withheld precision", withheld_precision},
                                                      {"pinned shares", pinned_shares},
                                                      {"stalling saves", stalling_saves},
                                                      {"lost rows", lost_rows}}};

}  // namespace

std::span<const NamedRule> resource_rules() {
  return kResourceRules;
}

}  // namespace cox::diagnosis
