// Boards, topology, plan book and mask relay: the parts without communication.
#include <random>
#include <string>

#include "coordinator/runtime/control_boards.h"
#include "coordinator/runtime/node_leader.h"
#include "coordinator/runtime/plan_book.h"
#include "coordinator/transport/shared/segment.h"

#include <doctest/doctest.h>

namespace cox::runtime {
namespace {

JobFacts small_job() {
  JobFacts job;
  job.incarnation = 1;
  job.world_size = 2;
  for (int b = 0; b < 64; ++b) job.blocks.push_back("block." + std::to_string(b));
  job.capabilities = {0xF, 0xF, true, true, true};
  return job;
}

Plan numbered(std::uint64_t number, std::uint64_t earliest) {
  Plan plan = initial_plan(small_job());
  plan.id = {1, number};
  plan.earliest_round = RoundId(earliest);
  plan.step_samples = number + 1;
  return plan;
}

std::vector<wire::Frame> frames_of(const Plan& plan, const Plan* base = nullptr) {
  auto frames = wire::encode_plan(plan, base);
  REQUIRE_MESSAGE(frames.ok(), frames.status().text());
  return *frames;
}

void hold(PlanBook& book, const Plan& plan, const Plan* base = nullptr) {
  for (const wire::Frame& frame : frames_of(plan, base)) book.hold(frame.used());
}

StepBallot held_by_all(std::uint64_t number) {
  StepBallot ballot;
  ballot.plan_held_min = number;
  return ballot;
}

TEST_SUITE("runtime.boards") {
  TEST_CASE("the largest plan that is valid goes onto the board of its job") {
    struct Size {
      std::size_t blocks;
      std::int32_t ranks;
      std::size_t profiles;
    };
    for (const Size size : {Size{1, 20000, 1024}, Size{64, 20000, 1024}, Size{1024, 64, 1024},
                            Size{1024, 20000, 1024}}) {
      JobFacts job = small_job();
      job.world_size = size.ranks;
      job.blocks.assign(size.blocks, "b");
      std::mt19937_64 random(size.blocks);
      Plan plan = initial_plan(job);
      plan.profiles.resize(size.profiles, plan.profiles[0]);
      for (auto& actions : plan.profiles) {
        for (MemoryAction& action : actions) action = static_cast<MemoryAction>(random() % 4);
      }
      for (std::int32_t r = 0; r < size.ranks; ++r) {
        plan.rank_profile.emplace_back(static_cast<ProfileId::rep>(random() % size.profiles));
        plan.shares.push_back(1 + static_cast<std::uint32_t>(random() % (1 << 20)));
      }
      REQUIRE_MESSAGE(validate(plan, job).ok(), validate(plan, job).message());
      std::vector<std::span<const std::byte>> set;
      const std::vector<wire::Frame> frames = frames_of(plan);
      for (const wire::Frame& frame : frames) set.push_back(frame.used());
      const std::size_t capacity = mask_capacity_bytes(job);
      const auto memory = transport::heap_segment(transport::MaskBoard::bytes_needed(capacity));
      auto board = transport::MaskBoard::format(memory.bytes(), capacity);
      REQUIRE(board.ok());
      CHECK_MESSAGE(board->publish(set).ok(), size.blocks << " blocks, " << size.ranks << " ranks");
    }
  }
}

TEST_SUITE("runtime.topology") {
  std::vector<NodeId> nodes_of(std::initializer_list<std::int32_t> values) {
    std::vector<NodeId> nodes;
    for (const std::int32_t v : values) nodes.emplace_back(v);
    return nodes;
  }

  TEST_CASE("nodes come in the order of their lowest ranks, however they are numbered") {
    const Topology topology = make_topology(RankId(3), nodes_of({7, 2, 7, 2, 5}));
    REQUIRE(topology.nodes.size() == 3);
    CHECK(topology.nodes[0] == std::vector{RankId(0), RankId(2)});
    CHECK(topology.nodes[1] == std::vector{RankId(1), RankId(3)});
    CHECK(topology.nodes[2] == std::vector{RankId(4)});
    CHECK(topology.node_index() == 1);
    CHECK(topology.slot() == 1);
    CHECK_FALSE(topology.is_leader());
    CHECK(topology.largest_node() == 2);
    CHECK(topology.world_size() == 5);
  }

  TEST_CASE("each node has one leader, its lowest rank") {
    const auto nodes = nodes_of({1, 0, 1, 0, 0, 9});
    std::vector<std::int32_t> leaders;
    for (std::int32_t r = 0; r < 6; ++r) {
      const Topology topology = make_topology(RankId(r), nodes);
      if (topology.is_leader()) leaders.push_back(r);
      CHECK(topology.my_node()[static_cast<std::size_t>(topology.slot())] == RankId(r));
    }
    CHECK(leaders == std::vector<std::int32_t>{0, 1, 5});
  }
}

TEST_SUITE("runtime.plan_book") {
  TEST_CASE("a plan is active after the round in which all hold it, not before its earliest one") {
    struct Row {
      std::uint64_t earliest;
      std::uint64_t held_min;
      std::uint64_t round;
      bool becomes_active;
    };
    for (const Row& row : {
             Row{5, 1, 3, false},                      // round 4 is before 5
             Row{5, 1, 4, true},                       // 5 is the next round
             Row{5, 1, 9, true}, Row{5, 0, 9, false},  // a rank does not hold it
             Row{0, 1, 0, true},
             Row{0, 2, 0, true},  // impossible: would mean that all hold a newer plan
         }) {
      CAPTURE(row.earliest);
      CAPTURE(row.round);
      PlanBook book(small_job(), initial_plan(small_job()));
      hold(book, numbered(1, row.earliest));
      CHECK(book.held_number() == 1);
      book.agree(RoundId(row.round), held_by_all(row.held_min));
      CHECK(book.active().id.number == 0);  // the plan stays until the round ends
      book.begin_round();
      CHECK(book.active().id.number == (row.becomes_active ? 1u : 0u));
      if (row.becomes_active) CHECK(book.active().activated_round == RoundId(row.round + 1));
    }
  }

  TEST_CASE("an agreed plan stays active, and older ones change nothing") {
    PlanBook book(small_job(), initial_plan(small_job()));
    hold(book, numbered(2, 0));
    book.agree(RoundId(1), held_by_all(2));
    book.begin_round();
    hold(book, numbered(1, 0));
    book.agree(RoundId(2), held_by_all(2));
    book.begin_round();
    CHECK(book.active().id.number == 2);
    CHECK(book.active().activated_round == RoundId(2));
  }

  TEST_CASE("a damaged frame asks for the full plan until one came whole") {
    PlanBook book(small_job(), initial_plan(small_job()));
    auto frames = frames_of(numbered(1, 0));
    frames[0].bytes[9] ^= std::byte{1};
    book.hold(frames[0].used());
    CHECK(book.full_plan_wanted());
    CHECK(book.frame_errors() == 1);
    CHECK(book.held_number() == 0);
    hold(book, numbered(1, 0));
    CHECK_FALSE(book.full_plan_wanted());
    CHECK(book.held_number() == 1);
  }

  TEST_CASE("the plan that is held already answers a rank that asked") {
    PlanBook book(small_job(), initial_plan(small_job()));
    hold(book, numbered(3, 0));
    book.note_damage();
    CHECK(book.full_plan_wanted());
    hold(book, numbered(2, 0));  // an old plan is no answer
    CHECK(book.full_plan_wanted());
    hold(book, numbered(3, 0));
    CHECK_FALSE(book.full_plan_wanted());
    CHECK(book.frame_errors() == 1);
  }

  TEST_CASE("changes against a plan that was missed ask for the full plan") {
    PlanBook book(small_job(), initial_plan(small_job()));
    const Plan base = numbered(1, 0);
    hold(book, numbered(2, 0), &base);
    CHECK(book.held_number() == 0);
    CHECK(book.full_plan_wanted());
    hold(book, numbered(2, 0));
    CHECK(book.held_number() == 2);
    CHECK_FALSE(book.full_plan_wanted());
  }
}

struct RelayBench {
  transport::SharedSegment memory =
      transport::heap_segment(transport::MaskBoard::bytes_needed(1 << 16));
  transport::MaskBoard board = *transport::MaskBoard::format(memory.bytes(), 1 << 16);
  MaskRelay relay{board};
  transport::MaskReader reader{board};

