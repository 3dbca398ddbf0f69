// Our own rules, on runs with planted causes and on the published cases.
#include "metrics/analysis/findings/own_rules.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "coordinator/core/text.h"
#include "metrics/analysis/findings/published_rules.h"
#include "metrics/analysis/findings/rule_input.h"
#include "metrics/records/kernel_trace_file.h"
#include "metrics/records/run_reader.h"
#include "tests/metrics/analysis/planted_run.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using namespace diagnosis;

using Trace = std::optional<KernelTrace>;

std::vector<Finding> own(const RunRecord& run, const Trace& trace = {}) {
  const RunView view = view_of(run, std::nullopt);
  const Budget budget = budget_of(view, {});
  return own_findings({&view, &budget, trace});
}

std::vector<Finding> published(const RunRecord& run, const Trace& trace = {},
                               std::size_t warmup = 0) {
  Figures figures = figures_of(run, {warmup, std::nullopt, std::nullopt});
  figures.trace = trace;
  std::vector<Finding> found = published_findings(figures);
  // Repeats the budget's largest line, which other codes have named.
  std::erase_if(found, [](const Finding& f) { return f.code == "EFFICIENCY.RECOVERABLE"; });
  return found;
}

// A finding is right if its code was planted, and, for a slow rank, if the ranks match.
struct Score {
  std::size_t right = 0;
  std::size_t wrong = 0;
  std::size_t missed = 0;

  double precision() const {
    return static_cast<double>(right) / static_cast<double>(right + wrong);
  }
  double recall() const { return static_cast<double>(right) / static_cast<double>(right + missed); }

  void add(const test::PlantedRun& planted, const std::vector<Finding>& found) {
    std::set<std::string> named;
    for (const Finding& f : found) {
      bool is_right = planted.codes.contains(f.code);
      if (f.code == "DIST.STRAGGLER")
        is_right =
            is_right && std::set<std::int32_t>(f.ranks.begin(), f.ranks.end()) == planted.slow;
      const bool is_new = is_right && named.insert(f.code).second;
      right += is_new ? 1 : 0;
      wrong += is_right ? 0 : 1;
    }
    missed += planted.codes.size() - named.size();
  }
};

// The published finding names its rank only in the title, behind one word.
std::vector<Finding> with_ranks(std::vector<Finding> found) {
  for (Finding& f : found) {
    if (f.code == "DIST.STRAGGLER") f.ranks = {std::stoi(f.title.substr(5))};
  }
  return found;
}

