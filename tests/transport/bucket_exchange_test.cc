#include "coordinator/transport/exchange/bucket_exchange.h"

#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>

#include "coordinator/transport/solo.h"
#include "tests/transport/exchange_trial.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

struct Layout {
  std::int32_t ranks;
  std::int32_t per_node;  // 0 = all on one
};

constexpr std::array<Layout, 12> kLayouts = {{{1, 0},
                                              {2, 0},
                                              {3, 0},
                                              {4, 0},
                                              {8, 0},
                                              {2, 1},
                                              {4, 1},
                                              {4, 2},
                                              {5, 2},
                                              {7, 4},
                                              {8, 2},
                                              {8, 3}}};

const char* expected_path(const Layout& layout, SharedMemory shared_memory) {
  const bool one_node = layout.per_node == 0;
  if (shared_memory == SharedMemory::avoid || layout.per_node == 1) return "mpi";
  return one_node ? "shared memory" : "shared memory and mpi";
}

// Returns each rank's error, empty if there is none. One of them names the cause.
std::string run_trial(const Layout& layout, const ExchangeTrial& trial) {
  LoopbackOptions options;
  options.ranks_per_node = layout.per_node;
  const LoopbackWorld world(layout.ranks, options);
  const auto results =
      on_every_rank(world, layout.ranks, [&](Communicator& c) { return try_exchange(c, trial); });
  std::string wrong;
  for (std::size_t r = 0; r < results.size(); ++r) {
    if (!results[r].empty()) wrong += "\nrank " + std::to_string(r) + ": " + results[r];
  }
  if (!wrong.empty()) return wrong;
  const Status used_well = world.verify();
  return used_well.ok() ? "" : used_well.text();
}

ExchangeTrial trial_of(const Layout& layout, SharedMemory shared_memory, std::uint64_t seed) {
  ExchangeTrial trial;
  trial.seed = seed;
  trial.ranks_per_node = layout.per_node;
  // Small chunks, so that ranks meet within buckets; sometimes the default.
  const std::array<std::size_t, 4> chunks = {64, 256, 3000, 0};
  trial.options = impatient_options(shared_memory, chunks[seed % chunks.size()]);
  trial.expected_path = expected_path(layout, shared_memory);
  return trial;
}

TEST_SUITE_BEGIN("bucket exchange");

TEST_CASE("every path has the bits of the sum in ascending ranks, then ascending nodes") {
  std::uint64_t seed = 1;
  for (const Layout& layout : kLayouts) {
    for (const SharedMemory shared_memory : {SharedMemory::use, SharedMemory::avoid}) {
      for (int i = 0; i < 4; ++i) {
        ExchangeTrial trial = trial_of(layout, shared_memory, seed++);
        const std::string text = run_trial(layout, trial);
        CHECK_MESSAGE(text == "", layout.ranks << " ranks, " << layout.per_node << " a node, "
                                               << trial.expected_path << ": " << text);
      }
    }
  }
}

TEST_CASE("thousands of rounds without delays") {
  for (const Layout& layout : {Layout{2, 0}, Layout{4, 0}, Layout{4, 2}}) {
    ExchangeTrial trial = trial_of(layout, SharedMemory::use, 77);
    trial.rounds = layout.ranks == 2 ? 3000 : 1000;
    trial.max_buckets = 5;
    trial.max_elements = 100;
    trial.delays_percent = 0;
    CHECK(run_trial(layout, trial) == "");
  }
}

TEST_CASE("a rank that is ten times slower changes no bit and holds up nothing for good") {
  for (const Layout& layout : {Layout{3, 0}, Layout{4, 2}}) {
    for (const SharedMemory shared_memory : {SharedMemory::use, SharedMemory::avoid}) {
      ExchangeTrial trial = trial_of(layout, shared_memory, 5);
      trial.slow_rank = 1;
      CHECK(run_trial(layout, trial) == "");
    }
  }
}

TEST_CASE("a rank that finds other bits tells all, and nobody waits for it in vain") {
  for (const Layout& layout : {Layout{3, 0}, Layout{4, 2}, Layout{4, 1}}) {
    for (const SharedMemory shared_memory : {SharedMemory::use, SharedMemory::avoid}) {
      ExchangeTrial trial = trial_of(layout, shared_memory, 7);
      trial.doubting_rank = layout.ranks - 1;
      const std::string text = run_trial(layout, trial);
      const std::string last = "rank " + std::to_string(trial.doubting_rank);
      CHECK_MESSAGE(text.find(last + ": seed 7: bucket") != std::string::npos, text);
      CHECK_MESSAGE(text.find(last + " has left the exchange") != std::string::npos, text);
      CHECK_MESSAGE(text.find("of round 1 has other bits") != std::string::npos, text);
      CHECK_MESSAGE(text.find("waited") == std::string::npos, text);
    }
  }
}

TEST_CASE("large buckets go in chunks of the default size") {
  for (const Layout& layout : {Layout{3, 0}, Layout{4, 2}}) {
    ExchangeTrial trial = trial_of(layout, SharedMemory::use, 3);
    trial.rounds = 3;
    trial.max_buckets = 3;
    trial.max_elements = 300'000;
    CHECK(run_trial(layout, trial) == "");
  }
}

