#include "sdk/src/session/step_recorder.h"

#include <cmath>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "coordinator/transport/shared/segment.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

Clock::time_point moment(double seconds) {
  return Clock::time_point(std::chrono::duration_cast<Clock::duration>(Seconds(seconds)));
}

double booked(const StepReport& report, Phase phase) {
  return report.phase_seconds[static_cast<std::size_t>(phase)];
}

double sum(const StepReport& report) {
  return std::accumulate(report.phase_seconds.begin(), report.phase_seconds.end(), 0.0);
}

bool has(const StepReport& report, SignalFlag flag) {
  return (report.flags & static_cast<std::uint16_t>(flag)) != 0;
}

}  // namespace

TEST_SUITE("step recorder") {
  TEST_CASE("time in no phase is `other`, and an inner phase takes its time from the outer one") {
    StepRecorder recorder;
    recorder.begin(StepId(7), moment(10));
    recorder.enter(Phase::forward, moment(11));
    recorder.enter(Phase::communication, moment(13));
    recorder.leave(moment(16));
    recorder.leave(moment(20));
    const StepReport& report = recorder.end(moment(21));
    CHECK(report.step == StepId(7));
    CHECK(report.wall_seconds == doctest::Approx(11));
    CHECK(booked(report, Phase::forward) == doctest::Approx(6));
    CHECK(booked(report, Phase::communication) == doctest::Approx(3));
    CHECK(booked(report, Phase::other) == doctest::Approx(2));
    CHECK_FALSE(recorder.is_open());
  }

  TEST_CASE("what is left out is in no phase and not in the wall time") {
    StepRecorder recorder;
    recorder.leave_out(moment(1), moment(2));  // no step is open
    recorder.begin(StepId(0), moment(10));
    recorder.leave_out(moment(12), moment(112));
    recorder.enter(Phase::forward, moment(113));
    recorder.leave(moment(116));
    const StepReport& report = recorder.end(moment(116));
    CHECK(report.wall_seconds == doctest::Approx(6));
    CHECK(booked(report, Phase::forward) == doctest::Approx(3));
    CHECK(booked(report, Phase::other) == doctest::Approx(3));
  }

  TEST_CASE(
      "what Coxswain took before a step is told with that step, and in no phase of its time") {
    StepRecorder recorder;
    recorder.begin(StepId(0), moment(10));
    CHECK(booked(recorder.end(moment(11)), Phase::host) == 0);
    recorder.add_host(moment(11.25) - moment(11));  // closing it
    recorder.add_host(moment(12.5) - moment(12));   // and opening the next one
    recorder.begin(StepId(1), moment(12.5));
    const StepReport& report = recorder.end(moment(14.5));
    CHECK(booked(report, Phase::host) == doctest::Approx(0.75));
    CHECK(report.wall_seconds == doctest::Approx(2));
    CHECK(booked(report, Phase::other) == doctest::Approx(2));
    recorder.begin(StepId(2), moment(15));
    CHECK(booked(recorder.end(moment(16)), Phase::host) == 0);
  }

  TEST_CASE("phases sum to the wall time, whatever is nested in what") {
    for (std::uint32_t seed = 0; seed < 50; ++seed) {
      CAPTURE(seed);
      std::mt19937 random(seed);
      StepRecorder recorder;
      double now = 5;
      recorder.begin(StepId(1), moment(now));
      std::size_t depth = 0;
      for (int i = 0; i < 200; ++i) {
        now += 0.001 * static_cast<double>(random() % 100);
        if (depth > 0 && random() % 2 == 0) {
          recorder.leave(moment(now));
          --depth;
        } else {  // sometimes deeper than kMaxDepth
          recorder.enter(static_cast<Phase>(random() % kPhases), moment(now));
          ++depth;
        }
      }
      const StepReport& report = recorder.end(moment(now + 1));
      CHECK(sum(report) == doctest::Approx(report.wall_seconds).epsilon(1e-9));
    }
  }

  TEST_CASE("waiting is what calls say, no more than the communication, and known in every call") {
    struct Row {
      std::vector<std::optional<double>> waits;
      bool is_measured;
      double seconds;
    };
    const std::vector<Row> rows = {
        {{}, false, 0},                   // no collective call
        {{0.0}, true, 0},                 // the last rank
        {{1.0, 0.5}, true, 1.5},          // two calls
        {{3.0, 3.0}, true, 4},            // capped
        {{1.0, std::nullopt}, false, 0},  // an unknown clock
    };
    for (const Row& row : rows) {
      StepRecorder recorder;
      recorder.waiting().waited(7);  // no step is open
      recorder.begin(StepId(1), moment(0));
      recorder.enter(Phase::communication, moment(1));
      for (const auto& wait : row.waits) recorder.waiting().waited(wait);
      recorder.leave(moment(5));
      const StepReport& report = recorder.end(moment(6));
      CHECK(has(report, SignalFlag::waiting_measured) == row.is_measured);
      CHECK(report.waiting_seconds == doctest::Approx(row.seconds));
      CHECK(static_cast<double>(signal_from(report).waiting_seconds) ==
            doctest::Approx(row.seconds));
      const float told = row_from(report, RoundId(0), UnixTime{}).waiting_seconds;
      CHECK((told == metrics::kNotMeasuredFloat) == !row.is_measured);
    }
  }

  TEST_CASE(
      "time in the run queue leaves its phase and counts as waiting; phases sum to the wall") {
    double queued = 100;  // the thread's, before the recorder existed
    StepRecorder recorder;
    recorder.waiting().leave_out_queueing([&queued] { return Seconds(queued); });
    queued = 103;  // between steps
    recorder.begin(StepId(1), moment(0));
    recorder.enter(Phase::forward, moment(0));
    queued += 2;
    recorder.leave(moment(5));
    recorder.enter(Phase::communication, moment(5));
    queued += 1;
    recorder.waiting().waited(0.5);
    recorder.leave(moment(9));
    queued += 50;  // more than the time passed: another kind of clock
    const StepReport& report = recorder.end(moment(10));
    CHECK(has(report, SignalFlag::without_queueing));
    CHECK(booked(report, Phase::forward) == doctest::Approx(3));
    CHECK(booked(report, Phase::other) == doctest::Approx(0));
    CHECK(booked(report, Phase::communication) == doctest::Approx(4 + 2 + 1));
    CHECK(report.waiting_seconds == doctest::Approx(2 + 1 + 1));
    CHECK(sum(report) == doctest::Approx(report.wall_seconds));
  }

  TEST_CASE("without calls of all ranks, queueing is communication of unknown waiting") {
    StepRecorder recorder;
    double queued = 0;
    recorder.waiting().leave_out_queueing([&queued] { return Seconds(queued); });
    recorder.begin(StepId(1), moment(0));
    queued = 1;
    const StepReport& report = recorder.end(moment(3));
    CHECK_FALSE(has(report, SignalFlag::waiting_measured));
    CHECK(has(report, SignalFlag::without_queueing));
    CHECK(report.waiting_seconds == 0);
    CHECK(booked(report, Phase::communication) == doctest::Approx(1));
    CHECK(sum(report) == doctest::Approx(3));
  }

  TEST_CASE("a phase that is left too often does no harm") {
    StepRecorder recorder;
    recorder.begin(StepId(0), moment(0));
    recorder.leave(moment(1));
    recorder.leave(moment(2));
    recorder.enter(Phase::data, moment(3));
    recorder.leave(moment(5));
    CHECK(booked(recorder.end(moment(5)), Phase::data) == doctest::Approx(2));
  }

  TEST_CASE(
      "of names that a row cannot tell apart the first one is logged, and the others are told") {
    using Verdict = ScalarNames::Verdict;
    StepRecorder recorder;
    recorder.begin(StepId(0), moment(0));
    CHECK(recorder.log("validation_loss_a", 1) == Verdict::distinct);
    CHECK(recorder.log("validation_loss_b", 2) == Verdict::newly_ambiguous);
    CHECK(recorder.log("validation_loss_b", 3) == Verdict::ambiguous);
    CHECK(recorder.log("validation_loss", 4) == Verdict::newly_ambiguous);
    CHECK(recorder.log("validation_los", 5) == Verdict::distinct);
    CHECK(recorder.log("validation_loss_a", 6) == Verdict::distinct);
    const StepReport& report = recorder.end(moment(1));
    REQUIRE(report.scalar_count == 2);
    CHECK(report.scalars[0].value == 6);
    CHECK(report.scalars[1].value == 5);
  }

  TEST_CASE("a new step starts from nothing") {
    StepRecorder recorder;
    recorder.begin(StepId(0), moment(0));
    recorder.enter(Phase::data, moment(0));
    recorder.notes().add_loss(3, 2);
    recorder.notes().samples += 4;
    recorder.notes().set(SignalFlag::step_skipped);
    recorder.notes().log("x", 1);
    recorder.end(moment(1));
    recorder.begin(StepId(1), moment(1));
    const StepReport& report = recorder.end(moment(2));
    CHECK(std::isnan(report.loss));
    CHECK(report.weight == 0);
    CHECK(report.samples == 0);
    CHECK(report.flags == 0);
    CHECK(report.scalar_count == 0);
    CHECK(booked(report, Phase::data) == 0);
    CHECK(booked(report, Phase::other) == doctest::Approx(1));
  }

  TEST_CASE("the rank's mark follows the phases, in steps and between them") {
    using transport::MarkBoard;
    const transport::SharedSegment memory = transport::heap_segment(MarkBoard::bytes_needed(1));
    const MarkBoard board = *MarkBoard::format(memory.bytes(), 1);
    transport::MarkWriter mark = board.writer(0);
    const auto now = [&] { return board.read(moment(100), MarkBoard::Look::marks)[0]; };
    StepRecorder recorder;
    recorder.begin(StepId(1), moment(0));  // no reader of marks yet
    recorder.end(moment(1));
    recorder.activity().move_mark(&mark);
    recorder.begin(StepId(2), moment(10));
    CHECK(now().activity == Activity::other);
    recorder.enter(Phase::backward, moment(11));
    recorder.enter(Phase::communication, moment(13));
    CHECK(now().activity == Activity::waiting);
    CHECK(now().activity_seconds == doctest::Approx(87));
    recorder.leave(moment(14));
    CHECK(now().activity == Activity::backward);
    CHECK(now().activity_seconds == doctest::Approx(86));
    CHECK(now().step == StepId(2));
    recorder.leave(moment(15));
    recorder.end(moment(16));
    CHECK(now().activity == Activity::outside);
    recorder.activity().do_between_steps(Activity::saving, moment(17));
    recorder.begin_waiting(moment(18));
    CHECK(now().activity == Activity::waiting);
    recorder.end_waiting(moment(19));
    CHECK(now().activity == Activity::saving);
    recorder.begin(StepId(3), moment(20));
    recorder.end(moment(21));
    CHECK(now().activity == Activity::outside);
  }

  TEST_CASE("the mark tells an evaluation in a step, and the time between two epochs") {
    using transport::MarkBoard;
    const transport::SharedSegment memory = transport::heap_segment(MarkBoard::bytes_needed(1));
    const MarkBoard board = *MarkBoard::format(memory.bytes(), 1);
    transport::MarkWriter mark = board.writer(0);
    const auto now = [&] { return board.read(moment(100), MarkBoard::Look::marks)[0].activity; };
    StepRecorder recorder;
    recorder.activity().move_mark(&mark);
    CHECK(recorder.activity().do_aside(Activity::evaluating, moment(0)) ==
          Activity::other);  // outside a step
    recorder.begin(StepId(1), moment(1));
    CHECK(now() == Activity::other);
    recorder.activity().do_aside(Activity::epoch, moment(2));
    const Activity before = recorder.activity().do_aside(Activity::evaluating, moment(3));
    CHECK(now() == Activity::evaluating);
    recorder.begin_waiting(moment(4));
    CHECK(now() == Activity::waiting);
    recorder.end_waiting(moment(5));
    CHECK(now() == Activity::evaluating);
    recorder.activity().do_aside(before, moment(6));
    CHECK(now() == Activity::epoch);
    recorder.end(moment(7));
    CHECK(now() == Activity::epoch);
    recorder.begin(StepId(2), moment(8));
    CHECK(now() == Activity::other);
    recorder.end(moment(9));
    CHECK(now() == Activity::outside);
  }

  TEST_CASE("waiting in a call of all ranks is communication, not the rank's own work") {
    StepRecorder recorder;
    recorder.begin(StepId(1), moment(10));
    recorder.begin_waiting(moment(11));
    recorder.end_waiting(moment(56));
    const StepReport& report = recorder.end(moment(57));
    CHECK(booked(report, Phase::communication) == doctest::Approx(45));
    CHECK(booked(report, Phase::other) == doctest::Approx(2));
  }
}
