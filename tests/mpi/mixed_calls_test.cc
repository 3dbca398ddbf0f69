// Ranks with different calls get errors that name the calls, over real MPI: for calls that meet,
// and for calls that wait for each other. A late rank is named.
#include <chrono>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/transport/call_book.h"
#include "coordinator/transport/mpi/runtime.h"
#include "coordinator/transport/wait.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

using Name = CallBook::Name;

// A new world for each case, because ranks that have parted stay apart.
struct Job {
  Job() : runtime(*MpiRuntime::start(nullptr, nullptr)), world(*runtime.world({})) {}
  MpiRuntime runtime;
  std::unique_ptr<Communicator> world;
  CallBook* calls = runtime.calls();
  WaitPolicy patience = with_timeout(wait_policy(8, 1), std::chrono::seconds(30), "the test");

  int rank() const { return world->rank().value(); }
  bool is_alone() const { return world->size() == 1; }

  Status gather_bytes(Communicator& on, std::size_t bytes) const {
    const std::vector<std::byte> mine(bytes);
    std::vector<std::byte> all(bytes * static_cast<std::size_t>(on.size()));
    return finish(on, on.start_all_gather(mine, all), patience);
  }
  Status broadcast_bytes(std::size_t bytes) const {
    std::vector<std::byte> values(bytes);
    return finish(*world, world->start_broadcast(values, RankId(0)), patience);
  }
  Status reduce_number() const {
    std::uint64_t number = 1;
    return all_reduce(*world, number, sum_u64(), patience);
  }
};

