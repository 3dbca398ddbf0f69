// What our own rules share: the view of a run as they ask for it, and how a finding says what it
// costs. A rule adds its findings to a list; own_findings() runs them all. Pure; any thread.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/diagnosis/finding.h"
#include "coordinator/diagnosis/own_rules.h"

namespace cox::diagnosis {

using Findings = std::vector<Finding>;

// What all rules look at.
class RuleRoom {
 public:
  explicit RuleRoom(const OwnInput& input)
      : view(*input.view), budget(*input.budget), trace(input.trace), pipeline(input.pipeline) {}

  const RunView& view;
  const Budget& budget;
  const std::optional<KernelTrace>& trace;
  const std::optional<Pipeline>& pipeline;

  const RankRecord& rank(std::size_t r) const { return view.run->ranks[r]; }
  double seconds_of(std::string_view line) const;  // of the budget
  double share(double seconds) const {
    return budget.wall_seconds > 0 ? seconds / budget.wall_seconds : 0;
  }
  // Seconds in a phase, mean over the ranks.
  double phase_seconds(std::string_view name) const;
  std::vector<double> own(std::size_t r, std::string_view name) const {
    return view.column(r, rank(r).own, name);
  }
  std::vector<double> scalar(std::size_t r, std::string_view name) const {
    return view.column(r, rank(r).scalars, name);
  }
  std::vector<double> memory(std::size_t r, std::string_view name) const {
    return view.column(r, rank(r).memory, name);
  }
};

// Returns a finding whose severity follows from what it costs.
Finding costly(const RuleRoom& room, std::string code, std::string title, double seconds);

std::vector<double> present(std::vector<double> values);
std::string percents(double fraction);

struct NamedRule {
  const char* name;
  void (*rule)(const RuleRoom&, Findings&);
};
// Adds what the rule finds; one that throws, or comes to a number that cannot be, is told instead.
void apply(const NamedRule& rule, const RuleRoom& room, Findings& out);

std::span<const NamedRule> time_rules();      // where the time of the ranks went
std::span<const NamedRule> learning_rules();  // loss and gradients
std::span<const NamedRule> resource_rules();  // memory, plans, precision, the record itself

}  // namespace cox::diagnosis
