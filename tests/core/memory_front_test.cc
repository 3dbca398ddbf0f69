#include "coordinator/core/memory_front.h"

#include <optional>
#include <string>
#include <vector>

#include "coordinator/testing/random.h"

#include <doctest/doctest.h>

namespace {

using cox::MemoryAction;
using cox::MemoryFront;
using cox::MemoryPoint;
constexpr MemoryAction kKeep = MemoryAction::keep;
constexpr MemoryAction kAgain = MemoryAction::recompute;
constexpr MemoryAction kAway = MemoryAction::offload;

MemoryFront random_front(cox::testing::Random& random, std::size_t points) {
  MemoryFront front;
  std::int64_t peak = 1000;
  std::int64_t added = 1000000;
  for (std::size_t p = 0; p < points; ++p) {
    front.push_back({peak, added, {kKeep}});
    peak += 1 + static_cast<std::int64_t>(random.below(random.chance(0.1) ? 5000 : 50));
    added -= 1 + static_cast<std::int64_t>(random.below(500));
  }
  return front;
}

cox::MemoryFacts small_facts() {
  cox::MemoryModel model;
  model.front = {{60, 30, {kAgain, kAgain}}, {80, 10, {kKeep, kAgain}}, {100, 0, {kKeep, kKeep}}};
  model.base_bytes = 40;
  model.step_us = 100;
  model.kept_bytes = {25, 15};
  return {{model}, {0, 0, 0}, {200, 0, 100}};
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("a budget finds the fastest point within it, and a larger one never a slower point") {
    cox::testing::Random random(11);
    for (int i = 0; i < 200; ++i) {
      const MemoryFront front = random_front(random, 1 + random.below(300));
      std::optional<std::size_t> before;
      for (std::int64_t budget = 900; budget < front.back().peak_bytes + 200; budget += 37) {
        const auto found = cox::lookup(front, budget);
        REQUIRE(found.has_value() == (front.front().peak_bytes <= budget));
        if (!found) continue;
        REQUIRE(front[*found].peak_bytes <= budget);
        const bool is_fastest = *found + 1 == front.size() || front[*found + 1].peak_bytes > budget;
        REQUIRE(is_fastest);
        if (before) REQUIRE(front[*found].added_us <= front[*before].added_us);
        before = found;
      }
    }
    CHECK_FALSE(cox::lookup({}, 1 << 30).has_value());
  }

  TEST_CASE("a thinned front has both ends, few points, and is a front") {
    cox::testing::Random random(12);
    for (int i = 0; i < 100; ++i) {
      const MemoryFront front = random_front(random, 2 + random.below(2000));
      const std::size_t most = 2 + random.below(256);
      const MemoryFront few = cox::thinned(front, most);
      REQUIRE(few.size() <= most);
      REQUIRE(few.size() >= std::min<std::size_t>(front.size(), 2));
      CHECK(few.front() == front.front());
      CHECK(few.back() == front.back());
      for (std::size_t p = 1; p < few.size(); ++p) {
        REQUIRE(few[p].peak_bytes > few[p - 1].peak_bytes);
        REQUIRE(few[p].added_us < few[p - 1].added_us);
      }
      if (front.size() <= most) CHECK(few == front);
    }
  }

  TEST_CASE("levels are recompute, each with its number, name and place in the order") {
    using cox::MemoryAction;
    CHECK(cox::kActionsInOrder.front() == MemoryAction::keep);
    cox::ActionSet all = 0;
    for (const MemoryAction action : cox::kActionsInOrder) {
      CHECK_FALSE(cox::contains(all, action));
      all |= cox::only(action);
      const unsigned level = cox::level_of(action);
      const bool is_full = action == MemoryAction::recompute;
      CHECK(cox::is_recompute(action) == (is_full || level > 0));
      CHECK(cox::contains(cox::kEveryRecompute, action) == cox::is_recompute(action));
      CHECK(cox::every(action) ==
            (cox::is_recompute(action) ? cox::kEveryRecompute : cox::only(action)));
      if (level == 0) {
        CHECK(cox::kind_of(action) == action);
        CHECK(cox::in_words(action) == cox::to_string(action));
        continue;
      }
      const std::string number = std::to_string(level);
      CHECK(cox::recompute_level(level) == action);
      CHECK(static_cast<unsigned>(action) == 3 + level);
      CHECK(cox::kind_of(action) == MemoryAction::recompute);
      CHECK(cox::to_string(action) == "recompute " + number);
      CHECK(cox::in_words(action) == "recompute " + number + " of 7");
    }
    CHECK(all == cox::kEveryAction);
    CHECK(cox::without_kind(all, cox::recompute_level(4)) == 0b1101);
    CHECK(cox::without(all, cox::recompute_level(7)) == 0x3FF);
  }

  TEST_CASE("plans that another one beats are left out of a front") {
    const MemoryFront front = cox::front_of(
        {{100, 5, {}}, {80, 7, {}}, {90, 7, {}}, {80, 9, {}}, {120, 5, {}}, {70, 20, {}}});
    CHECK(front == MemoryFront{{70, 20, {}}, {80, 7, {}}, {100, 5, {}}});
    CHECK(cox::front_of({}).empty());
  }

  TEST_CASE("facts that fit the job are valid, all others name what is wrong") {
    CHECK(cox::validate(small_facts(), 3, 2).ok());
    CHECK(cox::validate(cox::MemoryFacts{}, 3, 2).ok());
    cox::MemoryFacts facts = small_facts();
    std::size_t ranks = 3;
    SUBCASE("other ranks") {
      ranks = 4;
    }
    SUBCASE("limits of other ranks") {
      facts.limit_bytes.pop_back();
    }
    SUBCASE("a negative limit") {
      facts.limit_bytes[1] = -1;
    }
    SUBCASE("an unknown model") {
      facts.model_of_rank[2] = 1;
    }
    SUBCASE("ranks without models") {
      facts.models.clear();
    }
    SUBCASE("too many models") {
      facts.models.resize(cox::kMaxMemoryModels + 1, facts.models[0]);
    }
    SUBCASE("no points") {
      facts.models[0].front.clear();
    }
    SUBCASE("points out of order") {
      std::swap(facts.models[0].front[0], facts.models[0].front[1]);
    }
    SUBCASE("a point that is no faster") {
      facts.models[0].front[1].added_us = 30;
    }
    SUBCASE("a negative peak") {
      facts.models[0].front[0].peak_bytes = -1;
    }
    SUBCASE("bytes that no machine has") {
      facts.models[0].front[2].peak_bytes = cox::kMaxModelValue + 1;
    }
    SUBCASE("actions of another model") {
      facts.models[0].front[2].actions.pop_back();
    }
    SUBCASE("an action that is none") {
      facts.models[0].front[0].actions[0] = static_cast<MemoryAction>(11);
    }
    SUBCASE("bytes of other blocks") {
      facts.models[0].kept_bytes.pop_back();
    }
    SUBCASE("a negative time") {
      facts.models[0].step_us = -1;
    }
    const cox::Status status = cox::validate(facts, ranks, 2);
    CHECK(status.code() == cox::StatusCode::invalid_argument);
    CHECK(status.message().starts_with("memory: "));
  }

  TEST_CASE("the cost of a plan is its point's, or bounded by what it keeps beyond one") {
    const cox::MemoryModel model = small_facts().models[0];
    const auto cost = [&](std::vector<MemoryAction> actions) {
      return cox::cost_of(model, actions);
    };
    CHECK(cost({kKeep, kAgain})->peak_bytes == 80);
    CHECK(cost({kKeep, kAgain})->added_us == 10);
    CHECK(cost({kAgain, kKeep})->peak_bytes == 75);  // 60 and the bytes kept by block 1
    CHECK(cost({kAgain, kKeep})->added_us == 30);
    CHECK_FALSE(cost({kAway, kKeep}).has_value());
    cox::MemoryModel vague = model;
    vague.kept_bytes.clear();
    CHECK_FALSE(cox::cost_of(vague, std::vector{kAgain, kKeep}).has_value());
    CHECK(cox::cost_of(vague, std::vector{kAgain, kAgain})->peak_bytes == 60);
  }
}
