#include "metrics/analysis/whatif/run_model.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "metrics/analysis/whatif/what_if.h"
#include "metrics/records/run_reader.h"

#include <doctest/doctest.h>

namespace cox::diagnosis {
namespace {

struct Step {
  double number = 0;
  double forward = 0;
  double backward = 0;
  double comm = 0;
};

// Returns the record of ranks with these steps.
RunRecord run_of(const std::vector<std::vector<Step>>& ranks) {
  RunRecord run;
  for (const std::vector<Step>& steps : ranks) {
    RankRecord& rank = run.ranks.emplace_back();
    rank.rank = static_cast<std::int32_t>(run.ranks.size()) - 1;
    for (const Step& step : steps) {
      rank.steps.push(step.number);
      rank.timestamps.push(absent());
      rank.phases["forward"].push(step.forward);
      rank.phases["backward"].push(step.backward);
      rank.phases["comm"].push(step.comm);
    }
  }
  return run;
}

// Returns the record of one rank whose steps.jsonl has these lines.
RunRecord run_from(const std::string& lines) {
  RunRecord run;
  io::StepLines reader(run.ranks.emplace_back());
  reader.take(lines);
  reader.finish();
  return run;
}

// The second rank arrives 2 s later; the reduction takes 1 s.
const std::vector<std::vector<Step>> kTwoRanks = {{{0, 1, 2, 3}, {1, 1, 2, 3}},
                                                  {{0, 2, 3, 1}, {1, 2, 3, 1}}};

TEST_SUITE("analysis.run_model") {
  TEST_CASE("waiting for the last rank is taken out of communication") {
    const auto model = model_of(run_of(kTwoRanks));
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
    const auto figures = what_if(*model_of(run_of(kTwoRanks)));
    REQUIRE(figures.ok());
    CHECK(figures->ideal_seconds == 5);
    CHECK(figures->slowdown == doctest::Approx(1.2));
    CHECK(figures->of_dp_ranks[0] == doctest::Approx(1));
    CHECK(figures->of_dp_ranks[1] == doctest::Approx(1.2));
    CHECK(figures->culprits.ranks == std::vector<std::int32_t>{1});
  }

  TEST_CASE("a rank whose own transfer is longer is told from those that wait") {
    const auto model = model_of(run_of({{{0, 1, 1, 1}}, {{0, 1, 1, 4}}, {{0, 1, 1, 1}}}));
    REQUIRE(model.ok());
    const auto figures = what_if(*model);
    REQUIRE(figures.ok());
    CHECK(figures->labels[0].label == "comm");
    CHECK(figures->culprits.ranks == std::vector<std::int32_t>{1});
  }

  TEST_CASE("ranks that write down no waiting are not taken for slow links") {
    const auto model = model_of(run_of({{{0, 1, 1, 1}}, {{0, 2, 2, 1}}}));
    REQUIRE(model.ok());
    CHECK(model->own_seconds == std::vector<double>{1, 2, 1, 2, 1, 1});
  }

  TEST_CASE("steps that a rank lacks, or did no work in, are left out and told") {
    auto steps = kTwoRanks;
    steps[0].push_back({2, 1, 1, 1});
    steps[0].push_back({3, 1, 1, 1});
    steps[1].push_back({3, 0, 0, 2});
    steps[1].push_back({1, 2, 3, 1});  // a repeated step
    RunRecord run = run_of(steps);
    run.gaps = {"from the reader"};
    const auto model = model_of(run);
    REQUIRE_MESSAGE(model.ok(), model.status().message());
    CHECK(model->steps == std::vector<std::int64_t>{0, 1});
    CHECK(model->gaps ==
          std::vector<std::string>{
              "from the reader",
              "rank 0: 2 steps are left out because some rank lacks them or has no work in them",
              "rank 1: 1 steps were done again after a rollback; the last time counts",
              "rank 1: 1 steps are left out because some rank lacks them or has no work in them"});
  }

  TEST_CASE("a single rank has nothing to be compared with") {
    const auto model = model_of(run_of({{{0, 1, 2, 0}, {1, 1, 3, 0}}}));
    REQUIRE(model.ok());
    REQUIRE(model->gaps.size() == 1);
    const auto figures = what_if(*model);
    REQUIRE(figures.ok());
    CHECK(figures->slowdown == doctest::Approx(1));
    CHECK_FALSE(figures->data_parallel_free);
  }

  TEST_CASE("steps that were not measured are left out, and what is odd about the others is told") {
    const auto model =
        model_of(run_from(R"({"step":4,"timestamp":9,"phases":{"forward":0.5,"comm":0.25}})"
                          "\n"
                          R"({"step":5,"phases":{"forward":NaN}})"
                          "\n"
                          R"({"step":6})"
                          "\n"
                          R"({"step":7,"timestamp":8,"phases":{"data":1,"lunch":1}})"
                          "\n"));
    REQUIRE_MESSAGE(model.ok(), model.status().message());
    CHECK(model->steps == std::vector<std::int64_t>{4, 7});
    CHECK(model->own_seconds == std::vector<double>{0, 0.5, 0.25, 1, 0, 0});
    CHECK(model->gaps ==
          std::vector<std::string>{
              "rank 0: 1 times of unknown phases do not count",
              "rank 0: 1 times the clock ran backwards between steps",
              "rank 0: 2 steps are left out because some rank lacks them or has no work in them",
              "there is one rank: it is compared with its own other steps only"});
  }

  TEST_CASE("of a long run the newest steps are kept, in their order") {
    std::string lines;
    for (int step = 0; step < 25; ++step)
      lines += "{\"step\":" + std::to_string(step) + ",\"phases\":{\"data\":1}}\n";
    const RunRecord run = run_from(lines);
    for (const std::size_t most : {1U, 7U, 24U, 25U, 26U}) {
      CAPTURE(most);
      const auto model = model_of(run, most);
      REQUIRE(model.ok());
      const std::size_t kept = std::min<std::size_t>(most, 25);
      REQUIRE(model->steps.size() == kept);
      CHECK(model->gaps.size() == (kept < 25 ? 2 : 1));
      for (std::size_t i = 0; i < kept; ++i)
        CHECK(model->steps[i] == static_cast<std::int64_t>(25 - kept + i));
    }
  }

  TEST_CASE("what cannot be a run is an error that says why") {
    constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
    const struct {
      std::vector<std::vector<Step>> ranks;
      std::string words;
    } cases[] = {
        {{}, "expected ranks with steps, found none"},
        {{{{0, 1, 1, 1}}, {}}, "rank 1: expected steps with phases, found none"},
        {{{{0, 1, 1, 1}}, {{1, 1, 1, 1}}}, "expected steps in which all 2 ranks"},
        {{{{0, 1, -1, 1}}}, "rank 0: step 0: backward: expected seconds, finite and from 0"},
        {{{{7, 1, 1, kNan}}}, "expected steps in which all 1 ranks have worked"},
        {{{{0, 0, 0, 1}}}, "expected steps in which all 1 ranks have worked"},
    };
    for (const auto& it : cases) {
      const auto model = model_of(run_of(it.ranks));
      REQUIRE_FALSE(model.ok());
      CHECK_MESSAGE(model.status().message().starts_with(it.words), model.status().message());
    }
  }
}

}  // namespace
}  // namespace cox::diagnosis
