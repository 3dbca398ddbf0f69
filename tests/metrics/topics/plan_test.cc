#include "metrics/topics/plan.h"

#include <cstring>

#include "metrics/blocks.h"
#include "metrics/plan_counts.h"

#include <doctest/doctest.h>

namespace cox::metrics {
namespace {

RankSignal report(std::int32_t rank, std::uint16_t block, float seconds) {
  BlockProfile profile;
  profile.block = BlockId(block);
  profile.blocks = 3;
  std::strcpy(profile.name.data(), "h.1");
  profile.forward_seconds = seconds;
  RankSignal signal;
  signal.rank = RankId(rank);
  signal.fragment = make_fragment(profile);
  return signal;
}

StepSignals round_of(std::vector<RankSignal> reports) {
  StepSignals signals;
  signals.reports = std::move(reports);
  return signals;
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("a block's cost is that of the rank where it takes longest") {
    auto costs = with_profiles(nullptr, 3, round_of({report(0, 1, 0.2f), report(1, 1, 0.5f)}));
    REQUIRE(costs->size() == 3);
    CHECK(!(*costs)[0].is_known);
    CHECK((*costs)[1].rank == RankId(1));
    costs = with_profiles(costs, 3, round_of({report(0, 1, 0.3f)}));
    CHECK((*costs)[1].rank == RankId(1));
    costs = with_profiles(costs, 3, round_of({report(1, 1, 0.1f)}));
    CHECK((*costs)[1].profile.forward_seconds == 0.1f);
  }

  TEST_CASE("a round without profiles leaves the costs as they are, and so does a foreign block") {
    const auto costs = with_profiles(nullptr, 3, round_of({report(0, 1, 0.2f)}));
    CHECK(with_profiles(costs, 3, round_of({})) == costs);
    CHECK(with_profiles(costs, 1, round_of({report(0, 2, 9.0f)})) == costs);
  }

  TEST_CASE("what all block names begin with ends with a dot") {
    JobFacts job;
    job.blocks = {"transformer.h.1", "transformer.h.10", "transformer.h.12"};
    CHECK(common_prefix(job) == "transformer.h.");
    job.blocks = {"encoder", "decoder"};
    CHECK(common_prefix(job).empty());
    job.blocks = {"transformer.h.1"};
    CHECK(common_prefix(job).empty());
  }
}

}  // namespace cox::metrics
