#include "metrics/analysis/findings/run_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "coordinator/core/split_mix.h"
#include "coordinator/core/text.h"
#include "metrics/analysis/findings/figures.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr const char* kMissing = "\"<absent>\"";
constexpr double kBytesOfMb = 1024 * 1024;
constexpr std::size_t kStretches = 50;
constexpr std::size_t kResamples = 2000;

using Settings = std::map<std::string, std::string>;

Settings settings_of(const std::vector<RunSetting>& list) {
  Settings out;
  for (const RunSetting& setting : list) out[setting.key] = setting.json;
  return out;
}

std::string setting(const Settings& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? kMissing : found->second;
}

std::vector<SettingDiff> differences_of(const Settings& a, const Settings& b) {
  std::set<std::string> keys;
  for (const auto& [key, value] : a) keys.insert(key);
  for (const auto& [key, value] : b) keys.insert(key);
  std::vector<SettingDiff> out;
  for (const std::string& key : keys) {
    SettingDiff diff{key, setting(a, key), setting(b, key)};
    if (diff.a != diff.b) out.push_back(std::move(diff));
  }
  return out;
}

// The figures of one run in the published comparison.
struct Side {
  Timing timing;
  MemoryUse memory;
  Convergence convergence;
  std::vector<double> losses;

  explicit Side(const RankRecord& rank, std::size_t first = 0)
      : timing(timing_of(rank, first)),
        memory(memory_of(rank, first)),
        convergence(convergence_of(rank, first)),
        losses(values_of(rank.scalars, "loss", rank.size(), first)) {
    std::erase_if(losses, is_absent);
  }
};

std::vector<MetricDiff> metrics_of(const Side& a, const Side& b) {
  const auto peak = [](const Side& side) {
    return side.memory.is_there ? std::optional(side.memory.peak_alloc_bytes / kBytesOfMb)
                                : std::nullopt;
  };
  return {{"final_loss", a.convergence.final_loss, b.convergence.final_loss},
          {"best_loss", a.convergence.best_loss, b.convergence.best_loss},
          {"mean_step_ms", a.timing.mean_seconds * 1e3, b.timing.mean_seconds * 1e3},
          {"steps_per_sec", a.timing.steps_per_second(), b.timing.steps_per_second()},
          {"peak_alloc_mb", peak(a), peak(b)},
          {"n_steps", static_cast<double>(a.timing.steps), static_cast<double>(b.timing.steps)}};
}

std::optional<std::size_t> first_difference(const std::vector<double>& a,
                                            const std::vector<double>& b) {
  const std::size_t common = std::min(a.size(), b.size());
  for (std::size_t i = 0; i < common; ++i) {
    if (a[i] != b[i]) return i;
  }
  return a.size() == b.size() ? std::nullopt : std::optional(common);
}

bool concerns_numerics(const std::string& key) {
  constexpr std::array<std::string_view, 8> kKeys = {"torch",
                                                     "cuda",
                                                     "gpu",
                                                     "gpu_count",
                                                     "cudnn_deterministic",
                                                     "cudnn_benchmark",
                                                     "env.PYTHONHASHSEED",
                                                     "env.CUBLAS_WORKSPACE_CONFIG"};
  return std::ranges::find(kKeys, key) != kKeys.end();
}

template <class Chosen>
std::string keys_text(const std::vector<SettingDiff>& diffs, const Chosen& chosen) {
  std::string out;
  for (const SettingDiff& diff : diffs) {
    if (chosen(diff.key)) out += (out.empty() ? "" : ", ") + diff.key;
  }
  return out;
}

void add_once(std::vector<std::string>& notes, std::string note) {
  if (std::ranges::find(notes, note) == notes.end()) notes.push_back(std::move(note));
}

void note_switches(const Settings& environment, const std::string& name,
                   std::vector<std::string>& notes) {
  if (setting(environment, "cudnn_benchmark") == "true")
    add_once(notes, fmt::format("'{}' let cuDNN choose kernels by timing (cudnn.benchmark), which "
                                "may differ from run to run.",
                                name));
  if (!environment.contains("env.PYTHONHASHSEED"))
    add_once(notes,
             fmt::format("'{}' ran without PYTHONHASHSEED, so hash orders may differ.", name));
}

