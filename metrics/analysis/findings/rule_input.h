// What our own rules share: the view of a run as they ask for it, and how a finding says what it
// costs. A rule adds its findings to a list; own_findings() runs them all. Pure; any thread.
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
using Ranks = std::set<std::size_t>;  // by their index in the view

struct MemorySaving;  // memory_rules.cc
struct RankDelays;    // time_rules.cc

using StepSeconds = std::vector<double>;  // [step] of the view

// CountedTime is what findings have counted of the time of each step so far, so that no second is
// counted twice. A loss that is not finite and a pipeline's schedule are apart: all that follows
// the one is lost, and the other has a clock of its own.
class CountedTime {
 public:
  void add(const Finding& finding, StepSeconds of_steps);
  // Returns the seconds that a finding of that code counts; null without such a finding.
  const StepSeconds* of(std::string_view code) const;
  double in_step(std::size_t step) const;
  bool has_any() const { return !of_codes_.empty(); }

 private:
  std::map<std::string, StepSeconds, std::less<>> of_codes_;
};

// What all rules look at. One thread per object.
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
  double seconds_of(std::string_view line) const;  // of the budget
  double share(double seconds) const {
    return budget.wall_seconds > 0 ? seconds / budget.wall_seconds : 0;
  }
  // Seconds in a phase, mean over the ranks but for those `without`; all where none would be left.
  double phase_seconds(std::string_view name, const Ranks& without = {}) const;
  StepSeconds phase_of_steps(std::string_view name, const Ranks& without) const;
  // The number that a setting of the run has; nothing where the record does not tell it.
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

  // Null until the first rule asks for it.
  mutable std::shared_ptr<MemorySaving> memory_saving;
  mutable std::shared_ptr<const RankDelays> rank_delays;
  mutable CountedTime counted;

 private:
  std::vector<std::size_t> ranks_without(const Ranks& without) const;
};

// Returns a finding whose severity follows from what it costs.
Finding costly(const RuleInput& input, std::string code, std::string title, double seconds);

// Counts of a finding what those of these codes leave of it, and at most what is left of each step:
// such seconds are counted once, though there are two ways to win them back. Its severity stays;
// where nothing is left it has no cost.
void count_rest(const RuleInput& input, std::initializer_list<std::string_view> codes, Finding& f,
                StepSeconds of_steps);

double sum_of(const StepSeconds& steps);

// Returns the seconds of each step by `seconds(rank, step)` of the view, mean over the ranks.
StepSeconds mean_of_steps(const RunView& view,
                          double (RunView::*seconds)(std::size_t, std::size_t) const);

// Returns what a finding counts for among others: the share of time that it costs, or the least
// share of its severity where it tells no cost.
double weight_of(const Finding& finding);

// Returns "rank 3", "ranks 0-2, 5" or "all 4 ranks".
std::string ranks_named(const RunView& view, const Ranks& ranks);
// Says whom the finding is about: in its ranks, and behind its title where it is not all of them
// (" on ranks 3, 5 of 8").
void name_ranks(const RuleInput& input, const Ranks& ranks, Finding& finding);

// The ranks of which something is so, and what is known of the one with the worst of it.
template <class Figures>
struct Concerned {
  Ranks ranks;
  std::size_t worst = 0;
  Figures of_worst{};

  // "rank 3", and where it is not the only one "rank 3, the worst,".
  std::string worst_named(const RuleInput& input) const {
    return ranks_named(input.view, {worst}) + (ranks.size() > 1 ? ", the worst," : "");
  }
};

// Asks `figures(input, rank)` of every rank, which gives nothing where it is not so. Of ranks that
// are equally bad the lowest is the worst.
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
// Adds what the rule finds; one that throws, or comes to a number that cannot be, is told instead.
void apply(const NamedRule& rule, const RuleInput& input, Findings& out);

std::span<const NamedRule> time_rules();      // where the time of the ranks went
std::span<const NamedRule> file_rules();      // of these, by a trace or a schedule alone
std::span<const NamedRule> rest_rules();      // what no other rule has counted; these run last
std::span<const NamedRule> learning_rules();  // loss and gradients
std::span<const NamedRule> memory_rules();    // what ranks keep, and what saving memory costs
std::span<const NamedRule> resource_rules();  // plans, precision, shares, saves, the record itself

// Runs all rules. Findings are in no order.
Findings findings_of(const RuleInput& input);

// Whether the loss of a rank is not finite, and no loss scaler is at work there.
bool has_diverged(const RuleInput& input);

// Seconds of each step that ranks took for saving memory, mean over the ranks but for those
// `without`, where a finding tells of that; else none.
StepSeconds told_recompute(const RuleInput& input, const Ranks& without);

// Returns the ranks that a finding about memory names because saving it takes them time.
Ranks ranks_slowed_by_memory(const RuleInput& input);

// What each rank worked in each step. Of ranks whose time for saving memory is told elsewhere that
// time is taken out.
struct Work {
  std::vector<std::vector<float>> seconds;  // [rank][step]
  Ranks without_recompute;
};
Work work_of(const RunView& view, Ranks without_recompute);

// A rank that works more slowly than most, in a stretch of steps.
inline constexpr std::string_view kRecomputePhase = "recomputation";
struct SlowRank {
  std::size_t rank = 0;  // index
  std::size_t begin = 0;
  std::size_t end = 0;  // steps of the view
  double slowdown = 0;  // 0.2: a fifth longer
  std::string phase;    // that has most of it; or kRecomputePhase, which is a part of backward
};
std::vector<SlowRank> slow_ranks(const RunView& view, const Work& work);

}  // namespace cox::diagnosis
