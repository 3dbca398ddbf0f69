#include <algorithm>
#include <random>
#include <vector>

#include "coordinator/wire/mask.h"
#include "tests/wire/random_values.h"

#include <doctest/doctest.h>

namespace cox::wire {
namespace {

using test::capable_job;
using test::RandomValues;

std::vector<Frame> frames_of(const Plan& plan, const Plan* base = nullptr) {
  auto frames = encode_plan(plan, base);
  REQUIRE(frames.ok());
  return std::move(*frames);
}

struct Fixture {
  JobFacts job = capable_job(40, 700);
  RandomValues random{21};
  Plan first = random.plan(job, 1);
  Plan second = random.plan(job, 2);
  PlanAssembler assembler{job, initial_plan(job)};

  Assembly feed(const Frame& frame) {
    const auto step = assembler.feed(frame.used());
    REQUIRE_MESSAGE(step.ok(), step.status().text());
    return *step;
  }
  StatusCode error(const Frame& frame) { return assembler.feed(frame.used()).status().code(); }
};

TEST_SUITE("wire.assembler") {
  TEST_CASE_FIXTURE(Fixture, "frames may come in any order and more than once") {
    const auto frames = frames_of(first);
    REQUIRE(frames.size() >= 3);
    for (unsigned seed = 0; seed < 200; ++seed) {
      PlanAssembler fresh(job, initial_plan(job));
      std::vector<Frame> order = frames;
      order.insert(order.end(), frames.begin(), frames.end());
      std::shuffle(order.begin(), order.end(), std::mt19937(seed));
      int completed = 0;
      for (const Frame& frame : order) {
        const auto step = fresh.feed(frame.used());
        REQUIRE(step.ok());
        if (*step == Assembly::complete) ++completed;
      }
      CHECK(completed == 1);
      CHECK(fresh.held() == first);
    }
  }

  TEST_CASE_FIXTURE(Fixture, "the held plan stays until the last frame of the next one") {
    const auto frames = frames_of(first);
    for (std::size_t i = 0; i + 1 < frames.size(); ++i) {
      CHECK(feed(frames[i]) == Assembly::incomplete);
      CHECK(assembler.held().id.number == 0);
    }
    CHECK(feed(frames.back()) == Assembly::complete);
    CHECK(assembler.held().id.number == 1);
  }

  TEST_CASE_FIXTURE(Fixture, "older and repeated plans are nothing new") {
    for (const Frame& frame : frames_of(second)) (void)feed(frame);
    REQUIRE(assembler.held() == second);
    for (const Frame& frame : frames_of(second)) CHECK(feed(frame) == Assembly::nothing_new);
    for (const Frame& frame : frames_of(first)) CHECK(feed(frame) == Assembly::nothing_new);
    CHECK(assembler.held() == second);
  }

  TEST_CASE_FIXTURE(Fixture, "a newer plan takes the place of one that never became whole") {
    CHECK(feed(frames_of(first).front()) == Assembly::incomplete);
    const auto newer = frames_of(second);
    for (const Frame& frame : newer) (void)feed(frame);
    CHECK(assembler.held() == second);
    CHECK(feed(frames_of(first).back()) == Assembly::nothing_new);
  }

  TEST_CASE_FIXTURE(Fixture, "changes against a plan that is not held ask for the full one") {
    Plan next = second;
    next.id.number = 3;
    next.precision[5] = next.precision[5] == Precision::fp8 ? Precision::fp32 : Precision::fp8;
    const auto changes = frames_of(next, &second);
    CHECK(feed(changes.front()) == Assembly::base_unknown);
    for (const Frame& frame : frames_of(next)) (void)feed(frame);
    CHECK(assembler.held() == next);
  }

  TEST_CASE_FIXTURE(Fixture,
                    "changes against another plan of the same number ask for the full one") {
    Plan other = initial_plan(job);
    other.precision[3] = Precision::bf16;
    Plan next = other;
    next.id.number = 1;
    next.precision[4] = Precision::bf16;
    const auto changes = frames_of(next, &other);
    REQUIRE(changes.size() == 1);
    CHECK(feed(changes.front()) == Assembly::base_unknown);
    CHECK(assembler.held() == initial_plan(job));
  }

  TEST_CASE_FIXTURE(Fixture, "a full plan takes the place of changes with the same number") {
    const Plan base = initial_plan(job);
    Plan next = first;
    const auto changes = frames_of(next, &base);
    const auto full = frames_of(next);
    if (changes.front() != full.front()) (void)feed(changes.front());
    for (const Frame& frame : full) (void)feed(frame);
    CHECK(assembler.held() == next);
  }

  TEST_CASE_FIXTURE(Fixture, "frames of another incarnation or version are errors") {
    Plan foreign = first;
    foreign.id.incarnation = job.incarnation + 1;
    CHECK(error(frames_of(foreign).front()) == StatusCode::failed_precondition);
    Frame later = frames_of(first).front();
    later.bytes[0] = std::byte{kMaskVersion + 1};
    CHECK(error(later) == StatusCode::failed_precondition);
  }

  TEST_CASE_FIXTURE(Fixture, "a plan that does not fit the job is never held") {
    JobFacts poorer = job;
    poorer.capabilities.precisions = 1;
    PlanAssembler careful(poorer, initial_plan(poorer));
    Status last;
    for (const Frame& frame : frames_of(first)) last = careful.feed(frame.used()).status();
    CHECK(last.code() == StatusCode::data_loss);
    CHECK(careful.held() == initial_plan(poorer));
    Plan narrow = RandomValues(1).plan(capable_job(40, 699), 1);
    CHECK(error(frames_of(narrow).front()) == StatusCode::data_loss);
  }

  TEST_CASE_FIXTURE(Fixture, "a transport with fixed sizes may pad frames with zeros only") {
    Frame frame = frames_of(first).back();
    REQUIRE(frame.size < 159);
    CHECK(assembler.feed(frame.bytes).ok());
    frame.bytes[159] = std::byte{1};
    CHECK(assembler.feed(frame.bytes).status().code() == StatusCode::data_loss);
  }
}

}  // namespace
}  // namespace cox::wire
