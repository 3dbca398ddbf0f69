// Errors on the ranks when one of them no longer takes part, or is late.
#include <array>
#include <atomic>
#include <cstring>

#include "tests/transport/exchange_trial.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

constexpr std::size_t kBuckets = 3;

struct Case {
  const char* name;
  std::int32_t ranks;
  std::int32_t per_node;
  SharedMemory shared_memory;
  std::int32_t leaver;
};

constexpr std::array<Case, 7> kCases = {{
    {"one node", 4, 0, SharedMemory::use, 2},
    {"one node, its leader", 3, 0, SharedMemory::use, 0},
    {"several nodes", 4, 2, SharedMemory::use, 3},
    {"several nodes, a leader", 6, 2, SharedMemory::use, 2},
    {"several nodes, the first leader", 5, 2, SharedMemory::use, 0},
    {"messages", 3, 0, SharedMemory::avoid, 1},
    {"messages over nodes", 4, 2, SharedMemory::avoid, 0},
}};

using Made = Result<std::unique_ptr<BucketExchange>>;

Made make(Communicator& c, const Case& item, std::chrono::milliseconds timeout) {
  ExchangeOptions options = impatient_options(item.shared_memory, 64);
  options.wait = with_timeout(options.wait, timeout, "the ranks of the test");
  return BucketExchange::create(c, std::vector<BucketSpec>(kBuckets, {400, sum_f32()}), options);
}

Status start(BucketExchange& exchange, std::size_t buckets) {
  for (std::size_t b = 0; b < buckets; ++b) {
    std::memset(exchange.buffer(b).data(), 0, exchange.buffer(b).size());
    Status started = exchange.start(b);
    if (!started.ok()) return started;
  }
  return ok_status();
}

Status whole_round(BucketExchange& exchange) {
  Status status = start(exchange, kBuckets);
  return status.ok() ? exchange.wait_all({}) : status;
}

// The ranks' communication beside the exchange. A rank whose create() failed (for instance, because
// its limit was too short for the machine) ends all ranks' loops.
struct Aside {
  std::atomic<bool> left{false};
  std::atomic<int> waiting{0};
  std::atomic<bool> failed{false};
  const std::chrono::steady_clock::time_point deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(60);

  std::string failure(const Made& made) {
    failed = true;
    return made.status().text();
  }
  // Called in each turn of a loop. Returns ok, or why the loop should end.
  Status go_on() const {
    std::this_thread::yield();
    if (failed) return internal_error("another rank could not make its exchange");
    const bool late = std::chrono::steady_clock::now() > deadline;
    return late ? internal_error("still in a loop after 60 s") : ok_status();
  }
};

using Run = std::function<std::string(Communicator&, const Case&)>;

void on_all_cases(const Run& run) {
  for (const Case& item : kCases) {
    LoopbackOptions options;
    options.ranks_per_node = item.per_node;
    const LoopbackWorld world(item.ranks, options);
    const auto results =
        on_every_rank(world, item.ranks, [&](Communicator& c) { return run(c, item); });
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK_MESSAGE(results[r] == "", item.name << ", rank " << r << ": " << results[r]);
    }
  }
}

// Returns empty if the error names the rank that left and its reason.
std::string verdict(const Status& status, const Case& item) {
  const std::string expected = "rank " + std::to_string(item.leaver) + " has left the exchange";
  const bool right = status.code() == StatusCode::unavailable &&
                     status.message().find(expected) != std::string::npos &&
                     status.message().find("out of coal") != std::string::npos;
  return right ? "" : status.text();
}

TEST_SUITE_BEGIN("leaving an exchange");

TEST_CASE("a rank that leaves in the middle of a round is named to all who wait") {
  on_all_cases([](Communicator& c, const Case& item) -> std::string {
    Made made = make(c, item, std::chrono::seconds(60));
    if (!made.ok()) return made.status().text();
    Status first = whole_round(**made);
    if (!first.ok()) return first.text();
    if (c.rank().value() != item.leaver) return verdict(whole_round(**made), item);
    Status status = start(**made, 1);
    (*made)->leave("out of coal");
    const bool own = (*made)->advance().code() == StatusCode::unavailable &&
                     (*made)->start(1).code() == StatusCode::unavailable;
    return own ? "" : "a rank that left takes part: " + status.text();
  });
}

TEST_CASE("a rank that leaves between rounds is named in the next one") {
  on_all_cases([](Communicator& c, const Case& item) -> std::string {
    Made made = make(c, item, std::chrono::seconds(60));
    if (!made.ok()) return made.status().text();
    Status first = whole_round(**made);
    if (c.rank().value() == item.leaver) {
      if (!first.ok()) return first.text();
      (*made)->leave("out of coal");
      return "";
    }
    // A rank may still be in the first round when the news arrives.
    return verdict(first.ok() ? whole_round(**made) : first, item);
  });
}

TEST_CASE("advance tells of a rank that left, on its node at once") {
  const Case& item = kCases[0];
  const LoopbackWorld world(item.ranks);
  Aside aside;
  const auto results = on_every_rank(world, item.ranks, [&](Communicator& c) -> std::string {
    Made made = make(c, item, std::chrono::seconds(60));
    if (!made.ok()) return aside.failure(made);
    if (c.rank().value() == item.leaver) {
      (*made)->leave("out of coal");
      aside.left = true;
      return "";
    }
    Status status;
    while (!aside.left && status.ok()) status = aside.go_on();
    return verdict(status.ok() ? (*made)->advance() : status, item);
  });
  for (const std::string& text : results) CHECK(text == "");
}

