// The places of a rank's steps in a picture, and the error of its clock.
#include "metrics/analysis/timeline/rank_lanes.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "metrics/analysis/timeline/rank_survey.h"
#include "metrics/records/run_record.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using diagnosis::StepSection;
using diagnosis::StepValue;
using diagnosis::TraceEvent;
using diagnosis::TraceKind;

struct Drawn {
  TraceKind kind;
  int lane;
  std::string name;
  std::int64_t start_us;
  std::int64_t us;
  bool operator==(const Drawn&) const = default;
};

struct Canvas {
  std::vector<Drawn> drawn;
  diagnosis::TraceSink sink() {
    return [this](const TraceEvent& event) {
      drawn.push_back({event.kind, event.lane, std::string(event.name), event.start_ns / 1000,
                       event.duration_ns / 1000});
    };
  }
  std::vector<Drawn> lane(int lane) const {
    std::vector<Drawn> out;
    for (const Drawn& each : drawn) {
      if (each.lane == lane) out.push_back(each);
    }
    return out;
  }
};

const std::vector<StepValue> kValues = {{StepSection::phases, "comm", 0.004},
                                        {StepSection::phases, "other", 0.001},
                                        {StepSection::phases, "forward", 0.002},
                                        {StepSection::phases, "tea", 0.0005},
                                        {StepSection::phases, "backward", 0.003},
                                        {StepSection::own, "waiting", 0.003},
                                        {StepSection::own, "recompute", 0.001},
                                        {StepSection::own, "offloaded_blocks", 2},
                                        {StepSection::own, "plan", 7}};

