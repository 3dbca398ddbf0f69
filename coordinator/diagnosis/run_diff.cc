#include "coordinator/diagnosis/run_diff.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/diagnosis/figures.h"
#include "coordinator/diagnosis/statistics.h"

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

// The figures of one run that the published comparison shows.
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
    add_once(notes, "'" + name +
                        "' let cuDNN choose kernels by timing (cudnn.benchmark), which may "
                        "differ from run to run.");
  if (!environment.contains("env.PYTHONHASHSEED"))
    add_once(notes, "'" + name + "' ran without PYTHONHASHSEED, so orders of hashing may differ.");
}

std::vector<std::string> published_notes(const RunDiff& diff, const Settings& environment_a,
                                         const Settings& environment_b) {
  if (diff.is_identical && diff.environment.empty() && diff.config.empty())
    return {"Environment, configuration and the losses of all steps are equal."};
  std::vector<std::string> notes;
  const auto all = [](const std::string&) { return true; };
  const std::string numerics = keys_text(diff.environment, concerns_numerics);
  if (!diff.config.empty()) {
    notes.push_back("The configuration differs in " + keys_text(diff.config, all) +
                    ", which explains other outcomes.");
  } else if (!numerics.empty()) {
    notes.push_back("The environment differs in " + numerics + ", which can change numbers.");
  } else if (!diff.is_identical) {
    notes.emplace_back(
        "Configuration and environment are equal and the losses are not: something is not "
        "deterministic (seeds, kernels, the order of sums or of data).");
  }
  note_switches(environment_a, diff.name_a, notes);
  note_switches(environment_b, diff.name_b, notes);
  if (diff.first_divergence && !diff.is_identical)
    add_once(notes, concat("The losses differ from step ", *diff.first_divergence, " on."));
  return notes;
}

// ---- What is not published.

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

// The first step in which both ranks have the quantity and it differs.
std::optional<LossDifference> first_loss(const RankRecord& a, const RankRecord& b,
                                         double tolerance) {
  const RowOfStep rows_b = rows_of(b);
  const std::vector<double> loss_a = values_of(a.scalars, "loss", a.size());
  const std::vector<double> loss_b = values_of(b.scalars, "loss", b.size());
  for (const auto& [step, row] : rows_of(a)) {
    const auto other = rows_b.find(step);
    if (other == rows_b.end() || !differ(loss_a[row], loss_b[other->second], tolerance)) continue;
    return LossDifference{step,
                          a.rank,
                          loss_a[row],
                          loss_b[other->second],
                          value_at(values_of(a.own, "plan", a.size()), row),
                          value_at(values_of(b.own, "plan", b.size()), other->second)};
  }
  return std::nullopt;
}

std::optional<std::int64_t> first_plan(const RankRecord& a, const RankRecord& b) {
  const RowOfStep rows_b = rows_of(b);
  for (const char* name : {"plan", "recomputed_blocks", "offloaded_blocks", "tiled_blocks"}) {
    const std::vector<double> plan_a = values_of(a.own, name, a.size());
    const std::vector<double> plan_b = values_of(b.own, name, b.size());
    for (const auto& [step, row] : rows_of(a)) {
      const auto other = rows_b.find(step);
      if (other != rows_b.end() && differ(plan_a[row], plan_b[other->second], 0)) return step;
    }
  }
  return std::nullopt;
}

// A small generator whose numbers are the same everywhere (Steele, Lea and Flood, 2014).
class SplitMix {
 public:
  explicit SplitMix(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t limit) {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return static_cast<std::size_t>((z ^ (z >> 31)) % limit);
  }

 private:
  std::uint64_t state_;
};

std::vector<double> stretch_means(const RankRecord& rank, std::size_t first) {
  const std::vector<double> times = row_sums(rank.phases, rank.size(), first);
  std::vector<double> out;
  const std::size_t stretches = std::min(kStretches, times.size());
  for (std::size_t k = 0; k < stretches; ++k) {
    const std::size_t begin = k * times.size() / stretches;
    const std::size_t end = (k + 1) * times.size() / stretches;
    out.push_back(mean_of(std::span(times).subspan(begin, end - begin)));
  }
  return out;
}

double resampled_mean(const std::vector<double>& values, SplitMix& random) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[random.below(values.size())];
  return sum / static_cast<double>(values.size());
}

std::optional<TimeRatio> time_ratio(const RankRecord& a, const RankRecord& b, std::size_t first) {
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

void judge(RunDiff& diff, const Side& a, const Side& b, const DiffTolerance& tolerance) {
  if (diff.loss)
    diff.differences.push_back(
        concat("losses differ from step ", diff.loss->step, " on (rank ", diff.loss->rank, ")"));
  if (a.timing.steps != b.timing.steps)
    diff.differences.push_back(
        concat("one run has ", a.timing.steps, " steps, the other ", b.timing.steps));
  if (diff.time && (diff.time->low > 1 + tolerance.time || diff.time->high < 1 - tolerance.time))
    diff.differences.push_back("step times differ by " + change_text(diff.time->ratio));
  const double peak_a = a.memory.peak_alloc_bytes;
  const double peak_b = b.memory.peak_alloc_bytes;
  if (a.memory.is_there && b.memory.is_there && differ(peak_a, peak_b, tolerance.memory))
    diff.differences.push_back("peaks of memory differ by " + change_text(peak_b / peak_a));
}

void explain(RunDiff& diff, std::int64_t first_step) {
  if (diff.differences.empty()) return;
  const auto all = [](const std::string&) { return true; };
  if (!diff.config.empty())
    diff.explanation.push_back("The configuration differs: " + keys_text(diff.config, all) + ".");
  if (!diff.environment.empty())
    diff.explanation.push_back("The environment differs: " + keys_text(diff.environment, all) +
                               ".");
  const bool is_plan_first =
      diff.plans_differ_at && (!diff.loss || *diff.plans_differ_at <= diff.loss->step);
  if (is_plan_first)
    diff.explanation.push_back(
        concat("Plans differ from step ", *diff.plans_differ_at,
               " on: the coordinator decided differently. Decisions follow measured times, unless "
               "reduction.reproducible is set."));
  if (!diff.explanation.empty() || !diff.loss) return;
  diff.explanation.push_back(
      diff.loss->step == first_step
          ? "The first losses differ already: other initial weights or another order of the data "
            "(seeds), for nothing was computed before."
          : "Configuration, environment and plans are the same, and the first losses are equal: "
            "sums were taken in another order (nondeterminism). Use deterministic kernels and "
            "reduction.reproducible.");
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
  for (std::size_t r = 0; r < std::min(a.ranks.size(), b.ranks.size()); ++r) {
    auto loss = first_loss(a.ranks[r], b.ranks[r], tolerance.loss);
    if (loss && (!diff.loss || loss->step < diff.loss->step)) diff.loss = loss;
  }
  diff.plans_differ_at = first_plan(low_a, low_b);
  diff.time = time_ratio(low_a, low_b, tolerance.warmup_steps);
  judge(diff, side_a, side_b, tolerance);
  const std::vector<double> steps = low_a.steps.values();
  explain(diff, steps.empty() ? 0 : static_cast<std::int64_t>(steps.front()));
  return diff;
}

}  // namespace cox::diagnosis
