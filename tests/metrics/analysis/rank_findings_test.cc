// Ranks in findings of our own rules: a fault on any rank is found, reported once, with its worst
// rank.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "metrics/analysis/findings/own_rules.h"
#include "metrics/analysis/findings/run_view.h"
#include "metrics/records/kernel_trace.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using namespace diagnosis;
using Numbers = std::set<std::int32_t>;
using Codes = std::vector<std::string>;

constexpr std::int32_t kRanks = 8;
constexpr std::size_t kSteps = 80;
constexpr double kMib = 1024 * 1024;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// Replaces a column by value(step) on these ranks.
template <class Value>
void put(RunRecord& run, const Numbers& ranks, Columns RankRecord::*columns, const char* name,
         Value value) {
  for (RankRecord& rank : run.ranks) {
    if (!ranks.contains(rank.rank)) continue;
    Column& column = (rank.*columns)[name] = {};
    for (std::size_t s = 0; s < kSteps; ++s) column.push(value(s));
  }
}

auto always(double value) {
  return [value](std::size_t) { return value; };
}

Numbers all_ranks() {
  Numbers out;
  for (std::int32_t r = 0; r < kRanks; ++r) out.insert(r);
  return out;
}

// Returns a run without faults: eight ranks and 80 steps of 100 ms, with half of the memory in use.
RunRecord quiet_run() {
  RunRecord run;
  for (std::int32_t r = 0; r < kRanks; ++r) {
    RankRecord& rank = run.ranks.emplace_back();
    rank.rank = rank.info.rank = r;
    for (std::size_t s = 0; s < kSteps; ++s) rank.steps.push(static_cast<double>(s));
  }
  put(run, all_ranks(), &RankRecord::phases, "forward", always(0.031));
  put(run, all_ranks(), &RankRecord::phases, "backward", always(0.062));
  put(run, all_ranks(), &RankRecord::phases, "comm", always(0.007));
  put(run, all_ranks(), &RankRecord::scalars, "loss",
      [](std::size_t s) { return 4 - 0.02 * static_cast<double>(s); });
  put(run, all_ranks(), &RankRecord::memory, "alloc", always(1000 * kMib));
  put(run, all_ranks(), &RankRecord::memory, "reserved", always(1050 * kMib));
  put(run, all_ranks(), &RankRecord::memory, "peak_alloc", always(1000 * kMib));
  put(run, all_ranks(), &RankRecord::own, "headroom", always(1000 * kMib));
  return run;
}

// Makes these ranks recompute blocks for `seconds` in the steps from `from` on.
void recompute(RunRecord& run, const Numbers& ranks, double seconds, std::size_t from = 0) {
  put(run, ranks, &RankRecord::own, "headroom", always(300 * kMib));
  put(run, ranks, &RankRecord::phases, "backward",
      [=](std::size_t s) { return 0.062 + (s < from ? 0 : seconds); });
  put(run, ranks, &RankRecord::own, "recompute",
      [=](std::size_t s) { return s < from ? absent() : seconds; });
  put(run, ranks, &RankRecord::own, "recomputed_blocks",
      [=](std::size_t s) { return s < from ? 0 : 3; });
}

std::vector<Finding> found_in(const RunRecord& run,
                              const std::optional<KernelTrace>& trace = std::nullopt) {
  const RunView view = view_of(run, std::nullopt);
  const Budget budget = budget_of(view, {});
  return own_findings({&view, &budget, trace});
}

// Returns the finding. REQUIRES: there is exactly one.
Finding only_finding(const RunRecord& run) {
  const std::vector<Finding> found = found_in(run);
  Codes codes;
  for (const Finding& f : found) codes.push_back(f.code);
  CAPTURE(codes.size());
  REQUIRE(found.size() == 1);
  return found.front();
}

Numbers named(const Finding& f) {
  return {f.ranks.begin(), f.ranks.end()};
}

