#include "metrics/analysis/findings/rule_input.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <exception>
#include <string>
#include <utility>

#include "coordinator/core/text.h"
#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr double kHighShare = 0.25;  // of wall time
constexpr double kMediumShare = 0.08;

Severity severity_of(double share) {
  if (share >= kHighShare) return Severity::high;
  return share >= kMediumShare ? Severity::medium : Severity::low;
}

// A finding without a cost counts by its severity: a leak ends a run, though it slows no step down.
double least_share(Severity severity) {
  if (severity == Severity::high) return kHighShare;
  return severity == Severity::medium ? kMediumShare : 0;
}

Finding failed_rule(const std::string& name, const std::string& why) {
  Finding f;
  f.code = "RULE.FAILED";
  f.severity = Severity::medium;
  f.title = "The rule '" + name + "' failed";
  f.detail = why;
  f.suggestion = "This is a fault of cox, not of the run: please report it with the run directory.";
  return f;
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
    out.push_back(is_sound(f)
                      ? std::move(f)
                      : failed_rule(rule.name, "It came to a number that cannot be in " + f.code));
}

double weight_of(const Finding& finding) {
  const double least = finding.cost_seconds ? 0 : least_share(finding.severity);
  return std::max(finding.cost_share, least);
}

double RuleInput::seconds_of(std::string_view line) const {
  const auto found = std::ranges::find(budget.lines, line, &BudgetLine::name);
  return found == budget.lines.end() ? 0 : found->seconds;
}

double RuleInput::phase_seconds(std::string_view name) const {
  ExactSum sum;
  for (std::size_t r = 0; r < view.ranks.size(); ++r) {
    for (const double v : view.column(r, rank(r).phases, name)) sum.add(is_absent(v) ? 0 : v);
  }
  return sum.value() / static_cast<double>(view.ranks.size());
}

std::optional<double> RuleInput::setting(std::string_view key) const {
  const std::vector<RunSetting>& config = view.run->lowest().info.config;
  const auto found = std::ranges::find(config, key, &RunSetting::key);
  if (found == config.end()) return std::nullopt;
  const char* end = found->json.data() + found->json.size();
  double value = 0;
  const auto read = std::from_chars(found->json.data(), end, value);
  return read.ec == std::errc() && read.ptr == end ? std::optional(value) : std::nullopt;
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
    finding.title += concat(" on ", ranks_named(input.view, ranks), " of ", all);
}

std::vector<double> present(std::vector<double> values) {
  std::erase_if(values, is_absent);
  return values;
}

std::string percents(double fraction) {
  return percent_text(fraction, fraction < 0.1 ? 1 : 0);
}

}  // namespace cox::diagnosis
