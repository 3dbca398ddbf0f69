// A node's leader: collecting the node's reports, and control rounds between leaders, over
// loopback.
#include "coordinator/runtime/node_leader.h"

#include <functional>
#include <optional>
#include <string>

#include "coordinator/testing/loopback.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

using testing::FaultKind;
using testing::FaultRule;
using testing::LoopbackOptions;
using testing::LoopbackWorld;
using transport::Communicator;
using transport::Progress;

constexpr std::size_t kLargestNode = 2;
constexpr std::size_t kBlocks = 3;

RankSignal report_of(std::int32_t leader, std::uint64_t round) {
  RankSignal signal;
  signal.rank = RankId(10 * leader);
  signal.round = RoundId(round);
  seal(signal);
  return signal;
}

MaskParcel parcel_of(std::uint64_t round) {
  MaskParcel parcel;
  parcel.size = 3;
  parcel.frame[0] = static_cast<std::byte>(round);
  return parcel;
}

// Two of five rounds have no mask.
Downward downward_of(std::uint64_t round) {
  return round % 5 >= 3 ? Downward::word : Downward::mask;
}

struct Round {
  std::string error;
  bool is_sound = false;
  bool says_this_round = false;
};

// Runs one exchange to its end.
Round run_round(LeaderExchange& exchange, std::int32_t leader, std::uint64_t round) {
  const RankSignal signals[] = {report_of(leader, round)};
  const std::vector<BlockEvidence> evidence(kBlocks, {.overflow_forward = 1, .sampled = 10});
  const Status opened = exchange.open(signals, evidence, downward_of(round), parcel_of(round));
  if (!opened.ok()) return {opened.text()};
  transport::Waiter waiter(transport::patient());
  for (;;) {
    const auto progress = exchange.pump();
    if (!progress.ok()) return {progress.status().text()};
    if (*progress == Progress::done) break;
    if (const Status paused = waiter.pause(); !paused.ok()) return {paused.text()};
  }
  const MaskParcel* parcel = exchange.parcel();
  if (parcel == nullptr) return {};
  const bool says_it = parcel->size == 3 && parcel->frame[0] == static_cast<std::byte>(round);
  return {"", true, says_it || downward_of(round) == Downward::word};
}

// Gathers are "world.0", masks "world.1", last words "world.2".
LeaderExchange::Links links(Communicator& leaders) {
  LeaderExchange::Links links;
  links.gathers = std::move(*leaders.duplicate());
  links.masks = std::move(*leaders.duplicate());
  links.endings = std::move(*leaders.duplicate());
  return links;
}

// Returns each leader's view of every round. Calls `look` on the root after each round.
std::vector<std::vector<Round>> run_rounds(const LoopbackWorld& world, std::int32_t leaders,
                                           std::uint64_t rounds,
                                           const std::function<void(LeaderExchange&)>& look) {
  std::vector<std::vector<Round>> seen(static_cast<std::size_t>(leaders));
  transport::on_every_rank(world, leaders, [&](Communicator& c) {
    LeaderExchange exchange(links(c), c.rank(), kLargestNode, kBlocks);
    const std::int32_t self = c.rank().value();
    for (std::uint64_t round = 0; round < rounds; ++round) {
      seen[static_cast<std::size_t>(self)].push_back(run_round(exchange, self, round));
      if (self == 0) look(exchange);
    }
    return std::string();
  });
  return seen;
}

LoopbackOptions with(FaultKind kind, const char* communicator, std::uint64_t round) {
  FaultRule rule;
  rule.kind = kind;
  rule.communicator = communicator;
  rule.rank = RankId(1);
  rule.first = rule.last = round;
  LoopbackOptions options;
  options.faults = {1, {rule}};
  return options;
}