std::vector<std::string> published_notes(const RunDiff& diff, const Settings& environment_a,
                                         const Settings& environment_b) {
  if (diff.is_identical && diff.environment.empty() && diff.config.empty())
    return {"Environment, configuration and the losses of all steps are equal."};
  std::vector<std::string> notes;
  const auto all = [](const std::string&) { return true; };
  const std::string numerics = keys_text(diff.environment, concerns_numerics);
  if (!diff.config.empty()) {
    notes.push_back(
        fmt::format("The configuration differs in {}, which explains different results.",
                    keys_text(diff.config, all)));
  } else if (!numerics.empty()) {
    notes.push_back(
        fmt::format("The environment differs in {}, which can change numbers.", numerics));
  } else if (!diff.is_identical) {
    notes.emplace_back(
        "Configuration and environment are equal, but the losses differ: a part of the run is not "
        "deterministic (seeds, kernels, the order of sums or of data).");
  }
  note_switches(environment_a, diff.name_a, notes);
  note_switches(environment_b, diff.name_b, notes);
  if (diff.first_divergence && !diff.is_identical)
    add_once(notes, fmt::format("The losses differ from step {} on.", *diff.first_divergence));
  return notes;
}

// ---- The unpublished part.

using RowOfStep = std::map<std::int64_t, std::size_t>;

RowOfStep rows_of(const RankRecord& rank) {
  RowOfStep out;
  std::size_t row = 0;
  for (const double step : rank.steps.values()) out[static_cast<std::int64_t>(step)] = row++;
  return out;
}

std::optional<double> value_at(const std::vector<double>& values, std::size_t row) {
  return is_absent(values[row]) ? std::nullopt : std::optional(values[row]);
}

bool differ(double a, double b, double tolerance) {
  if (is_absent(a) || is_absent(b)) return false;
  if (!std::isfinite(a) || !std::isfinite(b)) return !(std::isnan(a) && std::isnan(b)) && !(a == b);
  return std::fabs(a - b) > tolerance * std::max(std::fabs(a), std::fabs(b));
}

// One rank in both runs, with the rows of its steps.
struct Pair {
  const RankRecord& a;
  const RankRecord& b;
  RowOfStep rows_a = rows_of(a);
  RowOfStep rows_b = rows_of(b);
};

// The first common step whose values differ.
struct OtherRows {
  std::int64_t step = 0;
  std::size_t a = 0;
  std::size_t b = 0;
};
std::optional<OtherRows> first_other(const Pair& pair, const std::vector<double>& values_a,
                                     const std::vector<double>& values_b, double tolerance) {
  for (const auto& [step, row] : pair.rows_a) {
    const auto other = pair.rows_b.find(step);
    if (other != pair.rows_b.end() && differ(values_a[row], values_b[other->second], tolerance))
      return OtherRows{step, row, other->second};
  }
  return std::nullopt;
}

std::optional<LossDifference> first_loss(const Pair& pair, double tolerance) {
  const auto& [a, b, rows_a, rows_b] = pair;
  const std::vector<double> loss_a = values_of(a.scalars, "loss", a.size());
  const std::vector<double> loss_b = values_of(b.scalars, "loss", b.size());
  const auto other = first_other(pair, loss_a, loss_b, tolerance);
  if (!other) return std::nullopt;
  return LossDifference{other->step,
                        a.rank,
                        loss_a[other->a],
                        loss_b[other->b],
                        value_at(values_of(a.own, "plan", a.size()), other->a),
                        value_at(values_of(b.own, "plan", b.size()), other->b)};
}

std::optional<std::int64_t> first_plan(const Pair& pair) {
  std::optional<std::int64_t> first;
  for (const char* name : {"plan", "recomputed_blocks", "offloaded_blocks", "tiled_blocks"}) {
    const auto other = first_other(pair, values_of(pair.a.own, name, pair.a.size()),
                                   values_of(pair.b.own, name, pair.b.size()), 0);
    if (other && (!first || other->step < *first)) first = other->step;
  }
  return first;
}

// Compares only the beginnings of long histories, which lack their middle. If a journal is missing
// or ends early, the other's further changes are no difference.
std::optional<PlanDifference> plan_difference(const PlanHistory& a, const PlanHistory& b) {
  const auto [shortest, longest] = std::minmax({a.events.size(), b.events.size()});
  const bool is_read = shortest > 0 && a.gap.empty() && b.gap.empty();
  const bool is_whole = a.left_out == 0 && b.left_out == 0;
  const std::size_t known = is_read ? longest : shortest;
  const std::size_t end = is_whole ? known : std::min(known, PlanHistory::kFirst);
  const auto event = [](const PlanHistory& history, std::size_t i) {
    return i < history.events.size() ? std::optional(history.events[i]) : std::nullopt;
  };
  for (std::size_t i = 0; i < end; ++i) {
    PlanDifference each{event(a, i), event(b, i)};
    if (!each.a || !each.b || each.a->changes != each.b->changes) return each;
  }
  return std::nullopt;
}

