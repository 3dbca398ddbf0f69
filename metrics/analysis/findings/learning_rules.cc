#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/analysis/findings/rule_input.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

// ---- Learning.

// Steps of a rank with a non-finite loss. Steps that a loss scaler skipped are normal and do not
// count. A step skipped without a loss scaler changed no weights: one or two in a row are a bad
// batch; more mean that the run stopped learning.
struct BadLosses {
  std::size_t first = 0;
  std::size_t steps = 0;
};

std::optional<BadLosses> bad_losses(const RuleInput& input, std::size_t r) {
  constexpr std::size_t kLasting = 3;
  const std::vector<double> loss = input.scalar(r, "loss");
  const std::vector<double> skipped = input.own(r, "skipped");
  const std::vector<double> scale = input.own(r, "loss_scale");
  const auto is_bad = [&](std::size_t s) {
    const bool is_scalers = skipped[s] == 1 && scale[s] > 0;
    return !is_absent(loss[s]) && !std::isfinite(loss[s]) && !is_scalers;
  };
  BadLosses out;
  for (std::size_t begin = 0; begin < loss.size(); ++begin) {
    std::size_t end = begin;
    bool is_applied = false;
    for (; end < loss.size() && is_bad(end); ++end) is_applied |= skipped[end] != 1;
    if (is_applied || end - begin >= kLasting) {
      if (out.steps == 0) out.first = begin;
      out.steps += end - begin;
    }
    begin = end;
  }
  return out.steps > 0 ? std::optional(out) : std::nullopt;
}

void diverging(const RuleInput& input, Findings& out) {
  const auto found = concerned<BadLosses>(
      input, bad_losses, [](const BadLosses& a, const BadLosses& b) { return a.first < b.first; });
  if (found.ranks.empty()) return;
  const BadLosses& worst = found.of_worst;
  const std::int64_t first = input.view.steps[worst.first];
  Finding f =
      costly(input, "CONVERGENCE.DIVERGED", "The loss is not finite",
             input.budget.wall_seconds * static_cast<double>(input.view.size() - worst.first) /
                 static_cast<double>(input.view.size()));
  f.severity = Severity::high;
  f.ends_run = true;
  f.detail = fmt::format(
      "From step {} on {} steps have a loss that is not finite; training after that step is lost.",
      first, worst.steps);
  f.suggestion =
      "Resume from a save before that step with a lower learning rate or clipped gradients, and "
      "check the batch of that step.";
  f.evidence = {{"first_step", static_cast<double>(first)},
                {"steps", static_cast<double>(worst.steps)}};
  name_ranks(input, found.ranks, f);
  out.push_back(std::move(f));
}

// The change of a loss from the first to the last tenth, with its standard error.
struct LossChange {
  double first = 0;  // medians of the tenths
  double last = 0;
  double error = 0;  // standard error of the difference
  double drop() const { return first - last; }
  double least() const { return 0.02 * (std::fabs(first) > 0 ? std::fabs(first) : 1); }
  bool is_worse() const { return drop() < -least() && drop() < -3 * error; }
  bool is_flat() const { return std::fabs(drop()) <= least() && drop() <= 5 * error; }
};

// Returns nullopt for fewer than 50 losses, or if a loss is not finite, which another rule reports.
std::optional<LossChange> change_of(std::vector<double> losses) {
  const std::vector<double> loss = present(std::move(losses));
  const bool is_finite = std::ranges::all_of(loss, [](double v) { return std::isfinite(v); });
  if (!is_finite || loss.size() < 50) return std::nullopt;
  const EndMedians ends = end_medians(loss);
  std::vector<double> moves;
  for (std::size_t i = 1; i < loss.size(); ++i) moves.push_back(loss[i] - loss[i - 1]);
  const double noise = robust_deviation(moves) / std::sqrt(2.0);
  const double error = 1.7725 * noise / std::sqrt(static_cast<double>(loss.size() / 10));
  return LossChange{ends.first, ends.last, error};
}

