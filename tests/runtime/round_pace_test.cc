#include "coordinator/runtime/round_pace.h"

#include <initializer_list>

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// A pace after rounds that took so many milliseconds each.
RoundPace after(std::initializer_list<int> rounds) {
  RoundPace pace;
  RoundPace::Clock::time_point now{};
  pace.round_at(now);
  for (const int round : rounds) pace.round_at(now += milliseconds(round));
  return pace;
}

TEST_SUITE_BEGIN("round pace");

TEST_CASE("before enough rounds are known the reader is woken") {
  CHECK(RoundPace().nap() == nanoseconds(0));
  CHECK(after({80, 80, 80}).nap() == nanoseconds(0));
  CHECK(after({80, 80, 80, 80}).nap() == milliseconds(40));
}

TEST_CASE("a nap is half the shortest of the last rounds, and never long") {
  CHECK(after({40, 60, 60, 50}).nap() == milliseconds(20));
  CHECK(after({8, 40, 60, 60, 50}).nap() == milliseconds(20));
  CHECK(after({9000, 9000, 9000, 9000}).nap() == milliseconds(50));
  CHECK(after({4, 4, 4, 4}).nap() == milliseconds(2));
}

TEST_CASE("a round of less than 4 ms lets the reader be woken until it is forgotten") {
  CHECK(after({50, 50, 50, 3}).nap() == nanoseconds(0));
  CHECK(after({50, 50, 50, 3, 50, 50, 50}).nap() == nanoseconds(0));
  CHECK(after({50, 50, 50, 3, 50, 50, 50, 50}).nap() == nanoseconds(25'000'000));
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::runtime