void raise_to(std::vector<double>& most, const RankRecord& rank, std::size_t first) {
  const std::vector<double> times = row_sums(rank.phases, rank.size(), first);
  for (std::size_t k = 0; k < most.size(); ++k) {
    const std::size_t begin = k * times.size() / most.size();
    const std::size_t end = (k + 1) * times.size() / most.size();
    most[k] =
        std::max(most[k], mean_of(std::span<const double>(times).subspan(begin, end - begin)));
  }
}

// Returns the mean step time of the slowest rank for each stretch.
std::vector<double> stretch_means(const RunRecord& run, std::size_t first) {
  std::size_t steps = run.lowest().size();
  for (const RankRecord& rank : run.ranks) steps = std::min(steps, rank.size());
  std::vector<double> out(std::min(kStretches, steps - std::min(first, steps)));
  for (const RankRecord& rank : run.ranks) raise_to(out, rank, first);
  return out;
}

double resampled_mean(const std::vector<double>& values, SplitMix& random) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[random.next() % values.size()];
  return sum / static_cast<double>(values.size());
}

std::optional<TimeRatio> time_ratio(const RunRecord& a, const RunRecord& b, std::size_t first) {
  const std::vector<double> means_a = stretch_means(a, first);
  const std::vector<double> means_b = stretch_means(b, first);
  if (!(mean_of(means_a) > 0) || !(mean_of(means_b) > 0)) return std::nullopt;
  SplitMix random(20260101);
  std::vector<double> ratios;
  for (std::size_t k = 0; k < kResamples; ++k) {
    const double below = resampled_mean(means_a, random);
    if (below > 0) ratios.push_back(resampled_mean(means_b, random) / below);
  }
  std::ranges::sort(ratios);
  return TimeRatio{mean_of(means_b) / mean_of(means_a), percentile_of(ratios, 0.025),
                   percentile_of(ratios, 0.975)};
}

// ---- Differences: a sentence each.

using Texts = std::vector<std::string>;

std::vector<std::size_t> lone_ranks(const RunRecord& run, const RunRecord& other) {
  std::vector<std::size_t> out;
  for (const RankRecord& rank : run.ranks) {
    const auto same = [&](const RankRecord& each) { return each.rank == rank.rank; };
    if (std::ranges::none_of(other.ranks, same)) out.push_back(static_cast<std::size_t>(rank.rank));
  }
  return out;
}

void compare_ranks(const RunRecord& a, const RunRecord& b, Texts& out) {
  const std::int32_t size_a = a.lowest().info.world_size;
  const std::int32_t size_b = b.lowest().info.world_size;
  if (size_a != size_b) out.push_back(fmt::format("A ran on {} ranks, B on {}", size_a, size_b));
  const auto tell = [&](const char* name, const std::vector<std::size_t>& ranks) {
    if (!ranks.empty())
      out.push_back(fmt::format("only {} has a record of rank{}{}", name,
                                ranks.size() > 1 ? "s " : " ", ranges_text(ranks)));
  };
  tell("A", lone_ranks(a, b));
  tell("B", lone_ranks(b, a));
}

std::string steps_text(const RowOfStep& rows) {
  if (rows.empty()) return "no step";
  return fmt::format("{} steps ({} to {})", rows.size(), rows.begin()->first, rows.rbegin()->first);
}

// Accumulates the differences between the common ranks.
struct RanksCompared {
  std::size_t ranks = 0;
  std::size_t with_other_losses = 0;
  std::string steps;        // the first rank with other steps in b than in a; empty = none
  std::string lone_losses;  // the first rank with losses in one run only
  double peak_ratio = 1;    // the largest difference of a rank
  std::int32_t peak_rank = 0;
};

std::string other_steps(const Pair& pair) {
  const auto is_same = [](const auto& x, const auto& y) { return x.first == y.first; };
  if (std::ranges::equal(pair.rows_a, pair.rows_b, is_same)) return {};
  const bool is_common = std::ranges::any_of(
      pair.rows_a, [&](const auto& row) { return pair.rows_b.contains(row.first); });
  return fmt::format("A has {}, B {} of rank {}{}", steps_text(pair.rows_a),
                     steps_text(pair.rows_b), pair.a.rank,
                     is_common ? "" : ": none is in both, so no loss was compared");
}

bool has_loss(const RankRecord& rank) {
  const Column* const column = find(rank.scalars, "loss");
  return column != nullptr && column->any();
}

