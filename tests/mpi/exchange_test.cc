// BucketExchange over real MPI and real shared memory, with as many ranks as mpiexec started.
#include <string>

#include "coordinator/transport/mpi/runtime.h"
#include "tests/transport/exchange_trial.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

std::unique_ptr<Communicator> world(const MpiOptions& options = {}) {
  Result<MpiRuntime> runtime = MpiRuntime::start(nullptr, nullptr);
  REQUIRE(runtime.ok());
  Result<std::unique_ptr<Communicator>> made = runtime->world(options);
  REQUIRE_MESSAGE(made.ok(), made.status().text());
  return std::move(*made);
}

void try_seeds(Communicator& c, ExchangeTrial trial) {
  for (const std::size_t chunk_bytes : {std::size_t{256}, std::size_t{0}}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      trial.seed = seed;
      trial.options.chunk_bytes = chunk_bytes;
      CHECK(try_exchange(c, trial) == "");
    }
  }
}

TEST_SUITE_BEGIN("mpi exchange");

TEST_CASE("sums in shared memory") {
  const auto c = world();
  ExchangeTrial trial;
  trial.options = impatient_options(SharedMemory::use, 0);
  trial.expected_path = "shared memory";
  try_seeds(*c, trial);
  trial.rounds = 500;
  trial.max_elements = 50;
  trial.delays_percent = 0;
  CHECK(try_exchange(*c, trial) == "");
}

TEST_CASE("large sums in shared memory") {
  ExchangeTrial trial;
  trial.rounds = 3;
  trial.max_elements = 300'000;
  trial.options = impatient_options(SharedMemory::use, 0);
  CHECK(try_exchange(*world(), trial) == "");
}

TEST_CASE("sums by messages alone") {
  const auto c = world();
  ExchangeTrial trial;
  trial.options = impatient_options(SharedMemory::avoid, 0);
  trial.expected_path = "mpi";
  try_seeds(*c, trial);
}

TEST_CASE("sums over pretended nodes of two ranks and of three") {
  for (const std::int32_t per_node : {2, 3}) {
    MpiOptions options;
    options.ranks_per_node = per_node;
    const auto c = world(options);
    for (const SharedMemory shared_memory : {SharedMemory::use, SharedMemory::avoid}) {
      ExchangeTrial trial;
      trial.ranks_per_node = per_node;
      trial.options = impatient_options(shared_memory, 0);
      trial.expected_path = shared_memory == SharedMemory::avoid ? "mpi"
                            : c->size() <= per_node              ? "shared memory"
                                                                 : "shared memory and mpi";
      try_seeds(*c, trial);
    }
  }
}

TEST_CASE("a folder that cannot hold the buckets falls back to messages") {
  MpiOptions options;
  options.shared_folder = "/nowhere";
  const auto c = world(options);
  ExchangeTrial trial;
  trial.options = impatient_options(SharedMemory::use, 0);
  trial.expected_path = c->size() == 1 ? "shared memory" : "mpi";
  CHECK(try_exchange(*c, trial) == "");
  auto made = BucketExchange::create(*c, {{64, sum_f32()}}, trial.options);
  REQUIRE(made.ok());
  CHECK(((*made)->note().find("/nowhere") != std::string::npos) == (c->size() > 1));
}

// Lets the last rank leave after the first bucket of the second round. Returns another rank's
// error; empty if there is none.
std::string hear_of_a_leaver(Communicator& c, SharedMemory shared_memory) {
  auto made = BucketExchange::create(c, std::vector<BucketSpec>(2, {4000, sum_f32()}),
                                     impatient_options(shared_memory, 256));
  if (!made.ok()) return made.status().text();
  BucketExchange& exchange = **made;
  Status status;
  for (int round = 0; round < 2; ++round) {
    for (std::size_t b = 0; b < 2 && status.ok(); ++b) {
      if (round == 1 && b == 1 && c.rank().value() == c.size() - 1) {
        exchange.leave("out of coal");
        return "";
      }
      status = exchange.start(b);
    }
    if (status.ok()) status = exchange.wait_all({});
  }
  const std::string name = "rank " + std::to_string(c.size() - 1) + " has left the exchange";
  return status.message().find(name) != std::string::npos ? "" : "heard: " + status.text();
}

TEST_CASE("a rank that leaves is named to the others, on every path") {
  for (const std::int32_t per_node : {0, 1, 2}) {
    MpiOptions options;
    options.ranks_per_node = per_node;
    const auto c = world(options);
    for (const SharedMemory shared_memory : {SharedMemory::use, SharedMemory::avoid}) {
      CHECK(hear_of_a_leaver(*c, shared_memory) == "");
    }
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
