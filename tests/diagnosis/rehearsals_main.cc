// Prints what our own rules say of runs in which one thing was made to go wrong, for the runbook:
// CODE, a tab, the title, a full stop and the detail; a line for each code. Deterministic.
#include <cstddef>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "coordinator/diagnosis/own_rules.h"
#include "tests/diagnosis/planted_run.h"

namespace {

using namespace cox;
using diagnosis::RankRecord;
using diagnosis::RunRecord;

constexpr std::uint64_t kSeed = 7;

void say(const RunRecord& run, const std::string& code) {
  const diagnosis::RunView view = diagnosis::view_of(run, std::nullopt);
  const diagnosis::Budget budget = diagnosis::budget_of(view, {});
  for (const diagnosis::Finding& f : diagnosis::own_findings({&view, &budget, std::nullopt})) {
    if (f.code == code)
      std::printf("%s\t%s. %s\n", f.code.c_str(), f.title.c_str(), f.detail.c_str());
  }
}

// Puts value(step) into a column of every rank of a run in which nothing is wrong.
using Values = std::function<double(std::size_t)>;
RunRecord with(RunRecord run, const std::map<std::string, Values>& own, const Values& peak) {
  for (RankRecord& rank : run.ranks) {
    for (std::size_t s = 0; s < rank.size(); ++s) {
      for (const auto& [name, value] : own) rank.own[name].push(value(s));
      if (peak) rank.memory["peak_alloc"].push(peak(s));
    }
  }
  return run;
}

Values always(double value) {
  return [value](std::size_t) { return value; };
}

Values every(std::size_t steps, double value) {
  return [steps, value](std::size_t s) { return s % steps == steps - 1 ? value : 0; };
}

}  // namespace

int main() {
  constexpr double kGib = 1024.0 * 1024 * 1024;
  std::map<std::string, RunRecord> runs;  // the first of each kind
  for (test::PlantedRun& planted : test::planted_runs(kSeed))
    runs.emplace(planted.kind, std::move(planted.run));
  say(runs["one slow rank"], "DIST.STRAGGLER");
  say(runs["late by turns"], "DIST.LOAD_IMBALANCE");
  say(runs["slow network"], "DIST.COMM_BOUND");
  say(runs["slow loader"], "TIMING.DATALOADER_BOUND");
  say(runs["long steps"], "TIMING.JITTER");
  say(runs["loss not finite"], "CONVERGENCE.DIVERGED");
  say(runs["jump of loss and gradients"], "CROSS.CORRELATED_INSTABILITY");
  say(runs["leak"], "MEMORY.GROWTH");
  const RunRecord& quiet = runs["quiet"];
  say(with(quiet, {{"headroom", always(0.05 * kGib)}}, always(6 * kGib)), "BUDGET.TOO_TIGHT");
  say(with(quiet, {{"headroom", always(5 * kGib)}, {"recomputed_blocks", always(6)}},
           always(6 * kGib)),
      "BUDGET.TOO_LOOSE");
  say(with(quiet, {{"plan", [](std::size_t s) { return static_cast<double>(s / 5); }}}, {}),
      "PLAN.FLAPPING");
  say(with(quiet, {{"skipped", every(12, 1)}, {"loss_scale", always(4096)}}, {}),
      "PRECISION.SKIPPED_STEPS");
  say(with(quiet, {{"skipped", every(12, 1)}, {"loss_scale", always(1)}}, {}),
      "PRECISION.SCALE_AT_FLOOR");
  RunRecord rising = quiet;
  for (RankRecord& rank : rising.ranks) {
    rank.scalars["loss"] = {};
    for (std::size_t s = 0; s < rank.size(); ++s)
      rank.scalars["loss"].push(2 + 0.004 * static_cast<double>(s));
  }
  say(rising, "CONVERGENCE.NO_PROGRESS");
  RunRecord impossible = quiet;
  for (RankRecord& rank : impossible.ranks) {
    rank.phases["forward"] = {};
    for (std::size_t s = 0; s < rank.size(); ++s)
      rank.phases["forward"].push(s % 40 == 39 ? -1 : 0.014);
  }
  say(impossible, "RECORD.IMPOSSIBLE");
}