std::string lone_losses(const Pair& pair) {
  if (has_loss(pair.a) == has_loss(pair.b)) return {};
  return fmt::format("only {} has losses of rank {}", has_loss(pair.a) ? "A" : "B", pair.a.rank);
}

// Returns 1 if the peaks are equal within the tolerance, or one is unknown.
double peak_ratio(const Pair& pair, const DiffTolerance& tolerance) {
  const MemoryUse a = memory_of(pair.a, tolerance.warmup_steps);
  const MemoryUse b = memory_of(pair.b, tolerance.warmup_steps);
  const bool is_other = a.is_there && b.is_there && a.peak_alloc_bytes > 0 &&
                        differ(a.peak_alloc_bytes, b.peak_alloc_bytes, tolerance.memory);
  return is_other ? b.peak_alloc_bytes / a.peak_alloc_bytes : 1;
}

void compare_rank(const Pair& pair, const DiffTolerance& tolerance, RunDiff& diff,
                  RanksCompared& seen) {
  ++seen.ranks;
  if (seen.steps.empty()) seen.steps = other_steps(pair);
  if (seen.lone_losses.empty()) seen.lone_losses = lone_losses(pair);
  if (const auto loss = first_loss(pair, tolerance.loss)) {
    ++seen.with_other_losses;
    if (!diff.loss || loss->step < diff.loss->step) diff.loss = loss;
  }
  const auto plan = first_plan(pair);
  if (plan && (!diff.plans_differ_at || *plan < *diff.plans_differ_at)) diff.plans_differ_at = plan;
  const double ratio = peak_ratio(pair, tolerance);
  if (std::fabs(ratio - 1) <= std::fabs(seen.peak_ratio - 1)) return;
  seen.peak_ratio = ratio;
  seen.peak_rank = pair.a.rank;
}

// Compares one pair at a time: the step index of a long run needs as much memory as its record.
RanksCompared compare_each_rank(const RunRecord& a, const RunRecord& b,
                                const DiffTolerance& tolerance, RunDiff& diff) {
  RanksCompared seen;
  auto other = b.ranks.begin();
  for (const RankRecord& rank : a.ranks) {
    while (other != b.ranks.end() && other->rank < rank.rank) ++other;
    if (other != b.ranks.end() && other->rank == rank.rank)
      compare_rank({rank, *other}, tolerance, diff, seen);
  }
  return seen;
}

void tell_differences(const RanksCompared& seen, const DiffTolerance& tolerance, RunDiff& diff) {
  Texts& out = diff.differences;
  if (!seen.steps.empty()) out.push_back(seen.steps);
  if (diff.loss)
    out.push_back(fmt::format("losses differ from step {} on (rank {} first; in {} of {} ranks)",
                              diff.loss->step, diff.loss->rank, seen.with_other_losses,
                              seen.ranks));
  if (!seen.lone_losses.empty()) out.push_back(seen.lone_losses);
  if (diff.time && (diff.time->low > 1 + tolerance.time || diff.time->high < 1 - tolerance.time))
    out.push_back(fmt::format("step times differ by {}", change_text(diff.time->ratio)));
  if (seen.peak_ratio != 1)
    out.push_back(fmt::format("peaks of memory differ by {} (rank {})",
                              change_text(seen.peak_ratio), seen.peak_rank));
}

// ---- Likely reasons.

// Returns whether a setting of Coxswain must not change losses. Memory plans keep them bitwise;
// settings of the record, the pages and the control path do not touch them.
bool leaves_losses(const std::string& key) {
  constexpr std::array<std::string_view, 5> kFamilies = {"run.", "http.", "control.", "memory.",
                                                         "stragglers."};
  // The last key sets the order of summation over ranks.
  constexpr std::array<std::string_view, 3> kNot = {"run.seed", "run.device",
                                                    "control.ranks_per_node"};
  const auto is_of = [&](std::string_view family) { return key.starts_with(family); };
  return std::ranges::any_of(kFamilies, is_of) && std::ranges::find(kNot, key) == kNot.end();
}

std::string event_text(const char* name, const std::optional<PlanEvent>& event) {
  if (!event) return fmt::format("{} has no further change of plan", name);
  std::string out = fmt::format("{} after step {}: {}", name, event->step,
                                event->changes.empty() ? "no change" : event->changes.front());
  if (event->changes.size() > 1) out += fmt::format(" and {} more", event->changes.size() - 1);
  return out;
}

