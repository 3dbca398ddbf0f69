#include "coordinator/runtime/late_reports.h"

#include <vector>

#include "coordinator/core/step_signals.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

JobFacts job_of_three() {
  JobFacts job;
  job.incarnation = 1;
  job.world_size = 3;
  job.blocks = {"one"};
  return job;
}

RankSignal report(std::int32_t rank, std::uint64_t round, std::uint32_t samples) {
  RankSignal signal;
  signal.rank = RankId(rank);
  signal.incarnation = 1;
  signal.round = RoundId(round);
  signal.rounds = 1;
  signal.samples = samples;
  seal(signal);
  return signal;
}

struct Turns {
  JobFacts job = job_of_three();
  LateReports late{job.world_size};

  transport::CollectedSignals fold(std::uint64_t round, std::vector<RankSignal> signals,
                                   std::uint32_t overflows = 0) {
    transport::CollectedSignals collected{std::move(signals), {BlockEvidence{}}};
    collected.evidence[0].overflow_backward = overflows;
    late.fold(RoundId(round), job, collected);
    return collected;
  }
};

TEST_SUITE("runtime.late_reports") {
  TEST_CASE("a rank's next report takes in the late one, which is still told as stale") {
    Turns turns;
    turns.fold(7, {report(0, 7, 1)});
    RankSignal late = report(1, 7, 10);
    PrecisionRequest request;
    request.format = Precision::bf16;
    late.fragment = make_fragment(request);
    seal(late);
    auto told = turns.fold(8, {report(0, 8, 1), late});
    CHECK(told.signals[1].samples == 10);
    told = turns.fold(9, {report(0, 9, 1), report(1, 9, 100)});
    CHECK(told.signals[0].samples == 1);
    CHECK(told.signals[1].samples == 110);
    CHECK(told.signals[1].rounds == 2);
    CHECK(told.signals[1].round == RoundId(9));
    CHECK(told.signals[1].fragment.kind == FragmentKind::precision_request);
    CHECK(check(told.signals[1]).ok());
    CHECK(turns.fold(10, {report(1, 10, 100)}).signals[0].samples == 100);
  }

  TEST_CASE("two late reports go together, and one that comes twice counts once") {
    Turns turns;
    turns.fold(9, {report(0, 9, 1), report(1, 4, 10)});
    turns.fold(10, {report(0, 10, 1), report(1, 5, 20)});
    turns.fold(11, {report(0, 11, 1), report(1, 5, 20)});
    CHECK(turns.fold(12, {report(1, 12, 100)}).signals[0].samples == 130);
    turns.fold(13, {report(0, 13, 1), report(1, 12, 100)});  // counted before
    CHECK(turns.fold(14, {report(1, 14, 3)}).signals[0].samples == 3);
  }

  TEST_CASE("evidence of a turn that brought late reports only goes with the next round") {
    Turns turns;
    turns.fold(8, {report(1, 7, 1)}, 5);
    CHECK(turns.fold(8, {report(0, 8, 1)}, 2).evidence[0].overflow_backward == 7);
    CHECK(turns.fold(9, {report(0, 9, 1)}, 2).evidence[0].overflow_backward == 2);
  }

  TEST_CASE("watching, damaged and foreign reports are left as they are") {
    Turns turns;
    RankSignal watching = report(1, 2, 10);
    watching.set(SignalFlag::watching);
    seal(watching);
    RankSignal damaged = report(2, 2, 10);
    damaged.samples = 11;
    RankSignal former = report(0, 2, 10);
    former.incarnation = 9;
    seal(former);
    turns.fold(8, {watching, damaged, former});
    const auto next = turns.fold(9, {report(0, 9, 1), report(1, 9, 1), report(2, 9, 1)});
    for (const RankSignal& signal : next.signals) CHECK(signal.samples == 1);
  }
}

}  // namespace
}  // namespace cox::runtime