bool has(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

TEST_SUITE_BEGIN("mixed calls");

TEST_CASE("equal calls pass, whatever their size") {
  const Job job;
  const Name name(job.calls, "a call of all");
  for (const std::size_t bytes : {0u, 1u, 8u, 4096u, 4097u, 100'000u}) {
    CHECK(job.gather_bytes(*job.world, bytes).ok());
    CHECK(job.broadcast_bytes(bytes).ok());
  }
  CHECK(job.reduce_number().ok());
  CHECK_FALSE(job.calls->has_failed());
}

TEST_CASE("two calls of one kind and size that come together are told apart") {
  const Job job;
  if (job.is_alone()) return;
  const Name name(job.calls, job.rank() == 0 ? "the start of a Trainer" : "Session::together");
  const Status status = job.gather_bytes(*job.world, 64);
  CHECK(status.code() == StatusCode::invalid_argument);
  CHECK(has(status, "the start of a Trainer: all_gather of 64 bytes on rank 0"));
  CHECK(has(status, "Session::together: all_gather of 64 bytes on rank 1"));
}

TEST_CASE("calls of other kinds and sizes end in seconds with both names") {
  using Run = std::function<Status(const Job&)>;
  struct Pair {
    Run first;
    Run second;
  };
  const Run small = [](const Job& job) { return job.gather_bytes(*job.world, 8); };
  const Run large = [](const Job& job) { return job.gather_bytes(*job.world, 60'000); };
  const Run middle = [](const Job& job) { return job.gather_bytes(*job.world, 1024); };
  const Run sent = [](const Job& job) {
    const Status first = job.broadcast_bytes(16);
    return first.ok() ? job.gather_bytes(*job.world, 32) : first;
  };
  const Run number = [](const Job& job) { return job.reduce_number(); };
  const std::vector<Pair> pairs = {{small, middle}, {middle, small}, {large, small}, {small, large},
                                   {sent, number},  {number, sent},  {small, number}};
  for (std::size_t p = 0; p < pairs.size(); ++p) {
    CAPTURE(p);
    const Job job;
    if (job.is_alone()) return;
    const bool is_first = job.rank() == 0;
    const Name name(job.calls, is_first ? "one call" : "another call");
    const Status status = is_first ? pairs[p].first(job) : pairs[p].second(job);
    CHECK_FALSE(status.ok());
    CAPTURE(status.text());
    CHECK(has(status, "one call"));
    CHECK(has(status, "another call"));
  }
}

TEST_CASE("ranks that wait for each other on two communicators are told apart") {
  const Job job;
  if (job.is_alone()) return;
  const auto other = *job.world->duplicate();
  const Name name(job.calls, job.rank() == 0 ? "one call" : "another call");
  const Status status = job.gather_bytes(job.rank() == 0 ? *job.world : *other, 8);
  CHECK_FALSE(status.ok());
  CAPTURE(status.text());
  CHECK(has(status, "one call: all_gather of 8 bytes on rank 0"));
  CHECK(has(status, "another call: all_gather of 8 bytes on rank"));
}

TEST_CASE("a round of averaging and another call are told apart") {
  const Job job;
  if (job.is_alone()) return;
  Status status;
  if (job.rank() == 0) {
    const auto since = CallBook::Clock::now();
    job.calls->begin_round(RoundId(4));
    while (status.ok() && CallBook::Clock::now() - since < std::chrono::seconds(20)) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      status = job.calls->look_at_round(since);
    }
  } else {
    const Name name(job.calls, "Session::together");
    status = job.gather_bytes(*job.world, 8);
  }
  CAPTURE(status.text());
  CHECK(has(status, "the averaging of a step on rank 0"));
  CHECK(has(status, "Session::together"));
}

// Rank 0 waits in a round to which the others gave a part, as for gradients, and whose rounds
// before `complete` are over. Then the others enter a collective call.
Status wait_in_round(const Job& job, RoundId complete, std::chrono::seconds most) {
  const auto since = CallBook::Clock::now();
  job.calls->begin_round(RoundId(4));
  job.calls->complete_rounds_before(job.rank() == 0 ? RoundId(4) : complete);
  Status status;
  while (job.rank() == 0 && status.ok() && CallBook::Clock::now() - since < most) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    status = job.calls->look_at_round(since);
  }
  if (!status.ok()) return status;
  const Name name(job.calls, "Session::together");
  return job.gather_bytes(*job.world, 8);
}

TEST_CASE("a rank that leaves a round for another call after a part of it is told apart") {
  const Job job;
  if (job.is_alone()) return;
  const Status status = wait_in_round(job, RoundId(4), std::chrono::seconds(20));
  CAPTURE(status.text());
  CHECK(has(status, "the averaging of a step on rank 0"));
  CHECK(has(status, "Session::together"));
}

TEST_CASE("a rank that is done with a round may wait elsewhere for one that is not yet") {
  const Job job;
  const Status status = wait_in_round(job, RoundId(5), std::chrono::seconds(3));
  CHECK_MESSAGE(status.ok(), status.text());
}

// Waits at the end until all ranks have reached the same gather.
Status wait_at_end(const Job& job, Communicator& meeting) {
  const auto since = CallBook::Clock::now();
  job.calls->begin_end();
  const std::vector<std::byte> mine(8);
  std::vector<std::byte> all(mine.size() * static_cast<std::size_t>(meeting.size()));
  auto met = *meeting.start_all_gather(mine, all);
  const Status met_all = wait_with(meeting, met, job.patience,
                                   [&] { static_cast<void>(job.calls->look_at_end(since)); });
  job.calls->clear_notes();
  return met_all;
}

TEST_CASE("a rank that has ended and one that waits for it are told apart") {
  const Job job;
  if (job.is_alone()) return;
  const auto meeting = *job.world->duplicate();
  if (job.rank() == 0) {
    CHECK(wait_at_end(job, *meeting).ok());
    return;
  }
  Status status;
  {
    const Name name(job.calls, "the start of a Trainer");
    status = job.gather_bytes(*job.world, 8);
  }
  CAPTURE(status.text());
  CHECK(has(status, "the start of a Trainer: all_gather of 8 bytes on rank"));
  CHECK(has(status, "the end of its session on rank 0"));
  CHECK(job.gather_bytes(*meeting, 8).ok());
}

TEST_CASE("ranks that end one after the other are no mistake") {
  const Job job;
  if (job.is_alone()) return;
  const auto meeting = *job.world->duplicate();
  std::this_thread::sleep_for(std::chrono::seconds(2 * job.rank()));
  CHECK(wait_at_end(job, *meeting).ok());
  CHECK_FALSE(job.calls->has_failed());
}

TEST_CASE("a rank that comes late is named, and all go on when it is there") {
  const Job job;
  if (job.is_alone()) return;
  std::vector<RankId> missing;
  double longest = 0;
  job.calls->on_slow([&](const CallBook::SlowCall& slow) {
    if (slow.waited.count() > 2) missing = slow.missing;
    longest = std::max(longest, slow.waited.count());
  });
  const bool is_late = job.rank() == job.world->size() - 1;
  if (is_late) std::this_thread::sleep_for(std::chrono::seconds(4));
  const Name name(job.calls, "the start of a Trainer");
  CHECK(job.gather_bytes(*job.world, 8).ok());
  if (!is_late) {
    CHECK(longest > 2);
    CHECK(missing == std::vector{RankId(job.world->size() - 1)});
  }
  CHECK_FALSE(job.calls->has_failed());
}

TEST_CASE("a slow call that another rank has passed, and calls without a name, are no mistake") {
  const Job job;
  if (job.world->size() < 3) return;
  {
    // Rank 1 gives its part of a gather and waits in the next call; rank 2 comes late to both.
    const Name name(job.calls, "a gather and a sum");
    if (job.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(4));
    const std::uint64_t mine = 1;
    std::vector<std::uint64_t> all(job.rank() == 0 ? static_cast<std::size_t>(job.world->size())
                                                   : 0);
    CHECK(finish(*job.world,
                 job.world->start_gather(std::as_bytes(std::span(&mine, 1)),
                                         std::as_writable_bytes(std::span(all)), RankId(0)),
                 job.patience)
              .ok());
    CHECK(job.reduce_number().ok());
  }
  if (job.rank() == 2) std::this_thread::sleep_for(std::chrono::seconds(2));
  CHECK(job.reduce_number().ok());
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