TEST_SUITE("runtime.leader_exchange") {
  TEST_CASE("signals and merged evidence come up, the root's parcel comes down") {
    for (const std::int32_t leaders : {1, 2, 5}) {
      const LoopbackWorld world(leaders);
      std::uint64_t round = 0;
      const auto seen = run_rounds(world, leaders, 20, [&](LeaderExchange& root) {
        for (std::int32_t n = 0; n < leaders; ++n) {
          const auto gathered = root.gathered(static_cast<std::size_t>(n));
          REQUIRE(gathered.size() == kLargestNode);
          CHECK(check(gathered[0]).ok());
          CHECK(gathered[0].rank == RankId(10 * n));
          CHECK(gathered[0].round == RoundId(round));
          CHECK(gathered[1].magic == 0);  // no report
        }
        for (const BlockEvidence& block : root.evidence()) {
          CHECK(block.sampled == 10 * static_cast<std::uint32_t>(leaders));
        }
        ++round;
      });
      for (const auto& rounds : seen) {
        for (const Round& r : rounds) {
          CHECK(r.error == "");
          CHECK(r.says_this_round);
        }
      }
      CHECK(world.verify().ok());
    }
  }

  TEST_CASE("a damaged or repeated parcel is seen by the leader that got it, and by no other") {
    for (const FaultKind kind :
         {FaultKind::garbage, FaultKind::truncate, FaultKind::blank, FaultKind::repeat}) {
      const LoopbackWorld world(3, with(kind, "world.1", 2));
      const auto seen = run_rounds(world, 3, 5, [](LeaderExchange&) {});
      for (std::size_t leader = 0; leader < 3; ++leader) {
        for (std::size_t round = 0; round < 5; ++round) {
          // Half of this small parcel is zeros, so truncating it changes nothing.
          const bool is_hit = leader == 1 && round == 2 && kind != FaultKind::truncate;
          CHECK(seen[leader][round].error == "");
          CHECK(seen[leader][round].is_sound != is_hit);
        }
      }
      CHECK(world.verify().ok());
    }
  }

  TEST_CASE("a round without a mask carries 8 bytes, and a damaged word is seen") {
    for (const FaultKind kind : {FaultKind::garbage, FaultKind::blank, FaultKind::repeat}) {
      const LoopbackWorld world(3, with(kind, "world.1", 4));
      REQUIRE(downward_of(4) == Downward::word);
      const auto seen = run_rounds(world, 3, 7, [](LeaderExchange&) {});
      for (std::size_t leader = 0; leader < 3; ++leader) {
        for (std::size_t round = 0; round < 7; ++round) {
          CHECK(seen[leader][round].is_sound != (leader == 1 && round == 4));
        }
      }
    }
    CHECK(sizeof(RoundWord) == 8);
  }

  TEST_CASE("all leaders hear who could not start a round, once all have ended") {
    const LoopbackWorld world(3, with(FaultKind::refuse, "world.0", 4));
    const auto heard = transport::on_every_rank(world, 3, [&](Communicator& c) {
      LeaderExchange exchange(links(c), RankId(10 * c.rank().value()), kLargestNode, kBlocks);
      const std::int32_t self = c.rank().value();
      CHECK(run_round(exchange, self, 0).error == "");
      CHECK(run_round(exchange, self, 1).error == "");
      const Status opened = exchange.open({}, {}, Downward::word, {});
      CHECK(opened.ok() == (self != 1));
      exchange.end(opened);
      transport::Waiter waiter(transport::patient());
      auto progress = exchange.pump_end();
      while (progress.ok() && *progress == Progress::pending && waiter.pause().ok()) {
        progress = exchange.pump_end();
      }
      return progress.status().text();
    });
    for (const std::string& text : heard) {
      CHECK(text.find("rank 10") != std::string::npos);
      CHECK(text.find("refused by the fault script") != std::string::npos);
    }
  }

  TEST_CASE("a failed operation costs its leader one round, and the others none") {
    for (const char* communicator : {"world.0", "world.1"}) {
      const LoopbackWorld world(3, with(FaultKind::error, communicator, 2));
      const auto seen = run_rounds(world, 3, 5, [](LeaderExchange&) {});
      std::size_t failed = 0;
      for (const auto& rounds : seen) {
        for (const Round& r : rounds) failed += r.error.empty() ? 0 : 1;
      }
      CHECK(failed == 1);
      CHECK(seen[1].back().says_this_round);
      CHECK(world.verify().ok());
    }
  }
}

RankSignal sealed(std::int32_t rank, std::uint64_t round, std::optional<SignalFlag> flag = {}) {
  RankSignal signal;
  signal.rank = RankId(rank);
  signal.round = RoundId(round);
  signal.samples = 1;
  if (flag) signal.set(*flag);
  seal(signal);
  return signal;
}

// A board of a node with ranks 4 and 6.
struct NodeBench {
  static constexpr transport::BoardShape kShape{2, 1};
  transport::SharedSegment memory =
      transport::heap_segment(transport::SignalBoard::bytes_needed(kShape));
  transport::SignalBoard board = *transport::SignalBoard::format(memory.bytes(), kShape);
  NodeReports reports{board, {RankId(4), RankId(6)}};

  void post(std::int32_t slot, const RankSignal& signal) {
    const std::vector<BlockEvidence> evidence = {{.overflow_backward = 1, .sampled = 2}};
    REQUIRE(board.post(slot, signal, evidence));
  }
};

TEST_SUITE("runtime.node_reports") {
  TEST_CASE("reports lie in the order of the node's ranks, with their evidence merged") {
    NodeBench node;
    node.reports.open();
    node.post(1, sealed(6, 1));
    node.reports.take_when_complete();
    CHECK_FALSE(node.reports.complete());
    node.post(0, sealed(4, 1));
    node.reports.take_when_complete();
    CHECK(node.reports.complete());
    CHECK(node.reports.signals()[0].rank == RankId(4));
    CHECK(node.reports.signals()[1].rank == RankId(6));
    CHECK(node.reports.evidence()[0].sampled == 4);
    node.reports.sent();
    CHECK(node.reports.signals()[0].magic == 0);
    CHECK(node.reports.evidence()[0].sampled == 0);
  }

  TEST_CASE("a report that comes after its exchange is taken and folded into the next one") {
    NodeBench node;
    node.reports.open();
    node.post(0, sealed(4, 1));
    node.reports.take();
    node.reports.sent();
    node.post(1, sealed(6, 1));
    node.reports.take_when_complete();
    CHECK(node.board.consumed(1));  // frees the rank for another vote
    node.reports.open();
    node.post(0, sealed(4, 2));
    node.post(1, sealed(6, 2));
    node.reports.take_when_complete();
    CHECK(node.reports.signals()[1].round == RoundId(2));
    CHECK(node.reports.signals()[1].samples == 2);
    CHECK(check(node.reports.signals()[1]).ok());
  }

  TEST_CASE("a rank that has finished is not waited for, and its last report goes along") {
    NodeBench node;
    node.reports.open();
    node.post(0, sealed(4, 1));
    node.post(1, sealed(6, 1, SignalFlag::finished));
    node.reports.take_when_complete();
    node.reports.sent();
    CHECK_FALSE(node.reports.all_finished());
    node.reports.open();
    node.post(0, sealed(4, 2, SignalFlag::finished));
    node.reports.take_when_complete();
    CHECK(node.reports.complete());
    CHECK(node.reports.signals()[1].has(SignalFlag::finished));
    CHECK(node.reports.all_finished());
  }
}

}  // namespace
}  // namespace cox::runtime
