#include "metrics/topics/decisions.h"

#include <string>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

std::shared_ptr<const DecisionList> add(const DecisionList& list, std::uint64_t round,
                                        Outcome outcome, std::string text,
                                        std::size_t capacity = 200) {
  StepSignals signals;
  signals.round = RoundId(round);
  Decision decision;
  Reason reason;
  reason.policy = PolicyKind::guard;
  reason.code = ReasonCode::custom;
  reason.outcome = outcome;
  reason.text = std::move(text);
  decision.reasons.push_back(reason);
  const Plan plan;
  const JobFacts job;
  return extended(list, {signals, decision, plan, job, {}}, capacity);
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("a reason that changes nothing is listed once, with a count and its newest wording") {
    auto list = add({}, 5, Outcome::vetoed, "first");
    list = add(*list, 9, Outcome::vetoed, "second");
    REQUIRE(list->size() == 1);
    CHECK(list->front()->count == 2);
    CHECK(list->front()->first_round == RoundId(5));
    CHECK(list->front()->last_round == RoundId(9));
    CHECK(list->front()->reason.text == "second");
  }

  TEST_CASE("changes are never folded together, and other outcomes stay apart") {
    auto list = add({}, 5, Outcome::changed, "a");
    list = add(*list, 6, Outcome::changed, "b");
    list = add(*list, 7, Outcome::vetoed, "c");
    CHECK(list->size() == 3);
  }

  TEST_CASE("after a long silence the same reason is news again") {
    auto list = add({}, 5, Outcome::vetoed, "a");
    list = add(*list, 1000, Outcome::vetoed, "a");
    CHECK(list->size() == 2);
  }

  TEST_CASE("the oldest entries make room") {
    auto list = std::make_shared<const DecisionList>();
    for (std::uint64_t round = 1; round <= 20; ++round)
      list = add(*list, round, Outcome::changed, std::to_string(round), 8);
    REQUIRE(list->size() == 8);
    CHECK(list->front()->reason.text == "13");
    CHECK(list->back()->reason.text == "20");
  }
}