TEST_SUITE("analysis.rank_lanes") {
  TEST_CASE("a step ends at its timestamp, with its phases in the order of a step") {
    Canvas canvas;
    diagnosis::RankLanes lanes(0, {100, 0});
    lanes.draw({5, 100.0205, kValues}, canvas.sink());
    lanes.finish(canvas.sink());
    CHECK(canvas.lane(1) == std::vector<Drawn>{{TraceKind::span, 1, "step 5", 10000, 10500},
                                               {TraceKind::span, 1, "forward", 10000, 2000},
                                               {TraceKind::span, 1, "backward", 12000, 3000},
                                               {TraceKind::span, 1, "comm", 15000, 4000},
                                               {TraceKind::span, 1, "tea", 19000, 500},
                                               {TraceKind::span, 1, "other", 19500, 1000}});
    CHECK(canvas.lane(2) == std::vector<Drawn>{{TraceKind::span, 2, "waiting", 15000, 3000},
                                               {TraceKind::span, 2, "own part", 18000, 1000}});
    CHECK(canvas.lane(3) ==
          std::vector<Drawn>{{TraceKind::span, 3, "waiting for copies", 12000, 1000}});
    CHECK(canvas.lane(4) == std::vector<Drawn>{{TraceKind::span, 4, "plan 7", 10000, 10500}});
  }

  TEST_CASE("a save stands before the step that tells of it, in no more than the gap there") {
    Canvas canvas;
    diagnosis::RankLanes lanes(0, {100, 0});
    const auto step = [&](double number, double end, double save) {
      const std::vector<StepValue> values = {{StepSection::phases, "forward", 0.002},
                                             {StepSection::own, "save", save}};
      lanes.draw({number, end, values}, canvas.sink());
    };
    step(0, 100.002, 0.5);  // before the picture starts
    step(1, 100.012, 0.003);
    step(2, 100.022, 0.050);
    step(3, 100.032, -1);
    step(4, 100.042, std::numeric_limits<double>::infinity());
    std::vector<Drawn> saves;
    for (const Drawn& each : canvas.lane(1)) {
      if (each.name == "save") saves.push_back(each);
    }
    CHECK(saves == std::vector<Drawn>{{TraceKind::span, 1, "save", 7000, 3000},
                                      {TraceKind::span, 1, "save", 12000, 8000}});
  }

  TEST_CASE("steps that would overlap stand one after another and are counted") {
    Canvas canvas;
    diagnosis::RankLanes lanes(0, {100, 0});
    const std::vector<StepValue> second = {{StepSection::phases, "forward", 1}};
    for (const double timestamp : {102.0, 102.9995, 101.0, diagnosis::absent(), 106.0})
      lanes.draw({0, timestamp, second}, canvas.sink());
    std::vector<std::int64_t> starts;
    for (const Drawn& each : canvas.lane(1)) {
      if (each.name == "step 0") starts.push_back(each.start_us);
    }
    CHECK(starts == std::vector<std::int64_t>{1000000, 2000000, 3000000, 4000000, 5000000});
    CHECK(lanes.moved() == 1);  // half a millisecond is rounding; a missing timestamp is no move
  }

  TEST_CASE("times that cannot be are counted, and draw nothing") {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const std::vector<StepValue> odd = {
        {StepSection::phases, "forward", std::nan("")}, {StepSection::phases, "backward", -1},
        {StepSection::phases, "optimizer", kInfinity},  {StepSection::phases, "data", 1e300},
        {StepSection::own, "waiting", -kInfinity},      {StepSection::own, "plan", 1e300},
        {StepSection::memory, "alloc", kInfinity},      {StepSection::memory, "peak_alloc", 1}};
    Canvas canvas;
    diagnosis::RankLanes lanes(0, {0, 0});
    lanes.draw({1, 1e300, odd}, canvas.sink());
    lanes.draw({2, 1e10, odd}, canvas.sink());
    lanes.finish(canvas.sink());
    CHECK(canvas.drawn == std::vector<Drawn>{{TraceKind::span, 1, "step 1", 0, 0}});
    CHECK(lanes.impossible() == 8);
    CHECK(lanes.beyond() == 1);
  }

  TEST_CASE("buckets stand where backward ends, those that it hides apart from the exposed ones") {
    Canvas canvas;
    diagnosis::RankLanes lanes(0, {100, 0});
    const std::vector<diagnosis::StepBucketSpan> buckets = {
        {1, 64, -0.002, -0.001}, {1, 128, -0.0015, 0.0005}, {2, 256, 0.001, 0.002}};
    lanes.draw({5, 100.0205, kValues, buckets}, canvas.sink());
    lanes.draw({6, 100.0405, kValues}, canvas.sink());
    // Backward is from 12 to 15 ms.
    CHECK(canvas.lane(8) ==
          std::vector<Drawn>{{TraceKind::lane, 8, "gradient buckets under way", 0, 0},
                             {TraceKind::span, 8, "hidden by backward", 13000, 2000},
                             {TraceKind::span, 8, "bucket 0", 13000, 500},
                             {TraceKind::span, 8, "buckets 0-1", 13500, 500},
                             {TraceKind::span, 8, "bucket 1", 14000, 1000},
                             {TraceKind::span, 8, "exposed", 15000, 500},
                             {TraceKind::span, 8, "bucket 1", 15000, 500},
                             {TraceKind::span, 8, "exposed", 16000, 1000},
                             {TraceKind::span, 8, "buckets 2-3", 16000, 1000}});
    CHECK(lanes.impossible() == 0);
  }

  TEST_CASE("buckets stay between the beginning of backward and the end of communication") {
    Canvas canvas;
    diagnosis::RankLanes lanes(0, {100, 0});
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    const double nan = std::nan("");
    const std::vector<diagnosis::StepBucketSpan> buckets = {
        {1, 8, -9, 9},  {1, 8, nan, 0},     {1, 8, 0, kInfinity}, {1, 8, 0.002, 0.001},
        {0, 8, 0, 0.1}, {1e300, 8, 0, 0.1}, {1, -1, 0, 0.1},      {1, kInfinity, 0, 0.1},
        {1, 8, 50, 60}, {1, 8, -60, -50},   {1, 8, 1e300, 1e301}};
    lanes.draw({5, 100.0205, kValues, buckets}, canvas.sink());
    const std::vector<StepValue> no_backward = {{StepSection::phases, "compute", 0.002}};
    lanes.draw({6, 100.0405, no_backward, buckets}, canvas.sink());
    CHECK(canvas.lane(8) ==
          std::vector<Drawn>{{TraceKind::lane, 8, "gradient buckets under way", 0, 0},
                             {TraceKind::span, 8, "hidden by backward", 12000, 3000},
                             {TraceKind::span, 8, "bucket 0", 12000, 3000},
                             {TraceKind::span, 8, "exposed", 15000, 4000},
                             {TraceKind::span, 8, "bucket 0", 15000, 4000}});
    CHECK(lanes.impossible() == 8);
  }

  TEST_CASE("blocks are drawn once, from where the passes begin, backward in reverse") {
    Canvas canvas;
    diagnosis::RankLanes lanes(0, {100, 0},
                               {3, {{"a", 1'000'000, 2'000'000}, {"b", 2'000'000, 500'000}}});
    for (double round = 2; round < 5; ++round) {
      std::vector<StepValue> values = kValues;
      values.push_back({StepSection::own, "round", round});
      lanes.draw({round, 100 + round, values}, canvas.sink());
    }
    const std::int64_t start = 3'000'000 - 10500;
    CHECK(canvas.lane(6) == std::vector<Drawn>{{TraceKind::span, 6, "a", start, 1000},
                                               {TraceKind::span, 6, "b", start + 1000, 2000},
                                               {TraceKind::span, 6, "b", start + 3000, 500},
                                               {TraceKind::span, 6, "a", start + 3500, 2000}});
  }

  TEST_CASE("a clock that is off is found within the error that is stated") {
    std::mt19937_64 engine(21);
    const auto noise = [&] { return static_cast<double>(engine() >> 11) * 0x1p-53; };
    for (const double off : {0.0, 0.0002, 3.25, -0.75}) {
      CAPTURE(off);
      diagnosis::ReductionEnds reference;
      diagnosis::ReductionEnds rank;
      double now = 1.79e9;
      for (int round = 0; round < 20000; ++round) {
        now += 0.05 + 0.01 * noise();
        const auto note = [&](diagnosis::ReductionEnds& ends, double clock) {
          const double optimizer = 0.001 + 0.0005 * noise();
          const double before = 0.0005 * noise();  // before the reduction
          const double after = 0.0005 * noise();
          const std::vector<StepValue> values = {
              {StepSection::phases, "comm", 0.002},
              {StepSection::phases, "optimizer", optimizer},
              {StepSection::phases, "other", before + after},
              {StepSection::own, "round", static_cast<double>(round)}};
          ends.note({static_cast<double>(round), now + optimizer + after + clock, values});
        };
        note(reference, 0);
        if (round % 3 != 0) note(rank, off);
      }
      CHECK(reference.ends().size() <= diagnosis::ReductionEnds::kMost);
      const auto shift = shift_between(reference, rank);
      REQUIRE(shift);
      CHECK(shift->error_seconds < 0.002);
      CHECK(std::fabs(shift->offset_seconds + off) <= shift->error_seconds);
      CHECK((shift->offset_seconds == 0) == (std::fabs(off) < 0.001));
    }
  }

  TEST_CASE("nothing is said about clocks of ranks that do not reduce together") {
    diagnosis::ReductionEnds with;
    diagnosis::ReductionEnds without;
    diagnosis::ReductionEnds same;
    const std::vector<StepValue> comm = {{StepSection::phases, "comm", 1},
                                         {StepSection::own, "round", 0}};
    const std::vector<StepValue> none = {{StepSection::phases, "forward", 1}};
    for (int step = 0; step < 10000; ++step) {
      same.note({0, 5, comm});  // a hostile file repeats one round
      with.note({static_cast<double>(step), 5, std::span(comm).first(1)});
      without.note({static_cast<double>(step), 5, none});
    }
    CHECK(same.ends().size() <= diagnosis::ReductionEnds::kMost);
    CHECK_FALSE(shift_between(with, without));
  }
}

}  // namespace
}  // namespace cox
