#include "metrics/analysis/whatif/run_model.h"

#include <limits>
#include <string>
#include <vector>

#include "metrics/analysis/whatif/what_if.h"

#include <doctest/doctest.h>

namespace cox::diagnosis {
namespace {

// data, forward, backward, compute, optimizer, other, comm
RunStep step(std::int64_t number, double forward, double backward, double comm) {
  return {number, {0, forward, backward, 0, 0, 0, comm}};
}

RunPhases two_ranks() {
  // The second rank arrives 2 s later; the reduction takes 1 s.
  return {{{step(0, 1, 2, 3), step(1, 1, 2, 3)}, {step(0, 2, 3, 1), step(1, 2, 3, 1)}}, {}};
}

TEST_SUITE("analysis.run_phases") {
  TEST_CASE("waiting for the last rank is taken out of communication") {
    const auto model = model_of(two_ranks());
    REQUIRE_MESSAGE(model.ok(), model.status().message());
    CHECK(model->dp_ranks == 2);
    CHECK(model->ranks == std::vector<std::int32_t>{0, 1});
    CHECK(model->types.size() == 3);
    CHECK(model->own_seconds == std::vector<double>{1, 2, 2, 3, 1, 1, 1, 2, 2, 3, 1, 1});
    CHECK(model->traced_seconds == std::vector<double>{6, 6});
    CHECK(simulate(*model, model->own_seconds) == std::vector<double>{6, 6});
    CHECK(model->gaps.empty());
  }

  TEST_CASE("the rank and the phases that cost time are found") {
    const auto figures = what_if(*model_of(two_ranks()));
    REQUIRE(figures.ok());
    CHECK(figures->ideal_seconds == 5);
    CHECK(figures->slowdown == doctest::Approx(1.2));
    CHECK(figures->of_dp_ranks[0] == doctest::Approx(1));
    CHECK(figures->of_dp_ranks[1] == doctest::Approx(1.2));
    CHECK(figures->culprits.ranks == std::vector<std::int32_t>{1});
  }

  TEST_CASE("a rank whose own transfer is longer is told from those that wait") {
    const RunPhases run = {{{step(0, 1, 1, 1)}, {step(0, 1, 1, 4)}, {step(0, 1, 1, 1)}}, {}};
    const auto model = model_of(run);
    REQUIRE(model.ok());
    const auto figures = what_if(*model);
    REQUIRE(figures.ok());
    CHECK(figures->labels[0].label == "comm");
    CHECK(figures->culprits.ranks == std::vector<std::int32_t>{1});
  }

  TEST_CASE("ranks that write down no waiting are not taken for slow links") {
    const RunPhases run = {{{step(0, 1, 1, 1)}, {step(0, 2, 2, 1)}}, {}};
    const auto model = model_of(run);
    REQUIRE(model.ok());
    CHECK(model->own_seconds == std::vector<double>{1, 2, 1, 2, 1, 1});
  }

  TEST_CASE("steps that a rank lacks, or did no work in, are left out and told") {
    RunPhases run = two_ranks();
    run.of_ranks[0].push_back(step(2, 1, 1, 1));
    run.of_ranks[0].push_back(step(3, 1, 1, 1));
    run.of_ranks[1].push_back(step(3, 0, 0, 2));
    run.of_ranks[1].push_back(step(1, 2, 3, 1));  // again
    run.gaps = {"from the reader"};
    const auto model = model_of(run);
    REQUIRE_MESSAGE(model.ok(), model.status().message());
    CHECK(model->steps == std::vector<std::int64_t>{0, 1});
    CHECK(model->gaps ==
          std::vector<std::string>{
              "from the reader",
              "rank 0: 2 steps are left out that some rank does not have, or has no work in",
              "rank 1: 1 steps were done again after a rollback; the last time counts",
              "rank 1: 1 steps are left out that some rank does not have, or has no work in"});
  }

  TEST_CASE("a single rank has nothing to be compared with") {
    const auto model = model_of(RunPhases{{{step(0, 1, 2, 0), step(1, 1, 3, 0)}}, {}});
    REQUIRE(model.ok());
    REQUIRE(model->gaps.size() == 1);
    const auto figures = what_if(*model);
    REQUIRE(figures.ok());
    CHECK(figures->slowdown == doctest::Approx(1));
    CHECK_FALSE(figures->data_parallel_free);
  }

  TEST_CASE("what cannot be a run is an error that says why") {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    const struct {
      RunPhases run;
      std::string words;
    } cases[] = {
        {{{}, {}}, "expected ranks with steps, found none"},
        {{{{step(0, 1, 1, 1)}, {}}, {}}, "rank 1: expected steps with phases, found none"},
        {{{{step(0, 1, 1, 1)}, {step(1, 1, 1, 1)}}, {}}, "expected steps in which all 2 ranks"},
        {{{{step(0, 1, -1, 1)}}, {}},
         "rank 0: step 0: backward: expected seconds, finite and from 0"},
        {{{{step(7, 1, 1, kNan)}}, {}}, "rank 0: step 7: comm: expected seconds"},
        {{{{step(0, 0, 0, 1)}}, {}}, "expected steps in which all 1 ranks have worked"},
    };
    for (const auto& it : cases) {
      const auto model = model_of(it.run);
      REQUIRE_FALSE(model.ok());
      CHECK_MESSAGE(model.status().message().starts_with(it.words), model.status().message());
    }
  }
}

}  // namespace
}  // namespace cox::diagnosis