  std::size_t frames_seen() { return reader.poll() ? reader.frames().size() : 0; }
};

TEST_SUITE("runtime.mask_relay") {
  TEST_CASE("the frames of one plan stay together until another one comes") {
    Plan plan = initial_plan(small_job());
    plan.id = {1, 1};
    plan.precision.assign(700, Precision::bf16);
    plan.profiles.assign(1, std::vector<MemoryAction>(700, MemoryAction::recompute));
    const auto frames = frames_of(plan);
    REQUIRE(frames.size() >= 3);
    RelayBench bench;
    for (std::size_t i = 0; i < frames.size(); ++i) {
      CHECK(bench.relay.pass(frames[i].used()).ok());
      CHECK(bench.frames_seen() == i + 1);
    }
    CHECK(bench.relay.pass(frames[1].used()).ok());  // a repeated frame is no new frame
    CHECK(bench.frames_seen() == frames.size());
    CHECK(bench.relay.pass(frames_of(numbered(2, 0))[0].used()).ok());
    CHECK(bench.frames_seen() == 1);
    CHECK(bench.relay.pass(frames[0].used()).ok());  // an old plan
    CHECK(bench.frames_seen() == 0);
  }

  TEST_CASE("damaged frames do not spread, and however many come they take no room") {
    RelayBench bench;
    auto frames = frames_of(numbered(1, 0));
    CHECK(bench.relay.pass(frames[0].used()).ok());
    CHECK(bench.frames_seen() == 1);
    frames[0].bytes[12] ^= std::byte{4};
    for (int i = 0; i < 1000; ++i) CHECK_FALSE(bench.relay.pass(frames[0].used()).ok());
    CHECK_FALSE(bench.relay.pass({}).ok());
    CHECK(bench.frames_seen() == 0);
  }
}

}  // namespace
}  // namespace cox::runtime
