// The shared input and helpers of our own rules: the view of a run, and the cost of a finding. A
// rule appends its findings to a list; own_findings() runs all rules. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/analysis/findings/figures.h"
#include "metrics/analysis/findings/finding.h"
#include "metrics/analysis/findings/run_view.h"

namespace cox::diagnosis {

using Findings = std::vector<Finding>;
using Ranks = std::set<std::size_t>;  // indexes in the view

struct MemorySaving;  // memory_rules.cc
struct RankDelays;    // time_rules.cc

using StepSeconds = std::vector<double>;  // [step] of the view

// CountedTime accumulates the seconds of each step that findings have counted, so that no second
// counts twice. A non-finite loss and a pipeline's schedule are excluded: the loss costs all later
// time, and the schedule has its own clock.
class CountedTime {
 public:
  void add(const Finding& finding, StepSeconds of_steps);
  // Returns the seconds that the finding `code` counts; null without such a finding.
  const StepSeconds* of(std::string_view code) const;
  double in_step(std::size_t step) const;
  bool has_any() const { return !of_codes_.empty(); }

 private:
  std::map<std::string, StepSeconds, std::less<>> of_codes_;
};

// The input of all rules. One thread per object.
class RuleInput {
 public:
  RuleInput(const RunView& run_view, const Budget& run_budget,
            const std::optional<KernelTrace>& kernel_trace,
            const std::optional<Pipeline>& run_pipeline)
      : view(run_view), budget(run_budget), trace(kernel_trace), pipeline(run_pipeline) {}

  const RunView& view;
  const Budget& budget;
  const std::optional<KernelTrace>& trace;
  const std::optional<Pipeline>& pipeline;

  const RankRecord& rank(std::size_t r) const { return view.run->ranks[r]; }
  double seconds_of(std::string_view line) const;  // a line of the budget
  double share(double seconds) const {
    return budget.wall_seconds > 0 ? seconds / budget.wall_seconds : 0;
  }
  // Returns the seconds in a phase, mean over the ranks not in `without`; over all ranks if none
  // remains.
  double phase_seconds(std::string_view name, const Ranks& without = {}) const;
  StepSeconds phase_of_steps(std::string_view name, const Ranks& without) const;
  // Returns the number of a setting; nullopt if the record has none.
  std::optional<double> setting(std::string_view key) const {
    return number_setting(view.run->lowest().info, key);
  }
  std::vector<double> own(std::size_t r, std::string_view name) const {
    return view.column(r, rank(r).own, name);
  }
  std::vector<double> scalar(std::size_t r, std::string_view name) const {
    return view.column(r, rank(r).scalars, name);
  }
  std::vector<double> memory(std::size_t r, std::string_view name) const {
    return view.column(r, rank(r).memory, name);
  }

  // Null until a rule first needs them.
  mutable std::shared_ptr<MemorySaving> memory_saving;
  mutable std::shared_ptr<const RankDelays> rank_delays;
  mutable CountedTime counted;

 private:
  std::vector<std::size_t> ranks_without(const Ranks& without) const;
};

// Returns a finding with the severity of its cost.
Finding costly(const RuleInput& input, std::string code, std::string title, double seconds);

// Reduces a finding's seconds by those of the findings `codes`, and limits them to the uncounted
// part of each step, so that no second counts twice. Keeps the severity; removes the cost if
// nothing is left.
void count_rest(const RuleInput& input, std::initializer_list<std::string_view> codes, Finding& f,
                StepSeconds of_steps);

double sum_of(const StepSeconds& steps);

// Returns `seconds(rank, step)` of the view for each step, mean over the ranks.
StepSeconds mean_of_steps(const RunView& view,
                          double (RunView::*seconds)(std::size_t, std::size_t) const);

// Returns the weight for sorting findings: the share of time that a finding costs, or the least
// share of its severity if it has no cost.
double weight_of(const Finding& finding);

// Returns "rank 3", "ranks 0-2, 5" or "all 4 ranks".
std::string ranks_named(const RunView& view, const Ranks& ranks);
// Sets the finding's ranks. Adds them to its title unless all ranks are concerned (" on ranks 3, 5
// of 8").
void name_ranks(const RuleInput& input, const Ranks& ranks, Finding& finding);

// The ranks with a problem, and the figures of the worst.
template <class Figures>
struct Concerned {
  Ranks ranks;
  std::size_t worst = 0;
  Figures of_worst{};

  // Returns "rank 3", or "rank 3, the worst," if there are others.
  std::string worst_named(const RuleInput& input) const {
    return ranks_named(input.view, {worst}) + (ranks.size() > 1 ? ", the worst," : "");
  }
};

// Calls `figures(input, rank)` for every rank; nullopt means no problem. Among equally bad ranks,
// the lowest is the worst.
template <class Figures, class Ask, class IsWorse>
Concerned<Figures> concerned(const RuleInput& input, const Ask& figures, const IsWorse& is_worse) {
  Concerned<Figures> out;
  for (std::size_t r = 0; r < input.view.ranks.size(); ++r) {
    const std::optional<Figures> of_rank = figures(input, r);
    if (!of_rank) continue;
    if (out.ranks.empty() || is_worse(*of_rank, out.of_worst)) {
      out.worst = r;
      out.of_worst = *of_rank;
    }
    out.ranks.insert(r);
  }
  return out;
}

std::string percents(double fraction);

struct NamedRule {
  const char* name;
  void (*rule)(const RuleInput&, Findings&);
};
// Appends the rule's findings. Appends RULE.FAILED if the rule throws or computes an impossible
// number.
void apply(const NamedRule& rule, const RuleInput& input, Findings& out);

std::span<const NamedRule> time_rules();      // time lost by ranks
std::span<const NamedRule> file_rules();      // the last of these; read a trace or schedule only
std::span<const NamedRule> rest_rules();      // time that no other rule has counted; run last
std::span<const NamedRule> learning_rules();  // loss and gradients
std::span<const NamedRule> memory_rules();    // memory in use, and the cost of saving memory
std::span<const NamedRule> resource_rules();  // plans, precision, shares, saves, record faults

// Runs all rules. Returns their findings unsorted.
Findings findings_of(const RuleInput& input);

// Returns whether a rank's loss is not finite while no loss scaler works.
bool has_diverged(const RuleInput& input);

// Returns the seconds that ranks spend on saving memory in each step, mean over the ranks not in
// `without`; none unless a finding reports them.
StepSeconds told_recompute(const RuleInput& input, const Ranks& without);

// Returns the ranks that a memory finding names because saving memory costs them time.
Ranks ranks_slowed_by_memory(const RuleInput& input);

// The work of each rank in each step. Excludes the time of `without_recompute` ranks for saving
// memory, which another finding reports.
struct Work {
  std::vector<std::vector<float>> seconds;  // [rank][step]
  Ranks without_recompute;
};
Work work_of(const RunView& view, Ranks without_recompute);

inline constexpr std::string_view kRecomputePhase = "recomputation";
// SlowRank is a rank that works more slowly than most in a stretch of steps.
struct SlowRank {
  std::size_t rank = 0;  // index
  std::size_t begin = 0;
  std::size_t end = 0;  // steps of the view
  double slowdown = 0;  // 0.2: a fifth longer
  std::string phase;    // the phase with most of the delay, or kRecomputePhase (a part of backward)
};
std::vector<SlowRank> slow_ranks(const RunView& view, const Work& work);

}  // namespace cox::diagnosis
