#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "coordinator/transport/shared/segment.h"
#include "sdk/src/shard/shared_gradients.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

constexpr std::int32_t kRanks = 4;
constexpr std::size_t kGradients = 5;
using Has = GradientTurns::Has;

void yield_until(const std::function<bool()>& is_over) {
  while (!is_over()) std::this_thread::yield();
}

// A meeting of all ranks, as at a numbered write.
class Meeting {
 public:
  void meet() {
    const int round = ++arrived_;
    const int all = (round + kRanks - 1) / kRanks * kRanks;
    yield_until([&] { return arrived_ >= all; });
  }

 private:
  std::atomic<int> arrived_{0};
};

// Returns the part of each rank by round and gradient. A rank with part 0 has no gradient.
float part_of(std::size_t round, std::size_t gradient, std::int32_t rank) {
  std::mt19937 random(static_cast<unsigned>(round * 1000 + gradient * 10) +
                      static_cast<unsigned>(rank));
  return random() % 4 == 0 ? 0 : static_cast<float>(random()) * 1e-3f;
}

}  // namespace

TEST_SUITE("turns at gradients") {
  TEST_CASE(
      "gradients are added in ascending ranks, round after round, and those of nobody are none") {
    constexpr std::size_t kRounds = 300;
    const auto memory = transport::heap_segment(GradientTurns::bytes_needed(kGradients, kRanks));
    std::vector<float> sums(kGradients);
    Meeting meeting;
    std::atomic<int> wrong{0};
    const auto run = [&](std::int32_t rank) {
      GradientTurns turns(memory, kGradients, rank, kRanks, yield_until);
      for (std::size_t round = 0; round < kRounds; ++round) {
        for (std::size_t g = 0; g < kGradients; ++g)
          turns.say(g, part_of(round, g, rank) != 0 ? Has::one : Has::none);
        meeting.meet();
        double squares = 0;
        for (std::size_t g = 0; g < kGradients; ++g) {
          float expected = 0;
          for (std::int32_t r = 0; r < kRanks; ++r) expected += part_of(round, g, r);
          const bool has_some = turns.any_says(g) == Has::one;
          if (has_some != (expected != 0)) ++wrong;
          if (!has_some) continue;
          turns.await_turn(g);
          sums[g] = (rank == 0 ? 0 : sums[g]) + part_of(round, g, rank);
          turns.pass(g);
        }
        for (std::size_t g = 0; g < kGradients; ++g) {
          float expected = 0;
          for (std::int32_t r = 0; r < kRanks; ++r) expected += part_of(round, g, r);
          if (expected == 0) continue;
          turns.await_all(g);
          if (sums[g] != expected) ++wrong;
          squares += rank + 1;
        }
        turns.say_part(squares);
        meeting.meet();
        double all = 0;
        for (std::int32_t r = 0; r < kRanks; ++r) all += squares / (rank + 1) * (r + 1);
        if (turns.sum_of_parts() != all) ++wrong;
      }
    };
    std::vector<std::thread> ranks;
    for (std::int32_t rank = 0; rank < kRanks; ++rank) ranks.emplace_back(run, rank);
    for (std::thread& rank : ranks) rank.join();
    CHECK(wrong == 0);
  }
}
