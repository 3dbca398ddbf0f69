#include "metrics/analysis/findings/rule_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <numeric>
#include <string>
#include <utility>

#include "coordinator/core/text.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr double kHighShare = 0.25;  // shares of wall time
constexpr double kMediumShare = 0.08;

Severity severity_of(double share) {
  if (share >= kHighShare) return Severity::high;
  return share >= kMediumShare ? Severity::medium : Severity::low;
}

// Returns the share by which a finding without a cost sorts. A leak ends a run, though no step gets
// slower.
double least_share(Severity severity) {
  if (severity == Severity::high) return kHighShare;
  return severity == Severity::medium ? kMediumShare : 0;
}

Finding failed_rule(const std::string& name, const std::string& why) {
  return {"RULE.FAILED", Severity::medium, fmt::format("The rule '{}' failed", name), why,
          "This is a fault of cox, not of the run: please report it with the run directory."};
}

bool is_sound(const Finding& f) {
  const bool is_cost_sound = !f.cost_seconds || (std::isfinite(*f.cost_seconds) &&
                                                 *f.cost_seconds >= 0 && f.cost_share <= 1 + 1e-6);
  return is_cost_sound &&
         std::ranges::all_of(f.evidence, [](const Evidence& e) { return std::isfinite(e.value); });
}

}  // namespace

void apply(const NamedRule& rule, const RuleInput& input, Findings& out) {
  Findings found;
  try {
    rule.rule(input, found);
  } catch (const std::exception& error) {
    found = {failed_rule(rule.name, error.what())};
  }
  for (Finding& f : found)
    out.push_back(
        is_sound(f)
            ? std::move(f)
            : failed_rule(rule.name,
                          fmt::format("The rule computed an impossible number in {}", f.code)));
}

double weight_of(const Finding& finding) {
  const double least = finding.cost_seconds ? 0 : least_share(finding.severity);
  return std::max(finding.cost_share, least);
}

void CountedTime::add(const Finding& finding, StepSeconds of_steps) {
  of_codes_[finding.code] = std::move(of_steps);
}

const StepSeconds* CountedTime::of(std::string_view code) const {
  const auto found = of_codes_.find(code);
  return found == of_codes_.end() ? nullptr : &found->second;
}

double CountedTime::in_step(std::size_t step) const {
  double sum = 0;
  for (const auto& [code, steps] : of_codes_) sum += steps[step];
  return sum;
}

void count_rest(const RuleInput& input, std::initializer_list<std::string_view> codes, Finding& f,
                StepSeconds of_steps) {
  bool is_less = false;
  for (std::size_t s = 0; s < of_steps.size(); ++s) {
    double left = of_steps[s];
    for (const std::string_view code : codes) {
      if (const StepSeconds* const told = input.counted.of(code)) left -= (*told)[s];
    }
    left = std::max(0.0, std::min(left, input.view.wall(s) - input.counted.in_step(s)));
    is_less = is_less || left < of_steps[s];
    of_steps[s] = left;
  }
  if (is_less) {
    const double left = sum_of(of_steps);
    f.cost_seconds = left > 0 ? std::optional(left) : std::nullopt;
    f.cost_share = input.share(left);
  }
  input.counted.add(f, std::move(of_steps));
}

double sum_of(const StepSeconds& steps) {
  return std::accumulate(steps.begin(), steps.end(), 0.0);
}

StepSeconds mean_of_steps(const RunView& view,
                          double (RunView::*seconds)(std::size_t, std::size_t) const) {
  StepSeconds out(view.size(), 0);
  for (std::size_t r = 0; r < view.ranks.size(); ++r) {
    for (std::size_t s = 0; s < out.size(); ++s)
      out[s] += (view.*seconds)(r, s) / static_cast<double>(view.ranks.size());
  }
  return out;
}

double RuleInput::seconds_of(std::string_view line) const {
  const auto found = std::ranges::find(budget.lines, line, &BudgetLine::name);
  return found == budget.lines.end() ? 0 : found->seconds;
}

std::vector<std::size_t> RuleInput::ranks_without(const Ranks& without) const {
  std::vector<std::size_t> out;
  const bool is_all = without.size() == view.ranks.size();
  for (std::size_t r = 0; r < view.ranks.size(); ++r) {
    if (is_all || !without.contains(r)) out.push_back(r);
  }
  return out;
}

double RuleInput::phase_seconds(std::string_view name, const Ranks& without) const {
  ExactSum sum;
  const std::vector<std::size_t> ranks = ranks_without(without);
  for (const std::size_t r : ranks) {
    for (const double v : view.column(r, rank(r).phases, name)) sum.add(is_absent(v) ? 0 : v);
  }
  return sum.value() / static_cast<double>(ranks.size());
}

StepSeconds RuleInput::phase_of_steps(std::string_view name, const Ranks& without) const {
  StepSeconds out(view.size(), 0);
  const std::vector<std::size_t> ranks = ranks_without(without);
  for (const std::size_t r : ranks) {
    const std::vector<double> values = view.column(r, rank(r).phases, name);
    for (std::size_t s = 0; s < out.size(); ++s)
      out[s] += is_absent(values[s]) ? 0 : values[s] / static_cast<double>(ranks.size());
  }
  return out;
}

Finding costly(const RuleInput& input, std::string code, std::string title, double seconds) {
  Finding out;
  out.code = std::move(code);
  out.title = std::move(title);
  out.cost_seconds = seconds;
  out.cost_share = input.share(seconds);
  out.severity = severity_of(out.cost_share);
  return out;
}

std::string ranks_named(const RunView& view, const Ranks& ranks) {
  std::vector<std::size_t> numbers;
  for (const std::size_t r : ranks)
    numbers.push_back(static_cast<std::size_t>(view.run->ranks[r].rank));
  return ranks_text(numbers, view.ranks.size());
}

void name_ranks(const RuleInput& input, const Ranks& ranks, Finding& finding) {
  for (const std::size_t r : ranks) finding.ranks.push_back(input.rank(r).rank);
  const std::size_t all = input.view.ranks.size();
  if (ranks.size() < all)
    finding.title += fmt::format(" on {} of {}", ranks_named(input.view, ranks), all);
}

std::string percents(double fraction) {
  return percent_text(fraction, fraction < 0.1 ? 1 : 0);
}

}  // namespace cox::diagnosis