// Returns a scalar for each step: the mean over the ranks with a finite value, else any rank's
// value.
std::vector<double> mean_scalar(const RuleInput& input, std::string_view name) {
  if (input.view.ranks.size() == 1) return input.scalar(0, name);
  std::vector<double> out(input.view.size(), absent());
  std::vector<double> ranks(input.view.size(), 0);
  for (std::size_t r = 0; r < input.view.ranks.size(); ++r) {
    const std::vector<double> values = input.scalar(r, name);
    for (std::size_t s = 0; s < out.size(); ++s) {
      if (std::isfinite(values[s])) out[s] = (ranks[s]++ > 0 ? out[s] : 0) + values[s];
      if (ranks[s] == 0 && !is_absent(values[s])) out[s] = values[s];
    }
  }
  for (std::size_t s = 0; s < out.size(); ++s) {
    if (ranks[s] > 0) out[s] /= ranks[s];
  }
  return out;
}

// Returns the deviations that no rank of so many exceeds by chance, except in one of 1 /
// kFalseAlarms runs.
double bound_for(std::size_t ranks) {
  return std::sqrt(2 * std::log(static_cast<double>(ranks) / kFalseAlarms));
}

Finding no_progress(const LossChange& change, const std::string& whose) {
  const bool is_worse = change.is_worse();
  Finding f{"CONVERGENCE.NO_PROGRESS", is_worse ? Severity::high : Severity::low,
            is_worse ? "The loss rises" : "The loss no longer falls"};
  f.detail = fmt::format("The loss{} goes from {} to {} (medians of the first and last tenth).",
                         whose, significant(change.first, 4), significant(change.last, 4));
  f.suggestion = is_worse ? "Lower the learning rate, or warm it up for longer."
                          : "Lower the learning rate by schedule, or stop: further steps will "
                            "improve this run little.";
  f.evidence = {{"drop", change.drop()}, {"standard_error", change.error}};
  return f;
}

// Finds ranks whose losses, each on the rank's own samples, fall less than the job's loss. The
// difference must exceed chance for this number of ranks.
Concerned<LossChange> left_behind(const RuleInput& input, const LossChange& of_all) {
  const double bound = bound_for(input.view.ranks.size());
  const auto change_behind = [&](const RuleInput&, std::size_t r) {
    const auto change = change_of(input.scalar(r, "loss"));
    if (!change || !(change->is_worse() || change->is_flat())) return std::optional<LossChange>();
    const double error = std::hypot(change->error, of_all.error);
    const bool is_behind = of_all.drop() - change->drop() > std::max(of_all.least(), bound * error);
    return is_behind ? change : std::nullopt;
  };
  return concerned<LossChange>(input, change_behind, [](const LossChange& a, const LossChange& b) {
    return a.drop() < b.drop();
  });
}

void flat_loss(const RuleInput& input, Findings& out) {
  const auto of_all = change_of(mean_scalar(input, "loss"));
  if (!of_all) return;
  if (of_all->is_worse() || of_all->is_flat()) {
    out.push_back(no_progress(*of_all, ""));
    return;
  }
  const auto behind = left_behind(input, *of_all);
  if (behind.ranks.empty()) return;
  Finding f = no_progress(behind.of_worst, fmt::format(" of {}", behind.worst_named(input)));
  f.detail += fmt::format(" The loss of all ranks together goes from {} to {}.",
                          significant(of_all->first, 4), significant(of_all->last, 4));
  f.suggestion = "Check the samples of these ranks: their shard, its labels, how they are decoded.";
  name_ranks(input, behind.ranks, f);
  out.push_back(std::move(f));
}

// Returns the steps, ascending, whose value exceeds the 24 values before them by `deviations`
// deviations and by a fifth.
std::vector<std::size_t> far_spikes(const std::vector<double>& values, double deviations) {
  constexpr std::size_t kWindow = 24;
  std::vector<std::size_t> out;
  std::vector<double> window;
  const auto is_far_below = [&values](std::size_t i) {
    return [v = values[i]](double w) { return w + 0.2 * std::fabs(w) < v; };
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    // A cheap test that rarely holds: half of the window must be a fifth below the value.
    const auto below = static_cast<std::size_t>(std::ranges::count_if(window, is_far_below(i)));
    if (window.size() >= kLeastSteps && 2 * below >= window.size()) {
      const double middle = median_of(window);
      const double far = std::max(deviations * robust_deviation(window), 0.2 * std::fabs(middle));
      if (values[i] > middle + far && values[i] > middle) out.push_back(i);
    }
    window.push_back(values[i]);
    if (window.size() > kWindow) window.erase(window.begin());
  }
  return out;
}