TEST_CASE("a folder that is too small falls back to messages and says so") {
  LoopbackOptions options;
  options.shared_segment_limit_bytes = 64;
  const LoopbackWorld world(3, options);
  const auto results = on_every_rank(world, 3, [](Communicator& c) -> std::string {
    const std::vector<BucketSpec> specs = {{40, sum_f32()}};
    auto made = BucketExchange::create(c, specs, impatient_options(SharedMemory::use, 0));
    if (!made.ok()) return made.status().text();
    if ((*made)->path() != std::string("mpi")) return "another path";
    if ((*made)->note().find("found 64") == std::string::npos) return (*made)->note();
    std::memset((*made)->buffer(0).data(), 0, 40);
    Status status = (*made)->start(0);
    if (status.ok()) status = (*made)->wait_all({});
    return status.ok() ? "" : status.text();
  });
  for (const std::string& text : results) CHECK(text == "");
  CHECK(world.verify() == ok_status());
}

TEST_CASE("different buckets on one rank are refused on every rank") {
  const LoopbackWorld world(3);
  const auto results = on_every_rank(world, 3, [](Communicator& c) -> std::string {
    const bool odd = c.rank() == RankId(2);
    const std::vector<BucketSpec> specs = {{odd ? 80u : 40u, sum_f32()}};
    auto made = BucketExchange::create(c, specs, impatient_options(SharedMemory::use, 0));
    if (made.ok()) return "accepted";
    return made.status().message().find("rank 2") != std::string::npos ? "" : made.status().text();
  });
  for (const std::string& text : results) CHECK(text == "");
}

TEST_CASE("a bucket of broken elements is refused on every rank") {
  const LoopbackWorld world(2);
  const auto results = on_every_rank(world, 2, [](Communicator& c) -> std::string {
    const bool odd = c.rank() == RankId(1);
    const std::vector<BucketSpec> specs = {{odd ? 41u : 40u, sum_f32()}};
    auto made = BucketExchange::create(c, specs, impatient_options(SharedMemory::use, 0));
    return made.status().code() == StatusCode::invalid_argument ? "" : made.status().text();
  });
  for (const std::string& text : results) CHECK(text == "");
}

std::unique_ptr<BucketExchange> alone(std::size_t buckets) {
  static const std::unique_ptr<Communicator> communicator = solo_communicator();
  const std::vector<BucketSpec> specs(buckets, {16, sum_f32()});
  auto made = BucketExchange::create(*communicator, specs, {});
  REQUIRE(made.ok());
  return std::move(*made);
}

TEST_CASE("buckets start in ascending order, and a round after the one before") {
  const auto exchange = alone(2);
  CHECK(exchange->start(1).code() == StatusCode::failed_precondition);
  CHECK(exchange->start(0).ok());
  CHECK(exchange->start(0).code() == StatusCode::failed_precondition);
  CHECK(exchange->wait_all({}).code() == StatusCode::failed_precondition);
  CHECK(exchange->start(1).ok());
  CHECK(exchange->start(0).message().find("wait_all") != std::string::npos);
  CHECK_FALSE(exchange->is_done(0));
  CHECK(exchange->wait_all({}).ok());
  CHECK(exchange->is_done(0));
  CHECK(exchange->start(2).code() == StatusCode::failed_precondition);
  CHECK(exchange->start(0).ok());
  CHECK_FALSE(exchange->is_done(1));
  CHECK(exchange->start(1).ok());
  CHECK(exchange->wait_all({}).ok());
}

TEST_CASE("a round that was never started is not waited for, however well the last one ended") {
  const auto exchange = alone(2);
  CHECK(exchange->wait_all({}).code() == StatusCode::failed_precondition);
  CHECK(exchange->start(0).ok());
  CHECK(exchange->start(1).ok());
  CHECK(exchange->wait_all({}).ok());
  const Status again = exchange->wait_all({});
  CHECK(again.code() == StatusCode::failed_precondition);
  CHECK(again.message().find("found 0 of 2") != std::string::npos);
}

TEST_CASE("no buckets are no work") {
  const auto exchange = alone(0);
  CHECK(exchange->buckets() == 0);
  CHECK(exchange->advance().ok());
  CHECK(exchange->wait_all({}).ok());
  CHECK(exchange->start(0).code() == StatusCode::failed_precondition);
}

TEST_CASE("times tell when a bucket was started and seen done, and work of one's own") {
  const auto exchange = alone(1);
  CHECK(exchange->start(0).ok());
  CHECK(exchange->wait_all({}).ok());
  const BucketTimes times = exchange->times(0);
  CHECK(times.done >= times.started);
  CHECK(times.worked <= times.done - times.started);
}

TEST_CASE("a maximum keeps NaN, on whichever rank it is") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::array<double, 4> into = {1, nan, 3, -1};
  const std::array<double, 4> from = {2, 5, nan, -2};
  max_f64().apply(reinterpret_cast<std::byte*>(into.data()),
                  reinterpret_cast<const std::byte*>(from.data()), 4);
  CHECK(into[0] == 2);
  CHECK(std::isnan(into[1]));
  CHECK(std::isnan(into[2]));
  CHECK(into[3] == -1);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
