// Slices and fronts of operator graphs against a simulator of the tape's rules, and against all
// sets of kept storages.
#include "coordinator/planner/operator_graph.h"

#include <algorithm>
#include <limits>
#include <random>

#include "tests/planner/tape_simulator.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using planner::candidates;
using planner::GraphOperator;
using planner::KeptSet;
using planner::kOutside;
using planner::OperatorGraph;
using planner::Slice;
using planner::StorageFront;
using planner::StoragePoint;
using planner::ValueRead;

using Operators = std::vector<std::int32_t>;

ValueRead read(std::int32_t from, std::int32_t storage, std::int32_t writes = 0) {
  return {from, storage, writes, true};
}
planner::SavedRead saved_input(const ValueRead& value) {
  return {value.storage, true, true, value};
}
planner::SavedRead saved_result(std::int32_t storage) {
  return {storage, true, false, {}};
}

KeptSet set_of(const OperatorGraph& graph, std::uint32_t mask) {
  KeptSet kept(graph.storages.size());
  const auto storages = candidates(graph);
  for (std::size_t i = 0; i < storages.size(); ++i)
    kept[static_cast<std::size_t>(storages[i])] = (mask >> i & 1) != 0;
  return kept;
}

Slice slice_of(const OperatorGraph& graph, std::uint32_t mask) {
  REQUIRE(planner::validate(graph).ok());
  const KeptSet kept = set_of(graph, mask);
  const Slice slice = planner::slice(graph, kept);
  const test::SimulatedStep step = test::simulate(graph, kept);
  CHECK(step.error.empty());
  CHECK(slice.operators == step.replayed);
  CHECK(slice.ns == step.ns);
  CHECK(slice.bytes == step.bytes);
  CHECK(slice.bytes_with_held == step.bytes_with_held);
  CHECK(slice.bytes_with_gradients == step.bytes_with_gradients);
  return slice;
}

// norm -> one product -> its thirds as views -> attention, which saves them; then another product.
OperatorGraph attention() {
  OperatorGraph graph;
  graph.storages = {{10, 0}, {30, 1}, {10, 5}, {1, 5}};
  graph.operators = {
      {"norm", 2, {}, {}, {}},
      {"product", 20, {read(0, 0)}, {}, {saved_input(read(0, 0))}},
      {"q", 0, {read(1, 1)}, {}, {}},
      {"k", 0, {read(1, 1)}, {}, {}},
      {"v", 0, {read(1, 1)}, {}, {}},
      {"attention", 9, {read(2, 1), read(3, 1), read(4, 1)}, {}, {}},
      {"product", 7, {read(5, 2)}, {}, {saved_input(read(5, 2))}},
  };
  graph.operators[5].saves = {saved_input(read(2, 1)), saved_input(read(3, 1)),
                              saved_input(read(4, 1)), saved_result(2), saved_result(3)};
  return graph;
}

