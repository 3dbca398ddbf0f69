// Prints the findings of our own rules in runs with one planted fault, for the runbook: CODE, a
// tab, the title, a full stop and the detail; a line for each code. Deterministic.
#include <cstddef>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "metrics/analysis/findings/own_rules.h"
#include "metrics/analysis/findings/rule_input.h"
#include "tests/metrics/analysis/planted_run.h"

namespace {

using namespace cox;
using diagnosis::RankRecord;
using diagnosis::RunRecord;

constexpr std::uint64_t kSeed = 7;

void say(const diagnosis::Finding& f) {
  std::printf("%s\t%s. %s\n", f.code.c_str(), f.title.c_str(), f.detail.c_str());
}

void say(const RunRecord& run, const std::string& code) {
  const diagnosis::RunView view = diagnosis::view_of(run, std::nullopt);
  const diagnosis::Budget budget = diagnosis::budget_of(view, {});
  for (const diagnosis::Finding& f : diagnosis::own_findings({&view, &budget, std::nullopt})) {
    if (f.code == code) say(f);
  }
}

// No known run makes a rule fail, so this applies a failing rule.
void say_of_failing_rule(const RunRecord& run) {
  const diagnosis::RunView view = diagnosis::view_of(run, std::nullopt);
  const diagnosis::Budget budget = diagnosis::budget_of(view, {});
  const diagnosis::OwnInput input{&view, &budget, std::nullopt};
  const diagnosis::NamedRule rule = {"made to fail",
                                     [](const diagnosis::RuleInput&, diagnosis::Findings&) {
                                       throw std::out_of_range("Step 150 of 150 was asked for");
                                     }};
  diagnosis::Findings found;
  diagnosis::apply(rule, diagnosis::RuleInput(view, budget, input.trace, input.pipeline), found);
  for (const diagnosis::Finding& f : found) say(f);
}

// A kind of planted_run.h, and the findings in its first run.
struct Case {
  const char* kind;
  const char* code;
};
constexpr Case kCases[] = {
    {"one slow rank", "DIST.STRAGGLER"},
    {"late by turns", "DIST.LOAD_IMBALANCE"},
    {"slow network", "DIST.COMM_BOUND"},
    {"slow loader", "TIMING.DATALOADER_BOUND"},
    {"long steps", "TIMING.JITTER"},
    {"loss not finite", "CONVERGENCE.DIVERGED"},
    {"jump of loss and gradients", "CROSS.CORRELATED_INSTABILITY"},
    {"leak", "MEMORY.GROWTH"},
    {"recomputation takes 8 %", "BUDGET.TOO_TIGHT"},
    {"2 % of the peak left", "BUDGET.TOO_LOOSE"},
    {"waiting for offloaded blocks takes 8 %", "OFFLOAD.TIER_SLOW"},
    {"shares are at a cap beside a slow rank", "SHARES.PINNED"},
    {"saves take 5 %", "SAVE.STALLS"},
    {"a plan every 8 steps", "PLAN.FLAPPING"},
    {"one step in 20 is skipped", "PRECISION.SKIPPED_STEPS"},
    {"one step in 15 is skipped at the smallest scale", "PRECISION.SCALE_AT_FLOOR"},
    {"rank 1 lost four rows", "RECORD.DROPPED"},
};

// Replaces a column by value(step).
template <class Value>
void replace(RunRecord& run, diagnosis::Columns RankRecord::*columns, const char* name,
             Value value) {
  for (RankRecord& rank : run.ranks) {
    diagnosis::Column& column = (rank.*columns)[name] = {};
    for (std::size_t s = 0; s < rank.size(); ++s) column.push(value(s));
  }
}

}  // namespace

int main() {
  std::map<std::string, RunRecord> runs;  // the first of each kind
  for (auto planted : {test::planted_runs, test::own_planted_runs}) {
    for (test::PlantedRun& each : planted(kSeed)) runs.emplace(each.kind, std::move(each.run));
  }
  for (const Case& one : kCases) say(runs.at(one.kind), one.code);
  RunRecord rising = runs.at("quiet");
  replace(rising, &RankRecord::scalars, "loss",
          [](std::size_t s) { return 2 + 0.004 * static_cast<double>(s); });
  say(rising, "CONVERGENCE.NO_PROGRESS");
  RunRecord impossible = runs.at("quiet");
  replace(impossible, &RankRecord::phases, "forward",
          [](std::size_t s) { return s % 40 == 39 ? -1 : 0.014; });
  say(impossible, "RECORD.IMPOSSIBLE");
  say_of_failing_rule(runs.at("quiet"));
}
