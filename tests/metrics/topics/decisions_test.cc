#include "metrics/topics/decisions.h"

#include <string>

#include "metrics/snapshot.h"
#include "metrics/status_page.h"
#include "metrics/topic.h"

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

// Returns a measured change of shares, and an unapplied one.
Snapshot snapshot_with_effects() {
  Effect shares;
  shares.reason.policy = PolicyKind::shares;
  shares.reason.code = ReasonCode::shares_changed;
  shares.reason.text = "rank 1 takes <5>";
  shares.reason.forecast = {.step_ratio = 0.75, .step_ratio_low = 0.7, .step_ratio_high = 0.8};
  shares.step = StepId(221);
  shares.plan = 1;
  shares.before = {8, 0.332, 6000, 32 << 20};
  shares.after = {20, 0.249, 8000, 33 << 20};
  shares.measured = {0.75, 0.74, 0.76};
  shares.verdict = Verdict::did_not_help;
  shares.is_taken_back = true;
  shares.seconds_saved = -65;
  shares.sharing = 2;
  Effect memory = shares;
  memory.reason.policy = PolicyKind::memory;
  memory.reason.forecast = {};
  memory.reason.forecast.peak_bytes = 31 << 20;
  memory.plan = 2;
  memory.after = {};
  memory.measured = {};
  memory.verdict = Verdict::measuring;
  memory.is_taken_back = false;
  memory.seconds_saved = 0;
  DecisionsView view;
  view.scores = {{PolicyKind::shares, 1, 2, 3, 4, 50, 60, -70}};
  view.effects = std::make_shared<const SharedEffects>(
      SharedEffects{std::make_shared<const Effect>(std::move(shares)),
                    std::make_shared<const Effect>(std::move(memory))});
  Snapshot snapshot;
  snapshot.views.set(std::make_shared<const DecisionsView>(std::move(view)));
  return snapshot;
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

  TEST_CASE("effects are shown with forecast and measurements, the newest first") {
    const std::string page = section_html(decisions_topic().sections[0], snapshot_with_effects());
    const auto at = [&page](const char* part) {
      CAPTURE(part);
      REQUIRE(page.find(part) != std::string::npos);
      return page.find(part);
    };
    CHECK(at("not yet") < at("332 ms → 249 ms: -25.0 % (-26.0 % to -24.0 %)"));
    at("<td>peak 31.0 MiB</td>");
    at("<td>step -25.0 % (-30.0 % to -20.0 %)</td>");
    at("did not help, taken back; 1 min 05 s lost");
    at("measured with 1 more of its plan");
    at("Score of each policy");
    at("32.0 MiB → 33.0 MiB");
    at("rank 1 takes &lt;5&gt;");
    CHECK(section_html(decisions_topic().sections[0], Snapshot{}).empty());
  }

  TEST_CASE("effects come as JSON, with null for what is not known") {
    const auto json = decisions_topic().documents[1].json(snapshot_with_effects(), "");
    REQUIRE(json.ok());
    for (const char* part :
         {"\"effects\":[{\"policy\":\"shares\",\"code\":\"shares_changed\"",
          "\"predicted\":{\"step_ratio\":0.75,\"step_ratio_low\":0.7,\"step_ratio_high\":0.8,"
          "\"peak_bytes\":null}",
          "\"before\":{\"rounds\":8,\"step_seconds\":0.332,\"tokens_per_second\":6000,"
          "\"peak_bytes\":33554432}",
          "\"predicted\":{\"step_ratio\":null,\"step_ratio_low\":null,\"step_ratio_high\":null,"
          "\"peak_bytes\":32505856}",
          "\"after\":null,\"measured\":{\"step_ratio\":null",
          "\"measured\":{\"step_ratio\":0.75,\"step_ratio_low\":0.74,\"step_ratio_high\":0.76},"
          "\"verdict\":\"did not help\",\"doubt\":\"\",\"seconds_saved\":-65,\"sharing\":2,"
          "\"taken_back\":true}",
          "\"scores\":[{\"policy\":\"shares\",\"helped\":1,\"did_not_help\":2,\"not_sure\":3,"
          "\"taken_back\":4,\"seconds_gained\":50,\"seconds_lost\":60,"
          "\"seconds_promised\":-70}]}"}) {
      CAPTURE(part);
      CHECK(json->find(part) != std::string::npos);
    }
  }
}
