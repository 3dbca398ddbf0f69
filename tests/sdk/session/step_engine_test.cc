#include "sdk/src/session/step_engine.h"

#include <chrono>
#include <cmath>
#include <optional>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

std::optional<StepStage> after_all(std::initializer_list<StepEvent> events) {
  std::optional<StepStage> stage = StepStage::between;
  for (const StepEvent event : events) {
    if (stage) stage = after(*stage, event);
  }
  return stage;
}

}  // namespace

TEST_SUITE("step engine") {
  using enum StepEvent;

  TEST_CASE("a step that is averaged, one that is only watched and one that is left all end") {
    CHECK(after_all({begin, meet, conclude, end}) == StepStage::between);
    CHECK(after_all({begin, end}) == StepStage::between);
    CHECK(after_all({begin, meet, end}) == StepStage::between);
  }

  TEST_CASE("two reducers meet one after the other in a step") {
    CHECK(after_all({begin, meet, conclude, meet, conclude}) == StepStage::agreed);
  }

  TEST_CASE("nothing is concluded that did not meet, and nothing happens between steps") {
    CHECK(!after_all({begin, conclude}));
    CHECK(!after_all({begin, meet, meet}));
    CHECK(!after_all({begin, begin}));
    for (const StepEvent event : {meet, conclude, end}) CHECK(!after(StepStage::between, event));
  }

  TEST_CASE("the first steps may report one by one, later ones at intervals, none while held") {
    const Clock::time_point start{};
    const auto after = [&](int microseconds) {
      return start + std::chrono::microseconds(microseconds);
    };
    ReportSpacing spacing;
    spacing.opened(start);
    CHECK(spacing.may_open(1, after(0)));
    CHECK(spacing.may_open(ReportSpacing::kFirstSteps, after(10)));
    CHECK_FALSE(spacing.may_open(ReportSpacing::kFirstSteps + 1, after(10)));
    CHECK_FALSE(spacing.may_open(ReportSpacing::kFirstSteps + 1, after(3999)));
    CHECK(spacing.may_open(ReportSpacing::kFirstSteps + 1, after(4000)));
    spacing.opened(after(4000));
    CHECK_FALSE(spacing.may_open(1000, after(7999)));
    spacing.hold(ReportSpacing::Hold::yes);
    CHECK_FALSE(spacing.may_open(1, after(0)));
    CHECK_FALSE(spacing.may_open(1000, after(9000)));
    spacing.hold(ReportSpacing::Hold::no);
    CHECK(spacing.may_open(1000, after(9000)));
  }

  TEST_CASE("the loss of a step is the mean over the weights, and no number where there is none") {
    StepBallot merged;
    merged.loss_sum = 6;
    merged.weight = 4;
    merged.samples = 4;
    CHECK(outcome_of(merged).loss == 1.5);
    CHECK(outcome_of(merged).samples == 4);
    CHECK_FALSE(outcome_of(merged).repeat);
    merged.nonfinite_ranks = 1;
    CHECK(std::isnan(outcome_of(merged).loss));
    CHECK(std::isnan(outcome_of({}).loss));
    merged.repeat_max = 1;
    CHECK(outcome_of(merged).repeat);
  }
}
