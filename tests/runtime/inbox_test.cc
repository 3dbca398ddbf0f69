// The round of a set of reports, the handling of late reports, and the coordinator's polling rate.
#include "coordinator/runtime/inbox.h"

#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

RankSignal sealed(std::int32_t rank, std::uint64_t round, std::optional<SignalFlag> flag = {}) {
  RankSignal signal;
  signal.rank = RankId(rank);
  signal.round = RoundId(round);
  signal.samples = 1;
  if (flag) signal.set(*flag);
  seal(signal);
  return signal;
}

JobFacts job_of_four() {
  JobFacts job;
  job.world_size = 4;
  return job;
}

RoundId round_of(std::vector<RankSignal> reports, RoundId earliest) {
  return round_to_judge(check_reports({std::move(reports), {}}, job_of_four()), earliest);
}

TEST_SUITE("runtime.round_to_judge") {
  TEST_CASE("the newest round of ranks that share a reduction decides, never an old one") {
    std::vector<RankSignal> reports = {sealed(0, 8), sealed(1, 9), sealed(2, 7)};
    CHECK(round_of(reports, RoundId(3)) == RoundId(9));
    CHECK(round_of(reports, RoundId(12)) == RoundId(12));
    CHECK(round_of({}, RoundId(4)) == RoundId(4));
  }

  TEST_CASE("ranks that watch and damaged reports have no say") {
    std::vector<RankSignal> reports = {sealed(0, 8), sealed(1, 900, SignalFlag::watching),
                                       sealed(2, 7)};
    reports.push_back(sealed(3, 70));
    reports.back().round = RoundId(71);
    CHECK(round_of(reports, RoundId(0)) == RoundId(8));
  }

  TEST_CASE("reports of another start of the job, or of ranks that it lacks, have no say") {
    RankSignal former = sealed(1, 90);
    former.incarnation = 7;
    seal(former);
    const std::vector<RankSignal> reports = {sealed(0, 8), former, sealed(4, 80)};
    CHECK(round_of(reports, RoundId(0)) == RoundId(8));
  }
}

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

  TakenReports fold(std::uint64_t round, std::vector<RankSignal> signals,
                    std::uint32_t overflows = 0) {
    TakenReports taken = check_reports({std::move(signals), {BlockEvidence{}}}, job);
    taken.evidence[0].overflow_backward = overflows;
    late.fold(RoundId(round), taken);
    return taken;
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
    turns.fold(13, {report(0, 13, 1), report(1, 12, 100)});  // already counted
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

// Returns the pace after rounds of so many microseconds.
RoundPace after_us(std::initializer_list<int> rounds) {
  RoundPace pace;
  RoundPace::Clock::time_point now{};
  pace.round_at(now);
  for (const int round : rounds) pace.round_at(now += std::chrono::microseconds(round));
  return pace;
}

TEST_SUITE_BEGIN("runtime.round_pace");

TEST_CASE("before enough rounds are known the reader is woken") {
  CHECK(RoundPace().poll_interval() == nanoseconds(0));
  CHECK(after_us({80'000, 80'000, 80'000}).poll_interval() == nanoseconds(0));
  CHECK(after_us({80'000, 80'000, 80'000, 80'000}).poll_interval() == milliseconds(40));
}

TEST_CASE("the interval is half the shortest of the last rounds, and neither short nor long") {
  CHECK(after_us({40'000, 60'000, 60'000, 50'000}).poll_interval() == milliseconds(20));
  CHECK(after_us({8'000, 40'000, 60'000, 60'000, 50'000}).poll_interval() == milliseconds(20));
  CHECK(after_us({9'000'000, 9'000'000, 9'000'000, 9'000'000}).poll_interval() == milliseconds(50));
  CHECK(after_us({4'000, 4'000, 4'000, 4'000}).poll_interval() == milliseconds(2));
  CHECK(after_us({400, 400, 400, 400}).poll_interval() == milliseconds(2));
}

TEST_CASE("a round of less than 0.2 ms lets the reader be woken until it is forgotten") {
  CHECK(after_us({50'000, 50'000, 50'000, 100}).poll_interval() == nanoseconds(0));
  CHECK(after_us({50'000, 50'000, 50'000, 100, 50'000, 50'000, 50'000}).poll_interval() ==
        nanoseconds(0));
  CHECK(after_us({50'000, 50'000, 50'000, 100, 50'000, 50'000, 50'000, 50'000}).poll_interval() ==
        milliseconds(25));
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::runtime
