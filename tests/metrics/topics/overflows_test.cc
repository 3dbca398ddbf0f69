#include "metrics/topics/numerics.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

struct ReportedRound {
  StepSignals signals;
  Decision decision;
  Plan plan;
  JobFacts job;

  explicit ReportedRound(std::size_t blocks) {
    signals.round = RoundId(125);
    signals.evidence.resize(blocks);
    decision.summary.step = StepId(123);
    for (std::size_t b = 0; b < blocks; ++b) {
      signals.evidence[b].sampled = 10;
      job.blocks.push_back("h." + std::to_string(b));
    }
  }
  void report(std::int32_t rank, std::uint32_t values, SignalFlag flag) {
    RankSignal signal;
    signal.rank = RankId(rank);
    signal.nonfinite_values = values;
    signal.set(flag);
    signals.reports.push_back(signal);
    decision.summary.nonfinite_ranks += 1;
  }
  std::vector<Overflow> overflows(float scale) const {
    return overflows_of({signals, decision, plan, job, {}, {}}, scale);
  }
};

}  // namespace

TEST_SUITE("overflow log") {
  TEST_CASE("a round in which nothing overflowed has none") {
    CHECK(ReportedRound(3).overflows(65536).empty());
    CHECK(ReportedRound(0).overflows(0).empty());
  }

  TEST_CASE("an overflow carries block, pass, rank, values, scale and whether the step counted") {
    ReportedRound round(4);
    round.signals.evidence[2].overflow_backward = 41;
    round.signals.evidence[2].rank_of_overflow = RankId(3);
    round.decision.summary.skipped_ranks = 4;
    const auto found = round.overflows(65536);
    REQUIRE(found.size() == 1);
    CHECK(found[0].block == 2);
    CHECK(found[0].pass == Pass::backward);
    CHECK(overflow_text(round.job, found[0]) ==
          "step 123, round 125: block h.2, backward, rank 3: 41 values not finite at loss scale "
          "65536; the step was skipped");
  }

  TEST_CASE("several come in the order in which blocks run, and the first is the last one told") {
    ReportedRound round(3);
    round.signals.evidence[0].overflow_backward = 1;
    round.signals.evidence[1].overflow_backward = 2;
    round.signals.evidence[1].overflow_forward = 3;
    round.signals.evidence[2].overflow_forward = 4;
    const auto found = round.overflows(0);
    REQUIRE(found.size() == 4);
    const std::uint64_t expected[] = {3, 4, 2, 1};
    for (std::size_t i = 0; i < 4; ++i) CHECK(found[i].values == expected[i]);
    const auto kept = with_overflows({}, found);
    CHECK(kept.back() == found.front());
    CHECK(overflow_text(round.job, kept.front()) ==
          "step 123, round 125: block h.0, backward: 1 value not finite");
  }

  TEST_CASE("outside of all blocks is said where somebody looked and no block is to blame") {
    ReportedRound round(3);
    round.report(1, 7, SignalFlag::nonfinite_gradient);
    round.report(2, 5, SignalFlag::nonfinite_gradient);
    auto found = round.overflows(8);
    REQUIRE(found.size() == 1);
    CHECK(found[0].block == -1);
    CHECK(found[0].rank == RankId(1));
    CHECK(found[0].pass == Pass::backward);
    CHECK(overflow_text(round.job, found[0]) ==
          "step 123, round 125: outside of all blocks, backward, rank 1: 12 values not finite at "
          "loss scale 8");
    for (BlockEvidence& block : round.signals.evidence) block = {};
    CHECK(round.overflows(8).empty());  // no evidence, so no claim
    Reason reason;
    reason.code = ReasonCode::overflow_outside;
    round.decision.reasons.push_back(reason);
    CHECK(round.overflows(8).size() == 1);
  }

  TEST_CASE("a loss that is not finite while all blocks are makes it forward") {
    ReportedRound round(2);
    round.report(0, 0, SignalFlag::nonfinite_loss);
    round.report(1, 9, SignalFlag::nonfinite_gradient);
    const auto found = round.overflows(0);
    REQUIRE(found.size() == 1);
    CHECK(found[0].pass == Pass::forward);
    CHECK(found[0].rank == RankId(0));
  }

  TEST_CASE("only the newest few are kept, oldest first") {
    std::vector<Overflow> kept;
    for (std::uint64_t r = 1; r <= 40; ++r) {
      Overflow one;
      one.round = RoundId(r);
      kept = with_overflows(kept, {one});
    }
    CHECK(kept.size() == kOverflowsKept);
    CHECK(kept.front().round == RoundId(41 - kOverflowsKept));
    CHECK(kept.back().round == RoundId(40));
    CHECK(with_overflows({}, std::vector<Overflow>(900)).size() == kOverflowsKept);
  }

  TEST_CASE("scales are told in full") {
    CHECK(scale_text(65536) == "65536");
    CHECK(scale_text(16777216) == "16777216");
    CHECK(scale_text(0.5) == "0.5");
    CHECK(scale_text(0) == "0");
  }
}
