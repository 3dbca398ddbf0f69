#include "coordinator/testing/faults.h"

#include <algorithm>
#include <array>
#include <string>

#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::testing {
namespace {

using namespace transport;

LoopbackOptions with(FaultRule rule) {
  LoopbackOptions options;
  options.faults = FaultScript(7, {std::move(rule)});
  return options;
}

// Rank 0 gathers a counting byte of each rank, twice. Returns the bytes as text.
std::string gathered_twice(const LoopbackWorld& world) {
  std::string seen;
  on_every_rank(world, 2, [&](Communicator& c) -> std::string {
    for (int i = 0; i < 2; ++i) {
      std::array<std::byte, 2> mine;
      mine.fill(static_cast<std::byte>('a' + 2 * i + c.rank().value()));
      std::array<std::byte, 4> all{};
      static_cast<void>(finish(c, c.start_gather(mine, all, RankId(0)), patient()));
      if (c.rank() != RankId(0)) continue;
      for (const std::byte b : all) seen += b == std::byte{0} ? '0' : static_cast<char>(b);
    }
    return "";
  });
  return seen;
}

TEST_SUITE_BEGIN("faults");

TEST_CASE("faults on bytes hit what the named rank gives to a gather") {
  CHECK(gathered_twice(LoopbackWorld(2)) == "aabbccdd");
  CHECK(gathered_twice(LoopbackWorld(2, with({.kind = FaultKind::blank, .rank = RankId(1)}))) ==
        "aa00cc00");
  CHECK(gathered_twice(LoopbackWorld(
            2, with({.kind = FaultKind::truncate, .rank = RankId(0), .first = 1}))) == "aabbc0dd");
  CHECK(gathered_twice(LoopbackWorld(
            2, with({.kind = FaultKind::repeat, .rank = RankId(1), .first = 1}))) == "aabbccbb");
  const std::string garbage =
      gathered_twice(LoopbackWorld(2, with({.kind = FaultKind::garbage, .rank = RankId(1)})));
  CHECK(garbage.substr(0, 2) == "aa");
  CHECK(garbage.substr(2, 2) != "bb");
}

TEST_CASE("faults on bytes hit what the named rank receives from a broadcast") {
  const LoopbackWorld world(3, with({.kind = FaultKind::blank, .rank = RankId(2)}));
  const auto results = on_every_rank(world, 3, [](Communicator& c) -> std::string {
    std::array<std::byte, 1> frame = {c.rank() == RankId(0) ? std::byte{'x'} : std::byte{'?'}};
    static_cast<void>(finish(c, c.start_broadcast(frame, RankId(0)), patient()));
    return frame[0] == std::byte{'x'} ? "x" : "lost";
  });
  CHECK(results == std::vector<std::string>{"x", "x", "lost"});
}

TEST_CASE("sums are never touched") {
  const LoopbackWorld world(2, with({.kind = FaultKind::garbage}));
  const auto results = on_every_rank(world, 2, [](Communicator& c) -> std::string {
    std::array<std::uint64_t, 1> one = {1};
    static_cast<void>(finish(
        c, c.start_all_reduce(std::as_writable_bytes(std::span(one)), sum_u64()), patient()));
    return std::to_string(one[0]);
  });
  CHECK(results == std::vector<std::string>{"2", "2"});
}

TEST_CASE("a delay counts polls, never lasts, an error is unavailable") {
  struct Row {
    FaultRule rule;
    int polls_until_done;  // -1 = not within 100 polls
    StatusCode code;
  };
  const std::array<Row, 3> rows = {
      Row{{.kind = FaultKind::delay, .rank = RankId(0), .polls = 1}, 2, StatusCode::ok},
      Row{{.kind = FaultKind::never, .rank = RankId(0)}, -1, StatusCode::ok},
      Row{{.kind = FaultKind::error, .rank = RankId(0)}, -1, StatusCode::unavailable}};
  for (const Row& row : rows) {
    const LoopbackWorld world(1, with(row.rule));
    const auto c = world.communicator(RankId(0));
    std::array<std::byte, 8> buffer{};
    Result<Request> request = c->start_all_reduce(buffer, sum_u64());
    int polls = 0;
    Result<Progress> progress = Progress::pending;
    while (polls < 100 && progress.ok() && *progress == Progress::pending) {
      progress = c->test(*request);
      ++polls;
    }
    CHECK(progress.status().code() == row.code);
    if (row.polls_until_done > 0) CHECK(polls == row.polls_until_done);
    if (row.rule.kind == FaultKind::never) CHECK(polls == 100);
  }
}

TEST_CASE("a rule names a communicator, and leaves the others alone") {
  const LoopbackWorld world(2, with({.kind = FaultKind::blank, .communicator = "world.1"}));
  const auto results = on_every_rank(world, 2, [](Communicator& c) -> std::string {
    auto first = c.duplicate();
    auto second = c.duplicate();
    std::string seen;
    for (Communicator* each : {&c, first->get(), second->get()}) {
      std::array<std::byte, 1> frame = {std::byte{'x'}};
      static_cast<void>(finish(*each, each->start_broadcast(frame, RankId(0)), patient()));
      seen += frame[0] == std::byte{'x'} ? 'x' : '0';
    }
    return seen;
  });
  CHECK(results == std::vector<std::string>{"xxx", "xx0"});
}

TEST_CASE("the same script gives the same faults, another seed others, at the asked rate") {
  const std::vector<FaultRule> rules = {
      {.kind = FaultKind::delay, .probability = 0.25, .polls = 9}};
  const FaultScript script(1, rules), twin(1, rules), other(2, rules);
  int hits = 0, differences = 0;
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const RankId rank(static_cast<std::int32_t>(i % 4));
    const Fault fault = script.at("world", rank, i);
    CHECK(fault.polls == twin.at("world", rank, i).polls);
    hits += fault.kind == FaultKind::delay;
    differences += fault.kind != other.at("world", rank, i).kind;
    if (fault.kind == FaultKind::delay) CHECK((fault.polls >= 1 && fault.polls <= 9));
  }
  CHECK(hits > 2300);
  CHECK(hits < 2700);
  CHECK(differences > 3000);
}

TEST_SUITE_END();

}  // namespace
}  // namespace cox::testing