double evidence(const Finding& f, const std::string& name) {
  const auto found = std::ranges::find(f.evidence, name, &Evidence::name);
  return found == f.evidence.end() ? kNaN : found->value;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_SUITE("analysis.rank_findings") {
  TEST_CASE("nothing is found in a run in which nothing is wrong") {
    CHECK(found_in(quiet_run()).empty());
  }

  TEST_CASE("memory that is nearly used up is found on any rank") {
    RunRecord run = quiet_run();
    put(run, {3}, &RankRecord::own, "headroom", always(10 * kMib));
    const Finding one = only_finding(run);
    CHECK(one.code == "BUDGET.TOO_LOOSE");
    CHECK(one.title == "Memory is nearly used up on rank 3 of 8");
    CHECK(one.detail == "At its highest, rank 3 has 10.0 MiB left beside a peak of 1000 MiB.");
    CHECK(named(one) == Numbers{3});
    put(run, {5}, &RankRecord::own, "headroom", always(5 * kMib));
    const Finding two = only_finding(run);
    CHECK(two.title == "Memory is nearly used up on ranks 3, 5 of 8");
    CHECK(contains(two.detail, "rank 5, the worst, has 5.00 MiB left"));
    CHECK(evidence(two, "least_headroom_bytes") == 5 * kMib);
    CHECK(named(two) == Numbers{3, 5});
    put(run, all_ranks(), &RankRecord::own, "headroom", always(10 * kMib));
    CHECK(only_finding(run).title == "Memory is nearly used up");
  }

  TEST_CASE("unused memory is found on any rank") {
    RunRecord run = quiet_run();
    put(run, {3}, &RankRecord::memory, "reserved", always(2000 * kMib));
    put(run, {6}, &RankRecord::memory, "reserved", always(1400 * kMib));
    const Finding f = only_finding(run);
    CHECK(f.code == "MEMORY.FRAGMENTATION");
    CHECK(f.title == "Much memory is reserved and not used on ranks 3, 6 of 8");
    CHECK(evidence(f, "unused_share") == 0.5);
    CHECK(contains(f.detail, "50 % of its memory in no tensor; tensors take"));
    CHECK(named(f) == Numbers{3, 6});
  }

  TEST_CASE("unused memory is told by its pieces where an allocator tells them") {
    RunRecord run = quiet_run();
    put(run, {3}, &RankRecord::memory, "reserved", always(2000 * kMib));
    put(run, {3}, &RankRecord::memory, "inactive_split", always(500 * kMib));
    const Finding f = only_finding(run);
    CHECK(contains(f.detail,
                   "50 % of its memory in no tensor, 25 % in unused pieces beside tensors"));
    CHECK(evidence(f, "split_share") == 0.25);
  }

  TEST_CASE("all ranks that leak are named, with the one that has no memory left first") {
    RunRecord run = quiet_run();
    const auto grows = [](double mib) {
      return [mib](std::size_t s) { return (500 + mib * static_cast<double>(s)) * kMib; };
    };
    put(run, {3}, &RankRecord::memory, "alloc", grows(3));
    put(run, {5}, &RankRecord::memory, "alloc", grows(2));
    put(run, {3}, &RankRecord::own, "headroom", always(9000 * kMib));
    for (const std::int32_t r : {3, 5})
      put(run, {r}, &RankRecord::memory, "reserved", grows(r == 3 ? 3 : 2));
    const Finding f = only_finding(run);
    CHECK(f.code == "MEMORY.GROWTH");
    CHECK(f.title == "Memory grows from step to step on ranks 3, 5 of 8");
    CHECK(contains(f.detail, "Tensors of rank 5, the worst, grow by"));
    CHECK(evidence(f, "steps_left") < 1000);
    CHECK(f.ends_run);
    CHECK(named(f) == Numbers{3, 5});
  }

  TEST_CASE("a loss that is not finite is found on any rank") {
    RunRecord run = quiet_run();
    put(run, {3}, &RankRecord::scalars, "loss",
        [](std::size_t s) { return s < 20 ? 4 - 0.02 * static_cast<double>(s) : kNaN; });
    const Finding f = only_finding(run);
    CHECK(f.code == "CONVERGENCE.DIVERGED");
    CHECK(f.title == "The loss is not finite on rank 3 of 8");
    CHECK(contains(f.detail, "From step 20 on 60 steps"));
    CHECK(named(f) == Numbers{3});
    CHECK(f.ends_run);
  }

  TEST_CASE("a rank whose own loss does not fall with the others' is found, and named") {
    RunRecord run = quiet_run();
    put(run, {3, 5}, &RankRecord::scalars, "loss",
        [](std::size_t s) { return 4 + 0.001 * static_cast<double>(s % 3); });
    const Finding flat = only_finding(run);
    CHECK(flat.code == "CONVERGENCE.NO_PROGRESS");
    CHECK(flat.severity == Severity::low);
    CHECK(flat.title == "The loss no longer falls on ranks 3, 5 of 8");
    CHECK(named(flat) == Numbers{3, 5});
    put(run, {5}, &RankRecord::scalars, "loss",
        [](std::size_t s) { return 4 + 0.01 * static_cast<double>(s); });
    const Finding rising = only_finding(run);
    CHECK(rising.severity == Severity::high);
    CHECK(contains(rising.detail, "of rank 5, the worst,"));
    put(run, all_ranks(), &RankRecord::scalars, "loss", always(4));
    const Finding all = only_finding(run);
    CHECK(all.title == "The loss no longer falls");
    CHECK(all.ranks.empty());
  }

  TEST_CASE("figures that jump at once are found on any rank") {
    const auto jump = [](double usual, double high) {
      return [=](std::size_t s) {
        return s == 40 ? high : usual + 0.001 * static_cast<double>(s % 5);
      };
    };
    RunRecord run = quiet_run();
    put(run, {6}, &RankRecord::scalars, "loss",
        [](std::size_t s) { return s == 40 ? 9 : 4 - 0.02 * static_cast<double>(s); });
    CHECK(found_in(run).empty());  // a loss alone is no finding
    put(run, all_ranks(), &RankRecord::scalars, "grad_norm", jump(1, 20));
    const Finding f = only_finding(run);
    CHECK(f.code == "CROSS.CORRELATED_INSTABILITY");
    CHECK(evidence(f, "first_step") == 40);
    CHECK(evidence(f, "events") == 1);
    put(run, all_ranks(), &RankRecord::scalars, "grad_norm", jump(1, 1));
    put(run, {6}, &RankRecord::phases, "forward", jump(0.031, 0.3));
    CHECK(only_finding(run).code == "CROSS.CORRELATED_INSTABILITY");
  }

  TEST_CASE("much communication is told with what backward hides of it, where that is known") {
    RunRecord run = quiet_run();
    put(run, all_ranks(), &RankRecord::phases, "comm", always(0.06));
    const Finding plain = only_finding(run);
    CHECK(plain.code == "DIST.COMM_BOUND");
    CHECK(plain.evidence.size() == 1);
    CHECK(contains(plain.suggestion, "while backward still runs"));
    put(run, {2, 4}, &RankRecord::own, "reduction", always(0.1));
    put(run, {2, 4}, &RankRecord::own, "reduction_exposed",
        [](std::size_t s) { return s % 2 == 0 ? 0.02 : 0.04; });
    const Finding told = only_finding(run);
    CHECK(evidence(told, "hidden_share") == doctest::Approx(0.7));
    CHECK(contains(told.detail, "backward hides 70 %"));
    CHECK_FALSE(contains(told.suggestion, "while backward still runs"));
    put(run, {4}, &RankRecord::own, "reduction_exposed", always(1e300));  // more than the phase has
    put(run, {2}, &RankRecord::own, "reduction", always(1e300));
    CHECK(only_finding(run).evidence.size() == 1);
  }

  TEST_CASE("a rank that recomputes more than the others is told as such, not as a slow one") {
    RunRecord run = quiet_run();
    recompute(run, {3}, 0.03);
    const Finding f = only_finding(run);
    CHECK(f.code == "BUDGET.TOO_TIGHT");
    CHECK(f.title == "Keeping to the memory budget takes much time on rank 3 of 8");
    CHECK(contains(f.detail, "The other ranks wait for these ranks in every step."));
    CHECK(*f.cost_seconds == doctest::Approx(0.03 * kSteps));
    CHECK(named(f) == Numbers{3});
  }

  TEST_CASE("a rank that waits for offloaded blocks is told as such, not as a slow one") {
    RunRecord run = quiet_run();
    recompute(run, {2, 3}, 0.03);
    put(run, {2, 3}, &RankRecord::own, "offloaded_blocks", always(3));
    put(run, {2, 3}, &RankRecord::own, "recomputed_blocks", always(0));
    const Finding f = only_finding(run);
    CHECK(f.code == "OFFLOAD.TIER_SLOW");
    CHECK(f.title == "Backward waits for offloaded activations on ranks 2-3 of 8");
    CHECK(named(f) == Numbers{2, 3});
  }

  TEST_CASE("recomputation that others are waited for in costs nothing") {
    RunRecord run = quiet_run();
    recompute(run, {3}, 0.03);
    put(run, {5}, &RankRecord::phases, "forward", always(0.061));
    const Finding f = only_finding(run);
    CHECK(f.code == "DIST.STRAGGLER");
    CHECK(named(f) == Numbers{3, 5});
    CHECK(
        contains(f.detail, "Rank 3 takes 32 % longer than most, mostly in recomputation; rank 5"));
  }

  TEST_CASE("a rank that recomputes for a while is slow for that while, and told why") {
    RunRecord run = quiet_run();
    recompute(run, {3}, 0.04, 65);
    const Finding f = only_finding(run);
    CHECK(f.code == "DIST.STRAGGLER");
    CHECK(contains(f.detail, "mostly in recomputation (steps 65 to 79)"));
    CHECK(contains(f.suggestion, "memory.budget"));
  }

  TEST_CASE("a rank that is slow beside its recomputation is still found") {
    RunRecord run = quiet_run();
    recompute(run, all_ranks(), 0.03);
    put(run, {6}, &RankRecord::phases, "forward", always(0.061));
    Codes codes;
    for (const Finding& f : found_in(run)) {
      codes.push_back(f.code);
      if (f.code == "DIST.STRAGGLER") CHECK(named(f) == Numbers{6});
    }
    std::ranges::sort(codes);
    CHECK(codes == Codes{"BUDGET.TOO_TIGHT", "DIST.STRAGGLER"});
  }

  TEST_CASE("of the ranks that recompute those with room are named, where it costs little") {
    RunRecord run = quiet_run();
    recompute(run, all_ranks(), 0.002);
    put(run, {3}, &RankRecord::own, "headroom", always(800 * kMib));
    const Finding f = only_finding(run);
    CHECK(f.code == "BUDGET.TOO_TIGHT");
    CHECK(f.title == "Activations are recomputed or moved although there is room on rank 3 of 8");
    CHECK(contains(f.detail, "800 MiB free on rank 3"));
    CHECK(named(f) == Numbers{3});
  }

  TEST_CASE("a longer backward pass is normal as far as ranks recompute") {
    RunRecord run = quiet_run();
    put(run, all_ranks(), &RankRecord::own, "headroom", always(300 * kMib));
    put(run, {1, 2, 3, 4, 5, 6, 7}, &RankRecord::own, "recomputed_blocks", always(3));
    put(run, all_ranks(), &RankRecord::phases, "backward", always(0.031 * 3));
    CHECK(found_in(run).empty());
    put(run, {1, 2, 3, 4, 5, 6}, &RankRecord::own, "recomputed_blocks", always(0));
    CHECK(only_finding(run).code == "TIMING.BACKWARD_HEAVY");
  }

  TEST_CASE("a rank that takes many times as long is named, however much the others' steps vary") {
    // Milliseconds of two ranks on a busy machine; one rank has six times the work.
    const std::array<std::vector<int>, 2> work = {
        {{48, 42, 47, 38, 40, 27, 29, 20, 26, 34, 26, 28, 21, 22,
          26, 42, 27, 23, 25, 28, 32, 23, 13, 22, 31, 27, 33, 21},
         {418, 428, 465, 436, 316, 249, 243, 242, 291, 255, 229, 257, 242, 235,
          263, 335, 240, 235, 235, 242, 234, 247, 272, 244, 259, 240, 365, 292}}};
    RunRecord run;
    for (std::int32_t r = 0; r < 2; ++r) {
      RankRecord& rank = run.ranks.emplace_back();
      rank.rank = rank.info.rank = r;
      const std::vector<int>& own = work[static_cast<std::size_t>(r)];
      for (std::size_t s = 0; s < own.size(); ++s) {
        rank.steps.push(static_cast<double>(s));
        rank.phases["forward"].push(own[s] * 1e-3);
        rank.phases["comm"].push(std::max(work[0][s], work[1][s]) * 1e-3 + 0.001 - own[s] * 1e-3);
      }
    }
    const std::vector<Finding> found = found_in(run);
    REQUIRE(!found.empty());
    CHECK(found[0].code == "DIST.STRAGGLER");
    CHECK(found[0].ranks == std::vector<std::int32_t>{1});
  }

  TEST_CASE("of a trace the device with most communication that nothing hides is named") {
    Kernels kernels;
    for (const std::int64_t device : {0, 1, 2}) {
      const double compute = device == 1 ? 50 : 90;
      kernels.add({device, "kernel", "gemm", 0, compute});
      kernels.add({device, "kernel", "ncclAllReduce", compute, 100 - compute});
    }
    const std::vector<Finding> found = found_in(quiet_run(), kernel_trace_of(std::move(kernels)));
    REQUIRE(found.size() == 1);
    CHECK(found[0].code == "DIST.EXPOSED_COMM");
    CHECK(contains(found[0].detail, "Device 1 has most of it, 50 % of its time."));
    CHECK(evidence(found[0], "worst_device") == 1);
    CHECK(evidence(found[0], "worst_exposed_share") == doctest::Approx(0.5));
  }
}

}  // namespace
}  // namespace cox
