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
#include "coordinator/diagnosis/rule_room.h"
#include "coordinator/diagnosis/statistics.h"

namespace cox::diagnosis {
namespace {

// ---- Learning.

// Steps of a rank whose loss is not finite, without those that a loss scaler skipped: they are its
// normal work. A step that was skipped with no loss scaler at work changed no weights, so one or
// two in a row are a bad batch; more are a run that learns no more.
struct BadLosses {
  std::size_t first = 0;
  std::size_t steps = 0;
};

std::optional<BadLosses> bad_losses(const RuleRoom& room, std::size_t r) {
  constexpr std::size_t kLasting = 3;
  const std::vector<double> loss = room.scalar(r, "loss");
  const std::vector<double> skipped = room.own(r, "skipped");
  const std::vector<double> scale = room.own(r, "loss_scale");
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

void diverging(const RuleRoom& room, Findings& out) {
  const auto found = concerned<BadLosses>(
      room, bad_losses, [](const BadLosses& a, const BadLosses& b) { return a.first < b.first; });
  if (found.ranks.empty()) return;
  const BadLosses& worst = found.of_worst;
  const std::int64_t first = room.view.steps[worst.first];
  Finding f =
      costly(room, "CONVERGENCE.DIVERGED", "The loss is not finite",
             room.budget.wall_seconds * static_cast<double>(room.view.size() - worst.first) /
                 static_cast<double>(room.view.size()));
  f.severity = Severity::high;
  f.ends_run = true;
  f.detail = concat("From step ", first, " on ", worst.steps,
                    " steps have a loss that is not finite; what follows is lost.");
  f.suggestion =
      "Resume from a save before that step with a lower learning rate or clipped gradients, and "
      "look at the batch of that step.";
  f.evidence = {{"first_step", static_cast<double>(first)},
                {"steps", static_cast<double>(worst.steps)}};
  name_ranks(room, found.ranks, f);
  out.push_back(std::move(f));
}

// The change of the loss from the first to the last tenth, and how sure it is.
void flat_loss(const RuleRoom& room, Findings& out) {
  std::vector<double> loss = present(room.scalar(0, "loss"));
  const bool is_finite = std::ranges::all_of(loss, [](double v) { return std::isfinite(v); });
  if (!is_finite || loss.size() < 50) return;
  const EndMedians ends = end_medians(loss);
  std::vector<double> moves;
  for (std::size_t i = 1; i < loss.size(); ++i) moves.push_back(loss[i] - loss[i - 1]);
  const double noise = robust_deviation(moves) / std::sqrt(2.0);
  const double error = 1.7725 * noise / std::sqrt(static_cast<double>(loss.size() / 10));
  const double drop = ends.first - ends.last;
  const double scale = std::fabs(ends.first) > 0 ? std::fabs(ends.first) : 1;
  const bool is_worse = drop < -0.02 * scale && drop < -3 * error;
  const bool is_better = drop > 0.02 * scale || drop > 5 * error;
  if (is_better || (!is_worse && drop < -0.02 * scale)) return;
  Finding f;
  f.code = "CONVERGENCE.NO_PROGRESS";
  f.severity = is_worse ? Severity::high : Severity::low;
  f.title = is_worse ? "The loss rises" : "The loss no longer falls";
  f.detail = concat("The loss goes from ", significant(ends.first, 4), " to ",
                    significant(ends.last, 4), " (medians of the first and last tenth).");
  f.suggestion =
      is_worse ? "Lower the learning rate, or warm it up for longer."
               : "Lower the learning rate by schedule, or stop: this run has learnt what it will.";
  f.evidence = {{"drop", drop}, {"standard_error", error}};
  out.push_back(std::move(f));
}

// Indexes that stick out above the 24 values before them by eight deviations and a fifth.
std::set<std::size_t> far_spikes(const std::vector<double>& values) {
  constexpr std::size_t kWindow = 24;
  std::set<std::size_t> out;
  std::vector<double> window;
  const auto is_far_below = [&values](std::size_t i) {
    return [v = values[i]](double w) { return w + 0.2 * std::fabs(w) < v; };
  };
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) continue;
    // Cheap, and rarely true: half of the window must be a fifth below the value.
    const auto below = static_cast<std::size_t>(std::ranges::count_if(window, is_far_below(i)));
    if (window.size() >= kLeastSteps && 2 * below >= window.size()) {
      const double middle = median_of(window);
      const double far = std::max(8 * robust_deviation(window), 0.2 * std::fabs(middle));
      if (values[i] > middle + far && values[i] > middle) out.insert(i);
    }
    window.push_back(values[i]);
    if (window.size() > kWindow) window.erase(window.begin());
  }
  return out;
}

void unstable(const RuleRoom& room, Findings& out) {
  const std::set<std::size_t> loss = far_spikes(room.scalar(0, "loss"));
  const std::set<std::size_t> norm = far_spikes(room.scalar(0, "grad_norm"));
  std::vector<double> work(room.view.ranks[0].work.begin(), room.view.ranks[0].work.end());
  const std::set<std::size_t> time = far_spikes(work);
  std::vector<std::size_t> events;
  for (std::size_t s = 0; s < room.view.size(); ++s) {
    // Learning must take part: a slow step with a large allocation is no instability.
    const bool is_both = loss.contains(s) && norm.contains(s);
    const bool is_one = (loss.contains(s) || norm.contains(s)) && time.contains(s);
    if ((is_both || is_one) && (events.empty() || s - events.back() > 5)) events.push_back(s);
  }
  if (events.empty()) return;
  Finding f;
  f.code = "CROSS.CORRELATED_INSTABILITY";
  f.severity = Severity::high;
  f.title = concat("Loss and gradients jump together at step ", room.view.steps[events.front()]);
  f.detail = concat(events.size(), events.size() == 1 ? " event" : " events",
                    " in which several of loss, gradient norm and step time stick out at once; the "
                    "first at step ",
                    room.view.steps[events.front()], ".");
  f.suggestion = "Look at the batch and the learning rate of that step; clip gradients.";
  f.evidence = {{"events", static_cast<double>(events.size())},
                {"first_step", static_cast<double>(room.view.steps[events.front()])}};
  out.push_back(std::move(f));
}

constexpr std::array<NamedRule, 3> kLearningRules = {
    {{"diverging", diverging}, {"flat loss", flat_loss}, {"unstable", unstable}}};

}  // namespace

bool has_diverged(const RuleRoom& room) {
  for (std::size_t r = 0; r < room.view.ranks.size(); ++r) {
    if (bad_losses(room, r)) return true;
  }
  return false;
}

std::span<const NamedRule> learning_rules() {
  return kLearningRules;
}

}  // namespace cox::diagnosis
