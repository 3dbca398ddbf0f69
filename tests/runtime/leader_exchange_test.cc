// One control round between leaders, over loopback.
#include "coordinator/runtime/leader_exchange.h"

#include <functional>
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

struct Round {
  std::string error;
  bool is_sound = false;
  bool says_this_round = false;
};

// Runs one exchange to its end.
Round run_round(LeaderExchange& exchange, std::int32_t leader, std::uint64_t round) {
  const RankSignal signals[] = {report_of(leader, round)};
  const std::vector<BlockEvidence> evidence(kBlocks, {.overflow_forward = 1, .sampled = 10});
  const Status opened = exchange.open(signals, evidence, parcel_of(round));
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
  return {"", true, parcel->size == 3 && parcel->frame[0] == static_cast<std::byte>(round)};
}

// What every leader saw in every round; `look` is called at the root after each.
std::vector<std::vector<Round>> run_rounds(const LoopbackWorld& world, std::int32_t leaders,
                                           std::uint64_t rounds,
                                           const std::function<void(LeaderExchange&)>& look) {
  std::vector<std::vector<Round>> seen(static_cast<std::size_t>(leaders));
  transport::on_every_rank(world, leaders, [&](Communicator& c) {
    auto gathers = c.duplicate();
    auto masks = c.duplicate();
    LeaderExchange exchange(std::move(*gathers), std::move(*masks), kLargestNode, kBlocks);
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
          CHECK(gathered[1].magic == 0);  // nobody there
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
          // Half of this small parcel is zero anyway, so cutting it changes nothing.
          const bool is_hit = leader == 1 && round == 2 && kind != FaultKind::truncate;
          CHECK(seen[leader][round].error == "");
          CHECK(seen[leader][round].is_sound != is_hit);
        }
      }
      CHECK(world.verify().ok());
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

}  // namespace
}  // namespace cox::runtime