TEST_SUITE("planner.operators") {
  TEST_CASE("q, k and v of one product are made together, once") {
    const OperatorGraph graph = attention();
    CHECK(candidates(graph) == Operators{0, 1, 2, 3});
    const Slice slice = slice_of(graph, 0b1101);  // the product's result is dropped
    CHECK(slice.operators == Operators{1, 2, 3, 4});
    CHECK(slice.ns == 20);
    CHECK(slice.bytes == 30);
    CHECK(slice.bytes_with_held == 51);
    CHECK(planner::held_bytes(graph, set_of(graph, 0b1101)) == 21);
  }

  TEST_CASE("a dropped result that the next operator saved as its argument is fetched by value") {
    // Attention runs again for its own result, because the last product needs the result's value.
    CHECK(slice_of(attention(), 0b1011).operators == Operators{5});
    // Only the logarithms are missing: attention runs again, and all of its inputs are kept.
    CHECK(slice_of(attention(), 0b0111).operators == Operators{5});
  }

  TEST_CASE("what a replay passes is taken along") {
    const Slice slice = slice_of(attention(), 0b0000);
    CHECK(slice.operators == Operators{0, 1, 2, 3, 4, 5});
    CHECK(slice.ns == 31);
  }

  TEST_CASE("a value needs all earlier writes to its storage, those after it not") {
    OperatorGraph graph;
    graph.storages = {{8, 0}, {4, 3}};
    graph.operators = {
        {"make", 5, {}, {}, {}},
        {"write twice", 3, {read(0, 0)}, {0, 0}, {}},
        {"view", 1, {read(0, 0, 2)}, {}, {}},
        {"user", 7, {read(2, 0, 2)}, {}, {}},
        {"write", 2, {read(0, 0, 2)}, {0}, {}},
        {"last", 0, {read(3, 1)}, {}, {saved_input(read(3, 1))}},
    };
    const Slice slice = slice_of(graph, 0);
    CHECK(slice.operators == Operators{0, 1, 2, 3});
    CHECK(slice.bytes == 12);
  }

  TEST_CASE("a mask is kept in fewer bits, and whole where it is read") {
    OperatorGraph graph;  // y = x * noise; z = y * y; x, the noise and y are saved
    graph.storages = {{32, 0}, {32, 1, false, 1}, {32, 2}};
    graph.operators = {
        {"x", 3, {}, {}, {}},
        {"noise", 20, {}, {}, {}},
        {"multiply", 2, {read(0, 0), read(1, 1)}, {}, {}},
        {"square", 2, {read(2, 2)}, {}, {}},
    };
    graph.operators[2].saves = {saved_input(read(0, 0)), saved_input(read(1, 1))};
    graph.operators[3].saves = {saved_input(read(2, 2))};
    CHECK(planner::saved_bytes(graph) == 96);
    CHECK(planner::held_bytes(graph, set_of(graph, 0b111)) == 65);
    const Slice kept = slice_of(graph, 0b111);
    CHECK(kept.operators.empty());
    CHECK(kept.bytes == 32);            // for multiply's backward
    CHECK(kept.bytes_with_held == 65);  // y is freed before that
    const Slice remade = slice_of(graph, 0b011);
    CHECK(remade.operators == Operators{2});
    CHECK(remade.bytes == 64);  // y, and the noise that y needs
    CHECK(remade.bytes_with_held == 97);
    CHECK(slice_of(graph, 0b001).operators == Operators{1, 2});
    graph.storages[1].packed_bytes = 33;
    CHECK_FALSE(planner::validate(graph).ok());
  }

  TEST_CASE("a kept storage serves reads of its last state only") {
    OperatorGraph graph;
    graph.storages = {{8, 0}, {4, 1}};
    graph.operators = {
        {"make", 5, {}, {}, {}},
        {"early user", 7, {read(0, 0)}, {}, {}},
        {"write", 3, {read(0, 0)}, {0}, {saved_result(0)}},
        {"user", 0, {read(1, 1)}, {}, {saved_input(read(1, 1))}},
    };
    // The early user needs the storage before the write.
    CHECK(slice_of(graph, 0b01).operators == Operators{0, 1});
    graph.operators[1].reads[0] = {};
    graph.operators[1].reads.clear();
    CHECK(slice_of(graph, 0b01).operators == Operators{1});
  }

  TEST_CASE("a storage saved before its last write serves nothing") {
    OperatorGraph graph;
    graph.storages = {{8, 0}, {4, 3}};
    graph.operators = {
        {"make", 5, {}, {}, {}},
        {"saves early", 1, {read(0, 0)}, {}, {saved_input(read(0, 0))}},
        {"write", 3, {read(0, 0)}, {0}, {}},
        {"user", 7, {read(0, 0, 1)}, {}, {}},
        {"last", 0, {read(3, 1)}, {}, {saved_input(read(3, 1))}},
    };
    graph.operators[1].saves[0].is_last_state = false;
    CHECK(slice_of(graph, 0b01).operators == Operators{0, 2, 3});
  }

  TEST_CASE("a kept storage serves until backward is past the first operator that saved it") {
    OperatorGraph graph;
    graph.storages = {{8, 0}, {4, 1}};
    graph.operators = {
        {"make", 5, {}, {}, {}},
        {"user", 7, {read(0, 0)}, {}, {}},
        {"middle", 0, {read(1, 1)}, {}, {saved_input(read(1, 1))}},
        {"saves late", 1, {read(0, 0)}, {}, {saved_input(read(0, 0))}},
    };
    CHECK(slice_of(graph, 0b01).operators == Operators{0, 1});
    std::swap(graph.operators[2].saves, graph.operators[3].saves);
    CHECK(slice_of(graph, 0b01).operators == Operators{1});
  }

  TEST_CASE("keeping more can cost more, since a replay takes along what it passes") {
    OperatorGraph graph;
    graph.storages = {{1, 0}, {4, 1}, {4, 2}, {4, 3}};
    graph.operators = {
        {"root", 10, {}, {}, {}},
        {"left", 1, {read(0, 0)}, {}, {}},
        {"right", 1, {read(0, 0)}, {}, {}},
        {"both", 1, {read(1, 1), read(2, 2)}, {}, {}},
        {"a", 0, {read(1, 1)}, {}, {saved_input(read(1, 1))}},
        {"b", 0, {read(2, 2)}, {}, {saved_input(read(2, 2))}},
        {"c", 0, {read(3, 3)}, {}, {saved_input(read(3, 3))}},
    };
    CHECK(slice_of(graph, 0b000).ns == 13);
    CHECK(slice_of(graph, 0b100).ns == 22);
    CHECK(planner::storage_front(graph).points.front().replay_ns == 13);
  }

  TEST_CASE("what is held anyway is always kept, and counts no bytes") {
    OperatorGraph graph = attention();
    graph.storages[1].is_held = true;
    CHECK(candidates(graph) == Operators{0, 2, 3});
    const StorageFront front = planner::storage_front(graph);
    for (const StoragePoint& point : front.points) CHECK(point.kept[1]);
    CHECK(front.points.front().held_bytes == 0);
    CHECK(front.points.back().held_bytes <= 21);
  }

  TEST_CASE("a view of memory from outside is made again by its operator") {
    OperatorGraph graph;
    graph.storages = {{8, 1}};
    graph.operators = {
        {"view of a parameter", 1, {}, {}, {}},
        {"product", 5, {{0, kOutside, 0, true}}, {}, {}},
        {"user", 0, {read(1, 0)}, {}, {saved_input(read(1, 0))}},
    };
    CHECK(slice_of(graph, 0).operators == Operators{0, 1});
  }

  TEST_CASE("slices of random graphs are what a simulator of the tape's rules runs") {
    std::mt19937_64 random(18);
    for (int i = 0; i < 3000; ++i) {
      CAPTURE(i);
      const OperatorGraph graph = test::random_graph(random, 2 + random() % 14);
      REQUIRE(planner::validate(graph).ok());
      const std::uint32_t sets = std::uint32_t{1} << candidates(graph).size();
      for (int k = 0; k < 6; ++k)
        slice_of(graph, static_cast<std::uint32_t>(random()) & (sets - 1));
    }
  }

  TEST_CASE("fronts of random graphs are those of all sets") {
    std::mt19937_64 random(19);
    for (int i = 0; i < 150; ++i) {
      CAPTURE(i);
      const OperatorGraph graph = test::random_graph(random, 3 + random() % 12);
      const std::size_t n = candidates(graph).size();
      if (n > 9) continue;
      const StorageFront front = planner::storage_front(graph);
      CHECK(front.is_exact);
      CHECK(front.subsets == std::size_t{1} << n);
      std::vector<StoragePoint> all;
      for (std::uint32_t mask = 0; mask < std::uint32_t{1} << n; ++mask) {
        KeptSet kept = set_of(graph, mask);
        for (std::size_t s = 0; s < kept.size(); ++s) {
          if (graph.storages[s].is_held) kept[s] = true;
        }
        const auto step = test::simulate(graph, kept);
        all.push_back({kept, planner::held_bytes(graph, kept), step.ns, step.bytes});
      }
      for (const StoragePoint& it : all) {  // no point beats the front
        const bool is_matched = std::ranges::any_of(front.points, [&](const StoragePoint& p) {
          if (p.held_bytes > it.held_bytes || p.replay_ns > it.replay_ns) return false;
          const bool is_equal = p.held_bytes == it.held_bytes && p.replay_ns == it.replay_ns;
          return !is_equal || p.replay_bytes <= it.replay_bytes;
        });
        CHECK(is_matched);
      }
      for (const StoragePoint& p : front.points) {  // and every point of the front exists
        const auto same = std::ranges::find(all, p.kept, &StoragePoint::kept);
        REQUIRE(same != all.end());
        CHECK(same->held_bytes == p.held_bytes);
        CHECK(same->replay_ns == p.replay_ns);
        CHECK(same->replay_bytes == p.replay_bytes);
      }
      for (std::size_t k = 0; k + 1 < front.points.size(); ++k) {
        CHECK(front.points[k].held_bytes < front.points[k + 1].held_bytes);
        CHECK(front.points[k].replay_ns > front.points[k + 1].replay_ns);
      }
    }
  }

  TEST_CASE("the set of the least peak is found by bytes alone, and is nearly always the best") {
    std::mt19937_64 random(22);
    int best = 0;
    int graphs = 0;
    for (int i = 0; i < 300; ++i) {
      CAPTURE(i);
      OperatorGraph graph = test::random_graph(random, 3 + random() % 14);
      const std::size_t n = candidates(graph).size();
      if (n > 9) continue;
      const auto alive = [&graph](KeptSet kept) {
        for (std::size_t s = 0; s < kept.size(); ++s)
          kept[s] = kept[s] || graph.storages[s].is_held;
        return planner::held_bytes(graph, kept) + planner::slice(graph, kept).bytes_with_gradients;
      };
      const StoragePoint it = planner::least_alive(graph);
      const std::int64_t found = planner::chain_bytes(it);
      CHECK(found == alive(it.kept));
      CHECK(found <= alive(set_of(graph, 0)));
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (std::uint32_t mask = 0; mask < std::uint32_t{1} << n; ++mask)
        least = std::min(least, alive(set_of(graph, mask)));
      best += found == least;
      ++graphs;
      for (GraphOperator& op : graph.operators) op.ns = static_cast<std::int64_t>(random() % 1000);
      CHECK(planner::least_alive(graph).kept == it.kept);
    }
    CAPTURE(best);
    CAPTURE(graphs);
    CHECK(100 * best >= 98 * graphs);
  }

  // A pass's live bytes, less the kept and remade ones, predict passes with other kept sets.
  TEST_CASE("what backward takes besides is learnt from one pass and holds for all others") {
    std::mt19937_64 random(23);
    for (int i = 0; i < 200; ++i) {
      CAPTURE(i);
      OperatorGraph graph = test::random_graph(random, 3 + random() % 14);
      // One operator has no extra bytes, so that levels determine those of all others.
      GraphOperator& first = graph.operators[random() % graph.operators.size()];
      first.asking_bytes = first.backward_bytes = 0;
      const KeptSet seen = set_of(graph, static_cast<std::uint32_t>(random()));
      const std::int64_t base = 1000;
      std::vector<planner::BackwardLevels> measured;
      const std::vector<test::SimulatedLevels> levels = test::simulate(graph, seen).levels;
      for (std::size_t op = 0; op < graph.operators.size(); ++op) {
        const GraphOperator& it = graph.operators[op];
        measured.push_back({static_cast<std::int32_t>(op),
                            base + levels[op].asking_bytes + it.asking_bytes,
                            base + levels[op].running_bytes + it.backward_bytes});
      }
      OperatorGraph learnt = graph;
      for (GraphOperator& it : learnt.operators) it.asking_bytes = it.backward_bytes = 7;
      planner::learn_backward(learnt, seen, measured);
      CHECK(learnt == graph);
      planner::learn_backward(learnt, seen, {});
      CHECK(learnt.operators[0].backward_bytes == 0);
    }
  }

  TEST_CASE("beyond the limits storages are grouped, the ends stay, and the work is bounded") {
    std::mt19937_64 random(20);
    for (int i = 0; i < 20; ++i) {
      CAPTURE(i);
      const OperatorGraph graph = test::random_graph(random, 60);
      const planner::StorageFrontLimits few{256, 1'000'000};
      const StorageFront front = planner::storage_front(graph, few);
      CHECK_FALSE(front.is_exact);
      CHECK(front.subsets <= 256);
      CHECK(front.points.front().held_bytes == 0);
      CHECK(front.points.back().replay_ns == 0);
      const StorageFront more = planner::storage_front(graph, {4096, 10'000'000});
      for (const StoragePoint& p : front.points) {
        CHECK(planner::slice(graph, p.kept).ns == p.replay_ns);
        CHECK(planner::held_bytes(graph, p.kept) == p.held_bytes);
      }
      CHECK(more.points.size() + 3 >= front.points.size());
    }
  }

  TEST_CASE("levels lose the least time of all choices of as many points") {
    std::mt19937_64 random(21);
    for (int i = 0; i < 200; ++i) {
      StorageFront front;
      const std::size_t n = 1 + random() % 11;
      std::int64_t bytes = 0;
      std::int64_t ns = 10'000;
      for (std::size_t k = 0; k < n; ++k) {
        bytes += 1 + static_cast<std::int64_t>(random() % 50);
        ns -= 1 + static_cast<std::int64_t>(random() % 500);
        front.points.push_back({{}, bytes, ns, 0});
      }
      const std::size_t most = random() % 5;
      const auto lost = [&](const std::vector<std::size_t>& chosen) {
        std::int64_t sum = 0;
        std::int64_t now = front.points[0].replay_ns;
        for (std::size_t k = 0; k + 1 < n; ++k) {
          if (std::ranges::find(chosen, k) != chosen.end()) now = front.points[k].replay_ns;
          sum += (now - front.points[k].replay_ns) *
                 (front.points[k + 1].held_bytes - front.points[k].held_bytes);
        }
        return sum;
      };
      std::int64_t least = std::numeric_limits<std::int64_t>::max();
      for (std::uint32_t mask = 0; mask < std::uint32_t{1} << n; ++mask) {
        std::vector<std::size_t> chosen;
        for (std::size_t k = 0; k < n; ++k) {
          if (mask >> k & 1) chosen.push_back(k);
        }
        if (chosen.size() > most || (!chosen.empty() && (chosen[0] == 0 || chosen.back() == n - 1)))
          continue;
        least = std::min(least, lost(chosen));
      }
      const auto chosen = planner::levels(front, most);
      CHECK(chosen.size() == std::min(most, n < 2 ? 0 : n - 2));
      CHECK(std::ranges::is_sorted(chosen));
      CHECK(lost(chosen) == least);
    }
  }

  TEST_CASE("graphs that cannot be are refused") {
    const OperatorGraph good = attention();
    CHECK(planner::validate(good).ok());
    const auto refuses = [&](const auto& change, const std::string& words) {
      OperatorGraph graph = good;
      change(graph);
      const Status status = planner::validate(graph);
      CHECK_FALSE(status.ok());
      CHECK(status.message().find(words) != std::string::npos);
    };
    refuses([](OperatorGraph& g) { g.operators.clear(); }, "1 to 65536 operators");
    refuses([](OperatorGraph& g) { g.storages[1].bytes = -1; }, "storage 1");
    refuses([](OperatorGraph& g) { g.storages[0].maker = 7; }, "storage 0");
    refuses([](OperatorGraph& g) { g.operators[1].ns = -1; }, "operator 1 (product)");
    refuses([](OperatorGraph& g) { g.operators[1].reads[0].from = 1; }, "operators before");
    refuses([](OperatorGraph& g) { g.operators[1].reads[0].storage = 4; }, "made before");
    refuses([](OperatorGraph& g) { g.operators[1].reads[0].writes = 1; }, "as many writes");
    refuses([](OperatorGraph& g) { g.operators[1].writes = {1}; }, "made before");
    refuses([](OperatorGraph& g) { g.operators[1].saves[0].storage = 2; }, "storages that exist");
    refuses([](OperatorGraph& g) { g.operators[1].saves[0].value.from = 9; }, "operators before");
  }
}

}  // namespace
}  // namespace cox