TEST_CASE("a leader that ends without having looked still tells who of its node has left") {
  const Case& item = kCases[2];
  LoopbackOptions options;
  options.ranks_per_node = item.per_node;
  const LoopbackWorld world(item.ranks, options);
  Aside aside;
  aside.waiting = item.ranks;
  const auto results = on_every_rank(world, item.ranks, [&](Communicator& c) -> std::string {
    Made made = make(c, item, std::chrono::seconds(10));
    if (!made.ok()) return aside.failure(made);
    Status status = whole_round(**made);
    --aside.waiting;
    while (aside.waiting > 0 && status.ok()) status = aside.go_on();
    if (c.rank().value() == item.leaver) {
      (*made)->leave("out of coal");
      aside.left = true;
    }
    while (!aside.left && status.ok()) status = aside.go_on();
    const bool on_first_node = c.rank().value() < item.per_node;
    if (!status.ok() || !on_first_node) return status.ok() ? "" : status.text();
    return verdict(whole_round(**made), item);
  });
  for (const std::string& text : results) CHECK(text == "");
}

struct LateCase {
  Case item;
  const char* on_its_node;  // the error on the rank's node; without shared memory, on any rank
};

// The late rank keeps polling, because a leader also carries the sums of others.
std::string come_late(BucketExchange& exchange, const Aside& aside) {
  Status status = start(exchange, 1);
  while (aside.waiting > 0 && status.ok()) {
    status = exchange.advance();
    if (status.ok()) status = aside.go_on();
  }
  return status.ok() ? "" : status.text();
}

std::string time_out(BucketExchange& exchange, const std::string& expected, const Aside& aside) {
  Status status = start(exchange, kBuckets);
  while (status.ok() && !exchange.is_done(0)) {
    status = exchange.advance();
    if (status.ok()) status = aside.go_on();
  }
  if (status.ok()) status = exchange.wait_all({});
  const bool right = status.code() == StatusCode::unavailable &&
                     status.message().find("bucket 1 of round 0") != std::string::npos &&
                     status.message().find(" polls, longest gap") != std::string::npos &&
                     status.message().find(expected) != std::string::npos;
  return right ? "" : status.text();
}

std::string run_late(Communicator& c, const LateCase& late, Aside& aside) {
  const Case& item = late.item;
  Made made = make(c, item, std::chrono::seconds(1));
  const bool is_late = c.rank().value() == item.leaver;
  const bool same_node = item.per_node == 0 || item.shared_memory == SharedMemory::avoid ||
                         c.rank().value() / item.per_node == item.leaver / item.per_node;
  if (!made.ok()) return aside.failure(made);
  if (is_late) return come_late(**made, aside);
  const char* expected = same_node ? late.on_its_node : "the part is missing from the node of";
  const std::string text = time_out(**made, expected, aside);
  --aside.waiting;
  return text;
}

TEST_CASE("a wait that times out names who did not start the bucket, or who may not have") {
  const std::array<LateCase, 4> cases = {{{kCases[0], "rank 2 of this node did not start it"},
                                          {kCases[2], "rank 3 of this node did not start it"},
                                          {kCases[3], "rank 2 of this node did not start it"},
                                          {kCases[6], "one of the other 3 ranks"}}};
  for (const LateCase& late : cases) {
    const Case& item = late.item;
    LoopbackOptions options;
    options.ranks_per_node = item.per_node;
    const LoopbackWorld world(item.ranks, options);
    Aside aside;
    aside.waiting = item.ranks - 1;
    const auto results =
        on_every_rank(world, item.ranks, [&](Communicator& c) { return run_late(c, late, aside); });
    for (std::size_t r = 0; r < results.size(); ++r) {
      CHECK_MESSAGE(results[r] == "", item.name << ", rank " << r << ": " << results[r]);
    }
  }
}

// Keeps the first rank from its wait for longer than its limit, while the other rank ends the wait.
std::string stay_away(BucketExchange& exchange, Aside& aside) {
  Status status = start(exchange, kBuckets);
  int calls = 0;
  const auto pump = [&] {
    if (++calls != 20) return;  // now the rank sleeps between two polls
    aside.left = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    while (aside.waiting > 0 && aside.go_on().ok()) continue;
  };
  if (status.ok()) status = exchange.wait_all(pump);
  return status.ok() ? "" : status.text();
}

TEST_CASE("a rank that was kept away longer than its limit finds the round complete") {
  for (const Case& item : {Case{"one node", 2, 0, SharedMemory::use, 1},
                           Case{"messages", 2, 0, SharedMemory::avoid, 1}}) {
    const LoopbackWorld world(item.ranks);
    Aside aside;
    aside.waiting = 1;
    const auto results = on_every_rank(world, item.ranks, [&](Communicator& c) -> std::string {
      Made made = make(c, item, std::chrono::seconds(1));
      if (!made.ok()) return aside.failure(made);
      if (c.rank() == RankId(0)) return stay_away(**made, aside);
      Status status;
      while (!aside.left && status.ok()) status = aside.go_on();
      if (status.ok()) status = whole_round(**made);
      --aside.waiting;
      return status.ok() ? "" : status.text();
    });
    for (const std::string& text : results) CHECK_MESSAGE(text == "", item.name << ": " << text);
  }
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::transport