std::string plans_text(const RunDiff& diff) {
  std::string out = "Plans differ";
  if (diff.plans_differ_at) out += fmt::format(" from step {} on", *diff.plans_differ_at);
  if (diff.plans)
    return fmt::format("{}: {}; {}.", out, event_text("A", diff.plans->a),
                       event_text("B", diff.plans->b));
  return fmt::format(
      "{}: the coordinator made different decisions, or the same decisions in different steps. "
      "Decisions depend on measured times, unless reduction.reproducible is set.",
      out);
}

void explain_settings(const RunDiff& diff, Texts& out) {
  const auto counts = [&](const std::string& key) { return !diff.loss || !leaves_losses(key); };
  const auto all = [](const std::string&) { return true; };
  const std::string keys = keys_text(diff.config, counts);
  if (!keys.empty()) out.push_back(fmt::format("The configuration differs: {}.", keys));
  if (!diff.environment.empty())
    out.push_back(fmt::format("The environment differs: {}.", keys_text(diff.environment, all)));
}

// Describes losses that no setting, environment or plan explains.
std::string unexplained_losses(const LossDifference& loss, std::int64_t first_step) {
  return loss.step == first_step
             ? "The first losses differ already: the initial weights or the order of the data "
               "(seeds) differ."
             : "Configuration, environment and plans are the same, and the first losses are equal: "
               "sums were taken in another order (nondeterminism). Use deterministic kernels and "
               "reduction.reproducible.";
}

bool may_plans_explain(const RunDiff& diff) {
  if (!diff.loss) return diff.plans_differ_at || diff.plans;
  return diff.plans_differ_at && *diff.plans_differ_at <= diff.loss->step;
}

Texts explanation_of(const RunDiff& diff, std::int64_t first_step, const Texts& ranks) {
  Texts out;
  explain_settings(diff, out);
  if (!ranks.empty())
    out.push_back("The ranks differ, and therefore shares of the batch and orders of sums.");
  if (may_plans_explain(diff)) out.push_back(plans_text(diff));
  if (out.empty() && diff.loss) out.push_back(unexplained_losses(*diff.loss, first_step));
  const std::string others = diff.loss ? keys_text(diff.config, leaves_losses) : std::string();
  if (!others.empty())
    out.push_back(fmt::format("Settings that must not change a loss differ too: {}.", others));
  if (out.empty())
    out.emplace_back(
        "Configuration, environment and plans are the same: check the findings of each run "
        "(cox analyze), for example for a slow rank or other programs on its machine.");
  return out;
}

// Compares the unpublished part: all ranks, the job's step times, plans, and reasons.
void compare_jobs(const RunRecord& a, const RunRecord& b, const DiffTolerance& tolerance,
                  RunDiff& diff) {
  Texts ranks;
  compare_ranks(a, b, ranks);
  diff.differences = ranks;
  const RanksCompared seen = compare_each_rank(a, b, tolerance, diff);
  diff.time = time_ratio(a, b, tolerance.warmup_steps);
  tell_differences(seen, tolerance, diff);
  diff.plans = plan_difference(a.plans, b.plans);
  if (diff.differences.empty()) return;
  const RowOfStep rows = rows_of(a.lowest());
  diff.explanation = explanation_of(diff, rows.empty() ? 0 : rows.begin()->first, ranks);
}

}  // namespace

RunDiff diff_of(const RunRecord& a, const RunRecord& b, const DiffTolerance& tolerance) {
  const RankRecord& low_a = a.lowest();
  const RankRecord& low_b = b.lowest();
  RunDiff diff;
  diff.name_a = low_a.info.name.empty() ? "A" : low_a.info.name;
  diff.name_b = low_b.info.name.empty() ? "B" : low_b.info.name;
  const Settings environment_a = settings_of(low_a.info.environment);
  const Settings environment_b = settings_of(low_b.info.environment);
  diff.environment = differences_of(environment_a, environment_b);
  diff.config = differences_of(settings_of(low_a.info.config), settings_of(low_b.info.config));
  const Side side_a(low_a, tolerance.warmup_steps);
  const Side side_b(low_b, tolerance.warmup_steps);
  diff.metrics = metrics_of(side_a, side_b);
  diff.first_divergence = first_difference(side_a.losses, side_b.losses);
  diff.is_identical = !side_a.losses.empty() && !diff.first_divergence;
  diff.published_notes = published_notes(diff, environment_a, environment_b);
  compare_jobs(a, b, tolerance, diff);
  for (const std::string& gap : a.gaps) diff.gaps.push_back(fmt::format("A: {}", gap));
  for (const std::string& gap : b.gaps) diff.gaps.push_back(fmt::format("B: {}", gap));
  return diff;
}

}  // namespace cox::diagnosis