std::string codes_of(const std::vector<Finding>& found) {
  std::string out;
  for (const Finding& f : found) out += f.code + " ";
  return out;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns a row of the table in docs/diagnosis.md.
std::string row_of(const std::string& rules, const Score& planted, const Score& on_published) {
  std::string row = "| " + rules + " |";
  for (const double part :
       {planted.precision(), planted.recall(), on_published.precision(), on_published.recall()})
    row += " " + fixed(part, 3) + " |";
  return row;
}

struct PublishedCase {
  test::PlantedRun planted;
  Trace trace;
  std::size_t warmup = 0;  // leading steps that the published rules must be told
};

// Returns the published runs with their planted cause, given by the name; the others are healthy.
std::vector<PublishedCase> published_cases() {
  const std::map<std::string, std::string> planted = {
      {"backward-heavy", "TIMING.BACKWARD_HEAVY"},
      {"comm-bound", "DIST.COMM_BOUND"},
      {"correlated-instability", "CROSS.CORRELATED_INSTABILITY"},
      {"dataloader-bound", "TIMING.DATALOADER_BOUND"},
      {"diverged", "CONVERGENCE.DIVERGED"},
      {"exposed-comm", "DIST.EXPOSED_COMM"},
      {"jitter", "TIMING.JITTER"},
      {"load-imbalance", "DIST.LOAD_IMBALANCE"},
      {"low-mfu", "EFFICIENCY.LOW_MFU"},
      {"memory-fragmentation", "MEMORY.FRAGMENTATION"},
      {"memory-growth", "MEMORY.GROWTH"},
      {"no-progress", "CONVERGENCE.NO_PROGRESS"},
      {"optimizer-heavy", "TIMING.OPTIMIZER_HEAVY"},
      {"straggler", "DIST.STRAGGLER"},
      {"two-stragglers", "DIST.STRAGGLER"}};
  std::vector<PublishedCase> cases;
  for (const auto& entry :
       std::filesystem::directory_iterator(COX_TEST_DATA "/training-runs/runs")) {
    const std::string name = entry.path().filename().string();
    auto run = io::read_run(entry.path());
    REQUIRE(run.ok());
    PublishedCase& added = cases.emplace_back();
    added.planted = {name, *std::move(run), {}, {}};
    if (planted.contains(name)) added.planted.codes = {planted.at(name)};
    if (name == "straggler") added.planted.slow = {2};
    if (name == "two-stragglers") added.planted.slow = {1, 3};
    if (name == "warmup-flag") added.warmup = 5;
    auto kernels = io::read_kernel_trace(entry.path() / "trace.json");
    if (kernels.ok()) added.trace = kernel_trace_of(*std::move(kernels));
  }
  REQUIRE(cases.size() == 22);
  return cases;
}

// Returns whether a finding's cost may overlap others: a non-finite loss costs all later time, and
// a pipeline's schedule and saves have their own time.
bool counts_apart(const Finding& f) {
  return f.code == "CONVERGENCE.DIVERGED" || f.code == "DIST.PIPELINE_BUBBLE" ||
         f.code == "SAVE.STALLS";
}

// Checks that no second of a step counts in two findings, and that costs equal the counted seconds.
void check_counted_once(const RunRecord& run, const Trace& trace, const BudgetOptions& options) {
  const RunView view = view_of(run, std::nullopt);
  const Budget budget = budget_of(view, options);
  const std::optional<Pipeline> none;
  const RuleInput input(view, budget, trace, none);
  double costs = 0;
  double counted = 0;
  for (const Finding& f : findings_of(input)) {
    if (counts_apart(f)) continue;
    costs += f.cost_seconds.value_or(0);
    const StepSeconds* const steps = input.counted.of(f.code);
    if (steps != nullptr) counted += sum_of(*steps);
  }
  CHECK(costs <= budget.wall_seconds * (1 + 1e-6));
  CHECK(counted == doctest::Approx(costs).epsilon(0.02));
  double most = 0;  // as a share of a step's time
  for (std::size_t s = 0; s < view.size(); ++s) {
    double transfer = 0;
    for (std::size_t r = 0; r < view.ranks.size(); ++r)
      transfer = std::max(transfer, view.transfer(r, s));
    const double wall = static_cast<double>(view.longest_work[s]) + transfer;
    most = std::max(most, input.counted.in_step(s) / wall);
  }
  CHECK(most <= 1 + 1e-5);
}

TEST_SUITE("analysis.own_rules") {
  TEST_CASE("planted causes are found, and nothing else, better than by the published rules") {
    Score ours;
    Score theirs;
    for (const test::PlantedRun& planted : test::planted_runs(7)) {
      const std::vector<Finding> found = own(planted.run);
      const Score before = ours;
      ours.add(planted, found);
      theirs.add(planted, with_ranks(published(planted.run)));
      INFO(planted.kind << ": found " << codes_of(found));
      CHECK_MESSAGE(ours.wrong + ours.missed == before.wrong + before.missed, "a miss");
    }
    Score ours_published;
    Score theirs_published;
    for (const PublishedCase& it : published_cases()) {
      ours_published.add(it.planted, own(it.planted.run, it.trace));
      theirs_published.add(it.planted, with_ranks(published(it.planted.run, it.trace, it.warmup)));
    }
    CHECK(ours.precision() >= 0.98);
    CHECK(ours.recall() >= 0.98);
    CHECK(ours.precision() > theirs.precision());
    CHECK(ours.recall() > theirs.recall());
    const std::string page = text_of(COX_SOURCE_DIR "/docs/diagnosis.md");
    for (const std::string& row :
         {row_of("ours", ours, ours_published), row_of("pytscope 0.2.1", theirs, theirs_published)})
      CHECK_MESSAGE(page.find("\n" + row + "\n") != std::string::npos,
                    "expected in docs/diagnosis.md: " << row);
  }

  TEST_CASE("what only our record has is found by its code alone, and not just below what counts") {
    std::set<std::string> seen;
    for (const test::PlantedRun& planted : test::own_planted_runs(11)) {
      std::set<std::string> codes;
      for (const Finding& f : own(planted.run)) {
        codes.insert(f.code);
        CHECK(std::ranges::count(own_codes(), f.code) == 1);
        CHECK_FALSE(f.suggestion.empty());
      }
      INFO(planted.kind);
      CHECK(codes == planted.codes);
      seen.insert(codes.begin(), codes.end());
    }
    for (const char* code :
         {"PLAN.FLAPPING", "BUDGET.TOO_TIGHT", "BUDGET.TOO_LOOSE", "OFFLOAD.TIER_SLOW",
          "PRECISION.SKIPPED_STEPS", "PRECISION.SCALE_AT_FLOOR", "PRECISION.SCALE_LOW",
          "PRECISION.WITHHELD", "SHARES.PINNED", "SAVE.STALLS", "RECORD.DROPPED"})
      CHECK_MESSAGE(seen.contains(code), code);
  }

  TEST_CASE("a save that others wait for is told as saving, and the budget still sums up") {
    for (const test::PlantedRun& planted : test::own_planted_runs(11)) {
      if (planted.kind != "long saves that ranks wait for in communication") continue;
      const RunView view = view_of(planted.run, std::nullopt);
      const Budget budget = budget_of(view, {});
      double sum = 0;
      double saving = 0;
      for (const BudgetLine& line : budget.lines) {
        sum += line.seconds;
        if (line.name == "saving") saving = line.seconds;
      }
      CHECK(sum == doctest::Approx(budget.wall_seconds));
      CHECK(saving == doctest::Approx(14 * 5 * 0.05));
      CHECK(own(planted.run).front().code == "SAVE.STALLS");
    }
  }

  TEST_CASE("a machine with all or most of the slow ranks is named, not its ranks one by one") {
    struct Case {
      std::set<std::int32_t> slow;
      std::string title;
      std::string detail;
    } const cases[] = {
        {{4, 5, 6, 7},
         "The host of ranks 4-7 is slower than the others",
         "The host of ranks 4-7 takes 30 % longer than most (the middle one of its "
         "slow ranks), mostly in forward."},
        {{4, 5, 7},
         "The host of ranks 4-7, but for rank 6, is slower than the others",
         "The host of ranks 4-7, but for rank 6, takes 30 % longer than most (the middle one of "
         "its "
         "slow ranks), mostly in forward."},
        {{4, 5},
         "Ranks 4-5 are slower than the others",
         "Rank 4 takes 30 % longer than most, mostly in forward; rank 5 takes"},
        {{1, 4, 5, 7},
         "Ranks 1, 4-5, 7 are slower than the others",
         "Rank 1 takes 30 % longer than most, mostly in forward; rank 4 takes"},
        {{1, 4, 5, 6, 7},
         "Ranks 1, 4-7 are slower than the others",
         "Rank 1 takes 30 % longer than most, mostly in forward; the host of ranks 4-7 takes"},
    };
    for (const auto& [slow, title, detail] : cases) {
      RunRecord run;
      for (std::int32_t r = 0; r < 12; ++r) {
        RankRecord& rank = run.ranks.emplace_back();
        rank.rank = rank.info.rank = r;
        rank.info.node = r / 4 * 4;
        for (std::size_t s = 0; s < 80; ++s) {
          rank.steps.push(static_cast<double>(s));
          rank.phases["forward"].push(slow.contains(r) ? 0.13 : 0.1);
        }
      }
      const std::vector<Finding> found = own(run);
      REQUIRE(!found.empty());
      CHECK(found.front().code == "DIST.STRAGGLER");
      CHECK(found.front().title == title);
      CHECK(found.front().detail.substr(0, detail.size()) == detail);
      CHECK(std::set<std::int32_t>(found.front().ranks.begin(), found.front().ranks.end()) == slow);
    }
  }

  TEST_CASE("recompute is a line of the budget, or useful, and no part of the MFU") {
    for (const test::PlantedRun& planted : test::own_planted_runs(11)) {
      if (planted.kind != "recomputation takes 8 %") continue;
      const RunView view = view_of(planted.run, std::nullopt);
      BudgetOptions options;
      options.flops_per_step = 1e9;
      options.peak_flops = 1e9 / 0.02;  // 20 ms of a step of 50
      const Budget apart = budget_of(view, options);
      options.recompute = RecomputeTime::useful;
      const Budget useful = budget_of(view, options);
      const auto seconds = [](const Budget& budget, std::string_view name) {
        const auto line = std::ranges::find(budget.lines, name, &BudgetLine::name);
        return line == budget.lines.end() ? 0 : line->seconds;
      };
      const auto steps = static_cast<double>(view.size());
      CHECK(seconds(apart, "recompute") == doctest::Approx(0.05 * 0.08 * steps));
      CHECK(seconds(apart, "useful_compute") == doctest::Approx(0.02 * steps));
      CHECK(seconds(useful, "recompute") == 0);
      CHECK(seconds(useful, "useful_compute") == doctest::Approx((0.02 + 0.05 * 0.08) * steps));
      CHECK(useful.mfu == apart.mfu);
      for (const Budget* budget : {&apart, &useful}) {
        double sum = 0;
        for (const BudgetLine& line : budget->lines) sum += line.seconds;
        CHECK(sum == doctest::Approx(budget->wall_seconds));
      }
    }
  }

  TEST_CASE("what Coxswain takes between steps is a line of the budget, and of the wall time") {
    RunRecord run;
    run.ranks.resize(2);
    for (std::size_t s = 0; s < 40; ++s) {
      for (RankRecord& rank : run.ranks) {
        rank.steps.push(static_cast<double>(s));
        rank.phases["forward"].push(0.25);
        rank.own["host"].push(&rank == &run.ranks[0] ? 0.0625 : absent());
      }
    }
    const Budget budget = budget_of(view_of(run, std::nullopt), {});
    const auto line = std::ranges::find(budget.lines, "control", &BudgetLine::name);
    REQUIRE(line != budget.lines.end());
    CHECK(line->seconds == 40 * 0.0625 / 2);
    CHECK(budget.wall_seconds == 40 * (0.25 + 0.0625 / 2));
  }

  TEST_CASE("recompute is never more than the backward pass that it is a part of") {
    RunRecord run;
    run.ranks.resize(1);
    for (std::size_t s = 0; s < 40; ++s) {
      run.ranks[0].steps.push(static_cast<double>(s));
      run.ranks[0].phases["backward"].push(s % 4 == 0 ? absent() : 0.25);
      run.ranks[0].own["recompute"].push(s % 2 == 0 ? 1 : absent());
    }
    const Budget budget = budget_of(view_of(run, std::nullopt), {});
    const auto line = std::ranges::find(budget.lines, "recompute", &BudgetLine::name);
    REQUIRE(line != budget.lines.end());
    CHECK(line->seconds == 10 * 0.25);
    CHECK(budget.lines.front().seconds == 20 * 0.25);
  }

  TEST_CASE(
      "a rule that throws, or comes to a number that cannot be, is a finding about the rule") {
    const test::PlantedRun quiet = test::planted_runs(7).front();
    const RunView view = view_of(quiet.run, std::nullopt);
    const Budget budget = budget_of(view, {});
    const OwnInput input{&view, &budget, std::nullopt};
    const RuleInput room(view, budget, input.trace, input.pipeline);
    std::vector<Finding> found;
    apply({"one that throws", [](const RuleInput&, Findings&) { throw std::out_of_range("far"); }},
          room, found);
    apply({"one that divides by nothing",
           [](const RuleInput&, Findings& out) {
             Finding f;
             f.code = "X";
             f.evidence = {{"ratio", std::nan("")}};
             out.push_back(f);
           }},
          room, found);
    REQUIRE(found.size() == 2);
    CHECK(found[0].code == "RULE.FAILED");
    CHECK(found[0].title == "The rule 'one that throws' failed");
    CHECK(found[0].detail == "far");
    CHECK(found[1].code == "RULE.FAILED");
  }

  TEST_CASE(
      "a leak stands before what costs less than a quarter of the time, though it costs none") {
    for (const test::PlantedRun& planted : test::planted_runs(7)) {
      if (planted.kind != "flat loss and leak") continue;
      CHECK(own(planted.run).front().code == "MEMORY.GROWTH");
    }
    for (const test::PlantedRun& planted : test::own_planted_runs(11)) {
      const std::vector<Finding> found = own(planted.run);
      if (planted.kind == "leak that will end the run, and slow loader")
        CHECK(found.front().code == "MEMORY.GROWTH");
      if (planted.kind == "leak with memory for long, and slow loader")
        CHECK(found.front().code == "TIMING.DATALOADER_BOUND");
    }
  }

  TEST_CASE(
      "steps skipped with no loss scaler at work are no scaler's, and a lasting NaN is told") {
    const auto found_with = [](std::size_t first, std::size_t count) {
      RunRecord run;
      run.ranks.resize(2);
      run.ranks[1].rank = 1;
      for (std::size_t s = 0; s < 120; ++s) {
        for (RankRecord& rank : run.ranks) {
          const bool is_bad = s >= first && s < first + count;
          rank.steps.push(static_cast<double>(s));
          rank.phases["forward"].push(0.125);
          rank.scalars["loss"].push(is_bad ? std::nan("") : 4 - 0.01 * static_cast<double>(s));
          rank.own["skipped"].push(is_bad ? 1 : absent());
        }
      }
      return own(run);
    };
    const std::vector<Finding> lasting = found_with(60, 60);
    REQUIRE(codes_of(lasting) == "CONVERGENCE.DIVERGED ");
    CHECK(lasting[0].detail.starts_with("From step 60 on 60 steps have a loss that is not finite"));
    CHECK(codes_of(found_with(60, 2)) == "");  // a bad batch, skipped correctly
  }

  TEST_CASE("steps skipped with no loss scaler at work are not blamed on its scale") {
    for (const test::PlantedRun& planted : test::own_planted_runs(11)) {
      if (planted.kind != "one step in 20 is skipped, and no loss scaler is at work") continue;
      const Finding f = own(planted.run).front();
      CHECK(f.title == "Many steps are skipped, and no loss scaler is at work");
      CHECK(f.suggestion.find("scale") == std::string::npos);
    }
  }

  TEST_CASE("where the settings hold the loss scale up, the advice is to let it go lower") {
    for (const test::PlantedRun& planted : test::own_planted_runs(11)) {
      const std::vector<Finding> found = own(planted.run);
      if (planted.kind.starts_with("one step in 15 is skipped at the smallest scale that")) {
        CHECK(found.front().detail.ends_with("10 of them with a loss scale of 128 or less."));
        CHECK(found.front().suggestion.starts_with("Lower loss_scale.min"));
      }
      if (planted.kind == "one step in 60 is skipped at the smallest scale")
        CHECK(found.front().severity == Severity::low);
    }
  }

  TEST_CASE("what holds shares is told in the policy's words, and as nobody's memory") {
    for (const test::PlantedRun& planted : test::own_planted_runs(11)) {
      for (const Finding& f : own(planted.run)) {
        if (f.code != "SHARES.PINNED") continue;
        CHECK(f.title == "Limits hold the shares of the batch where they are");
        CHECK(f.detail.ends_with("rank 0 is held to 9 samples by its cap."));
      }
    }
  }

  TEST_CASE("a save in the warm-up does not count, and later ones keep their steps") {
    RunRecord run;
    run.ranks.resize(2);
    run.ranks[1].rank = 1;
    for (std::size_t s = 0; s < 60; ++s) {
      for (RankRecord& rank : run.ranks) {
        const bool is_late = s == 30 || s == 50;
        rank.steps.push(static_cast<double>(s));
        rank.phases["forward"].push(s < 4 ? 1 : 0.125);
        rank.phases["comm"].push(rank.rank == 1 && is_late ? 2.0625 : 0.0625);
        rank.own["save"].push(rank.rank == 0 && (s == 1 || is_late) ? 2 : absent());
      }
    }
    const RunView view = view_of(run, std::nullopt);
    REQUIRE(view.warmup == 4);
    REQUIRE(view.saving.size() == view.size());
    for (std::size_t s = 0; s < view.size(); ++s)
      CHECK(view.saving[s] == (view.steps[s] == 30 || view.steps[s] == 50 ? 2 : 0));
    const Budget budget = budget_of(view, {});
    const auto line = std::ranges::find(budget.lines, "saving", &BudgetLine::name);
    REQUIRE(line != budget.lines.end());
    CHECK(line->seconds == 4);
    for (const RankView& rank : view.ranks)
      CHECK(std::ranges::all_of(rank.comm, [](float c) { return c == 0.0625F; }));
  }

  TEST_CASE("of decisions the newest of each policy, code and block is kept") {
    std::vector<Reason> kept;
    for (int i = 0; i < 2000; ++i) {
      Reason reason;
      reason.policy = PolicyKind::precision;
      reason.round = RoundId(static_cast<std::uint64_t>(i));
      reason.block = i % 700;
      keep_newest(kept, std::span(&reason, 1));
    }
    REQUIRE(kept.size() == kMostDecisions);
    CHECK(kept.back().round == RoundId(1999));
    CHECK(kept.front().round == RoundId(2000 - kMostDecisions));
  }

  TEST_CASE("reasons of one decision stand beside each other, and a new start replaces them") {
    const auto said = [](PolicyKind policy, ReasonCode code, const char* text) {
      Reason reason;
      reason.policy = policy;
      reason.code = code;
      reason.text = text;
      return reason;
    };
    const std::vector<Reason> first = {
        said(PolicyKind::precision, ReasonCode::precision_no_evidence, "blocks a to d"),
        said(PolicyKind::shares, ReasonCode::shares_limited, "rank 1")};
    const std::vector<Reason> second = {
        said(PolicyKind::precision, ReasonCode::precision_not_faster, "blocks a to b"),
        said(PolicyKind::precision, ReasonCode::precision_not_faster, "blocks c to d")};
    std::vector<Reason> kept;
    keep_start(kept, first);
    keep_start(kept, second);
    CHECK(kept == std::vector<Reason>{first[1], second[0], second[1]});
    keep_newest(kept, std::span(second).first(1));
    CHECK(kept == std::vector<Reason>{first[1], second[0]});
  }

  TEST_CASE("a reason why a block has more bits is told until that block's format changes") {
    const auto said = [](ReasonCode code, Outcome outcome, std::uint64_t round, std::int32_t block,
                         const char* text) {
      Reason reason;
      reason.policy = PolicyKind::precision;
      reason.code = code;
      reason.outcome = outcome;
      reason.round = RoundId(round);
      reason.block = block;
      reason.text = text;
      return reason;
    };
    const auto none = said(ReasonCode::precision_no_evidence, Outcome::unchanged, 1, 3, "none");
    const auto detail = [&](std::vector<Reason> decisions) {
      RunRecord run = test::planted_runs(7).front().run;
      run.decisions = std::move(decisions);
      const std::vector<Finding> found = own(run);
      return found.empty() ? std::string() : found.front().detail;
    };
    CHECK(detail({none}) == "none.");
    for (const ReasonCode code :
         {ReasonCode::precision_start, ReasonCode::precision_lowered, ReasonCode::precision_forced,
          ReasonCode::precision_requested, ReasonCode::precision_overflow}) {
      CHECK(detail({none, said(code, Outcome::changed, 40, 3, "now")}) == "");
      CHECK(detail({none, said(code, Outcome::changed, 40, -1, "several now")}) == "");
      CHECK(detail({none, said(code, Outcome::changed, 40, 4, "another now")}) == "none.");
      CHECK(detail({none, said(code, Outcome::observed, 40, 3, "would")}) == "none.");
    }
    const auto slow = said(ReasonCode::precision_not_faster, Outcome::vetoed, 40, 3, "slow");
    CHECK(detail({none, slow}) == "slow.");
    CHECK(detail({said(ReasonCode::precision_lowered, Outcome::changed, 1, 3, "was"), slow}) ==
          "slow.");
  }

  TEST_CASE("the long steps of a slow rank are told with that rank alone") {
    RunRecord run;
    run.ranks.resize(3);
    for (std::size_t s = 0; s < 200; ++s) {
      for (std::int32_t r = 0; r < 3; ++r) {
        RankRecord& rank = run.ranks[static_cast<std::size_t>(r)];
        rank.rank = rank.info.rank = r;
        const bool is_slow = r == 1 && s >= 80 && s < 120;
        rank.steps.push(static_cast<double>(s));
        rank.phases["forward"].push(is_slow ? 0.25 : 0.125);
      }
    }
    const std::vector<Finding> found = own(run);
    REQUIRE(codes_of(found) == "DIST.STRAGGLER ");
    CHECK(*found[0].cost_seconds == 40 * 0.125);
    for (RankRecord& rank : run.ranks) {  // and steps that are long for all ranks
      Column& optimizer = rank.phases["optimizer"];
      for (std::size_t s = 0; s < 200; ++s) optimizer.push(s % 20 == 10 ? 0.25 : 0);
    }
    const std::vector<Finding> both = own(run);
    REQUIRE(codes_of(both) == "DIST.STRAGGLER TIMING.JITTER ");
    CHECK(*both[0].cost_seconds == 40 * 0.125);
    CHECK(*both[1].cost_seconds == doctest::Approx(10 * 0.25));
  }

  TEST_CASE("steps that are like all others are no jitter where half of them were skipped") {
    RunRecord run;
    run.ranks.resize(1);
    RankRecord& rank = run.ranks[0];
    for (std::size_t s = 0; s < 200; ++s) {
      rank.steps.push(static_cast<double>(s));
      rank.phases["forward"].push(0.125);
      rank.own["skipped"].push(s < 110 ? 1 : 0);
    }
    CHECK(codes_of(own(run)) == "PRECISION.SKIPPED_STEPS ");
  }

  TEST_CASE("no second of a step is counted by two findings") {
    Kernels kernels;
    kernels.add({0, "kernel", "gemm", 0, 60});
    kernels.add({0, "kernel", "ncclAllReduce", 60, 40});
    const Trace trace = kernel_trace_of(std::move(kernels));
    BudgetOptions slow_device;
    slow_device.flops_per_step = 1e9;
    slow_device.peak_flops = 1e9 / 0.01;  // 10 ms of a step of 50
    std::size_t number = 0;
    for (const test::PlantedRun& planted : test::paired_planted_runs(7)) {
      CAPTURE(planted.kind);
      const bool has_trace = ++number % 2 == 0;
      check_counted_once(planted.run, has_trace ? trace : std::nullopt,
                         has_trace ? slow_device : BudgetOptions());
    }
  }
}

}  // namespace
}  // namespace cox
