// The time and bytes of a region, with a scripted clock and scripted memory.
#include "sdk/src/stream/region_meter.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include <doctest/doctest.h>

using namespace cox::detail;
using cox::planner::BackwardLevels;

namespace {

// Memory and a clock, both controlled by the test.
class Machine {
 public:
  void take(std::int64_t bytes) {
    live_ += bytes;
    peak_ = std::max(peak_, live_);
  }
  void free(std::int64_t bytes) { live_ -= bytes; }
  void pass(std::int64_t ns) { now_ns_ += ns; }

  RegionMeter meter() {
    return RegionMeter([this] { return now_ns_; },
                       [this] {
                         const MemoryLevel level{live_, peak_};
                         peak_ = live_;
                         return level;
                       });
  }

 private:
  std::int64_t live_ = 100;
  std::int64_t peak_ = 100;
  std::int64_t now_ns_ = 0;
};

BackwardLevels levels_of(const std::vector<BackwardLevels>& all, std::int32_t op) {
  const auto found = std::ranges::find(all, op, &BackwardLevels::op);
  REQUIRE(found != all.end());
  return *found;
}

}  // namespace

TEST_SUITE("sdk.stream.region_meter") {
  TEST_CASE("an operator takes what it needs beside its results, and no time of the tape") {
    Machine machine;
    RegionMeter meter = machine.meter();
    machine.take(1000);  // before the region
    machine.free(1000);
    meter.begin_operator();
    machine.pass(30);
    machine.take(64);  // the result
    machine.take(16);
    machine.free(16);
    {
      const RegionMeter::Pause tape(&meter);
      machine.pass(500);
    }
    const OperatorCost cost = meter.end_operator();
    CHECK(cost.ns == 30);
    CHECK(cost.own_bytes == 16);
    meter.begin_operator();
    machine.free(64);  // older than the region
    machine.take(8);
    CHECK(meter.end_operator().own_bytes == 0);
  }

  TEST_CASE("what is made again while backward asks counts with no operator") {
    Machine machine;
    RegionMeter meter = machine.meter();
    meter.asks(5);
    machine.take(700);  // a replay
    machine.free(300);
    meter.has(5);
    machine.take(40);
    machine.free(40);
    meter.lets_go(5);
    machine.take(20);  // for operators that saved nothing
    meter.asks(2);
    meter.has(2);
    machine.take(90);
    meter.lets_go(2);
    const auto all = meter.end();
    CHECK(levels_of(all, 5).asking_bytes == 100);
    CHECK(levels_of(all, 5).most_bytes == 540);
    CHECK(levels_of(all, 2).asking_bytes == 520);
    CHECK(levels_of(all, 2).most_bytes == 610);
  }

  TEST_CASE(
      "an operator of several saved tensors counts once, from the first to what comes behind") {
    Machine machine;
    RegionMeter meter = machine.meter();
    meter.asks(3);
    meter.has(3);
    machine.take(10);
    meter.asks(3);
    machine.take(50);
    meter.has(3);
    machine.take(1);
    meter.lets_go(3);
    meter.lets_go(3);
    const auto all = meter.end();
    CHECK(all.size() == 1);
    CHECK(levels_of(all, 3).asking_bytes == 100);
    CHECK(levels_of(all, 3).most_bytes == 161);
  }

  TEST_CASE("what no operator saved is nobody's") {
    Machine machine;
    RegionMeter meter = machine.meter();
    meter.asks(-1);
    meter.has(-1);
    machine.take(70);
    meter.asks(1);
    meter.has(1);
    const auto all = meter.end();
    CHECK(all.size() == 1);
    CHECK(levels_of(all, 1).asking_bytes == 170);
  }

  TEST_CASE("a meter that has ended reads no memory") {
    int reads = 0;
    RegionMeter meter([] { return std::int64_t{0}; },
                      [&reads] {
                        ++reads;
                        return MemoryLevel{};
                      });
    meter.asks(0);
    (void)meter.end();
    const int before = reads;
    meter.has(0);
    meter.lets_go(0);
    meter.begin_operator();
    CHECK(meter.end_operator().own_bytes == 0);
    CHECK(reads == before);
    CHECK(meter.end().empty());
  }
}
