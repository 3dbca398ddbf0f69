#include "sdk/src/session/tick_clock.h"

#include <random>

#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox::detail;
using namespace std::chrono_literals;

namespace {

using Time = std::chrono::steady_clock::time_point;

// A machine whose time the test advances. Static, because the clock's source is a type.
struct Machine {
  static inline double true_ns = 0;
  static inline double ticks_per_ns = 2.8;
  static inline double reading_ns = 20;  // duration of a reading of either clock
  static inline int clock_readings = 0;

  static void begin(double rate) {
    true_ns = 1e9;
    ticks_per_ns = rate;
    reading_ns = 20;
    clock_readings = 0;
  }
  static Time steady() {
    return Time(std::chrono::nanoseconds(static_cast<std::int64_t>(true_ns)));
  }

  static Time now() {
    ++clock_readings;
    true_ns += reading_ns;
    return steady();
  }
  static std::uint64_t ticks() { return static_cast<std::uint64_t>(true_ns * ticks_per_ns); }
};
using TestClock = BasicTickClock<Machine>;

double error_ns(TestClock& clock) {
  const Time told = clock.now();
  return std::abs(static_cast<double>((told - Machine::steady()).count()));
}

}  // namespace

TEST_SUITE("tick clock") {
  TEST_CASE("tells the steady clock's time at any rate of ticks, and never goes back") {
    for (const double rate : {0.024, 1.0, 2.8, 5.0}) {
      CAPTURE(rate);
      Machine::begin(rate);
      TestClock clock(true);
      std::mt19937 random(7);
      std::exponential_distribution<double> pause(1.0 / 50'000);
      Time last{};
      for (int i = 0; i < 200'000; ++i) {
        Machine::true_ns += pause(random);
        CHECK(error_ns(clock) < 500);
        const Time told = clock.now();
        CHECK(told >= last);
        last = told;
      }
      CHECK(clock.uses_ticks());
    }
  }

  TEST_CASE("asks the steady clock once a millisecond, once it knows the rate") {
    Machine::begin(2.8);
    TestClock clock(true);
    for (int i = 0; i < 20'000; ++i, Machine::true_ns += 1000) clock.now();  // learns the rate
    Machine::clock_readings = 0;
    for (int i = 0; i < 100'000; ++i, Machine::true_ns += 1000) clock.now();
    CHECK(Machine::clock_readings <= 101);
  }

  TEST_CASE("a pause between its two readings teaches it nothing") {
    Machine::begin(2.8);
    TestClock clock(true);
    for (int i = 0; i < 100'000; ++i) {
      Machine::reading_ns = i % 7 == 3 ? 4e6 : 20;
      Machine::true_ns += 3000;
      clock.now();
      Machine::reading_ns = 20;
      CHECK(error_ns(clock) < 500);
    }
    CHECK(clock.uses_ticks());
  }

  TEST_CASE("ticks whose rate changes are given up for the steady clock") {
    for (const double later : {1.4, 3.0, 0.0}) {
      CAPTURE(later);
      Machine::begin(2.8);
      TestClock clock(true);
      for (int i = 0; i < 20'000; ++i, Machine::true_ns += 3000) clock.now();
      REQUIRE(clock.uses_ticks());
      // The counter jumps, too.
      Machine::ticks_per_ns = later;
      for (int i = 0; i < 20'000; ++i, Machine::true_ns += 3000) clock.now();
      CHECK_FALSE(clock.uses_ticks());
      CHECK(error_ns(clock) == 0);
    }
  }

  TEST_CASE("without ticks it is the steady clock") {
    Machine::begin(2.8);
    TestClock clock(false);
    for (int i = 0; i < 100; ++i, Machine::true_ns += 1e6) CHECK(error_ns(clock) == 0);
    CHECK_FALSE(clock.uses_ticks());
  }

  TEST_CASE("ticks are trusted where the kernel keeps its time by them") {
    const TempFolder folder;
    const auto with = [&](const char* text) {
      return has_steady_ticks(folder.write("source", text).c_str());
    };
    CHECK_FALSE(with("hpet\n"));
    CHECK_FALSE(with(""));
    CHECK_FALSE(has_steady_ticks("/nowhere"));
#if defined(__x86_64__)
    CHECK(with("tsc\n"));
#endif
  }

  TEST_CASE("this machine's clocks agree") {
    TickClock clock(has_steady_ticks());
    const Time end = std::chrono::steady_clock::now() + 40ms;
    for (Time before = std::chrono::steady_clock::now(); before < end;) {
      const Time told = clock.now();
      const Time after = std::chrono::steady_clock::now();
      const bool agrees = told > before - 20us && told < after + 20us;
      if (!agrees) CHECK(agrees);
      before = after;
    }
    CHECK(clock.uses_ticks() == has_steady_ticks());
  }
}