using StepSet = std::set<std::size_t>;

// The loss or the gradients must take part: a slow step with a large allocation is no instability.
StepSet jumps(const std::vector<std::size_t>& loss, const StepSet& norm,
              const std::vector<std::size_t>& time) {
  StepSet out;
  for (const std::size_t s : loss) {
    if (norm.contains(s) || std::ranges::binary_search(time, s)) out.insert(s);
  }
  for (const std::size_t s : time) {
    if (norm.contains(s)) out.insert(s);
  }
  return out;
}

std::vector<double> mean_work(const RunView& view) {
  std::vector<double> out(view.size(), 0);
  for (const RankView& rank : view.ranks) {
    for (std::size_t s = 0; s < out.size(); ++s) out[s] += static_cast<double>(rank.work[s]);
  }
  for (double& value : out) value /= static_cast<double>(view.ranks.size());
  return out;
}

// Returns the steps in which several figures of the job, or of a rank, jump. With many ranks, some
// figure jumps by chance in many steps. For heavy-tailed noise (Student's t, three degrees of
// freedom), the number of such steps falls with the cube of the limit. So the cube root of the
// number of ranks scales the limit: all ranks together add a quarter of the job's own chance jumps.
StepSet jumps_of_any(const RuleInput& input) {
  constexpr double kDeviations = 8;
  const auto norms = far_spikes(mean_scalar(input, "grad_norm"), kDeviations);
  StepSet norm(norms.begin(), norms.end());
  StepSet out = jumps(far_spikes(mean_scalar(input, "loss"), kDeviations), norm,
                      far_spikes(mean_work(input.view), kDeviations));
  const std::size_t ranks = input.view.ranks.size();
  if (ranks < 2) return out;
  const double of_rank = kDeviations * std::cbrt(4 * static_cast<double>(ranks));
  for (std::size_t r = 0; r < ranks; ++r) {
    const std::vector<float>& work = input.view.ranks[r].work;
    StepSet own = norm;
    for (const std::size_t s : far_spikes(input.scalar(r, "grad_norm"), of_rank)) own.insert(s);
    out.merge(jumps(far_spikes(input.scalar(r, "loss"), of_rank), own,
                    far_spikes({work.begin(), work.end()}, of_rank)));
  }
  return out;
}

void unstable(const RuleInput& input, Findings& out) {
  std::vector<std::size_t> events;
  for (const std::size_t s : jumps_of_any(input)) {
    if (events.empty() || s - events.back() > 5) events.push_back(s);
  }
  if (events.empty()) return;
  Finding f{
      "CROSS.CORRELATED_INSTABILITY", Severity::high,
      fmt::format("Loss and gradients jump together at step {}", input.view.steps[events.front()])};
  f.detail = fmt::format(
      "{}{} in which several of loss, gradient norm and step time jump at once; the first at step "
      "{}.",
      events.size(), events.size() == 1 ? " event" : " events", input.view.steps[events.front()]);
  f.suggestion = "Check the batch and the learning rate of that step; clip gradients.";
  f.evidence = {{"events", static_cast<double>(events.size())},
                {"first_step", static_cast<double>(input.view.steps[events.front()])}};
  out.push_back(std::move(f));
}

constexpr std::array<NamedRule, 3> kLearningRules = {
    {{"diverging", diverging}, {"flat loss", flat_loss}, {"unstable", unstable}}};

}  // namespace

bool has_diverged(const RuleInput& input) {
  for (std::size_t r = 0; r < input.view.ranks.size(); ++r) {
    if (bad_losses(input, r)) return true;
  }
  return false;
}

std::span<const NamedRule> learning_rules() {
  return kLearningRules;
}

}  // namespace cox::diagnosis
