// FaultScript: what goes wrong in a loopback world, written down beforehand. A fault is looked up
// by communicator, rank and operation number, so a script gives the same faults on every run,
// whatever the threads do. Immutable value; any thread.
//
// Names: the world is "world"; what is derived from a communicator is called after it and counted
// in order of creation: "world.0" is the world's first duplicate, "world.1:3" the ranks with color
// 3 of the split after it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/units.h"

namespace cox::testing {

enum class FaultKind : std::uint8_t {
  none = 0,
  delay,     // test() says pending this many polls longer
  never,     // the operation never completes on this rank
  error,     // test() fails with unavailable
  refuse,    // start_*() fails with unavailable; to the others the rank has not come to it
  garbage,   // the rank's bytes are replaced by random ones
  truncate,  // the second half of the rank's bytes is zero
  blank,     // all of the rank's bytes are zero: the frame was lost
  repeat,    // the rank's bytes are those of the operation before: a frame delivered twice
};
// Faults on bytes hit what the rank gives to a gather and what it receives from a broadcast; other
// operations carry data that must not be touched, and ignore them.

// A rule hits operations first .. last of the ranks and communicators it names.
struct FaultRule {
  FaultKind kind = FaultKind::none;
  std::string communicator{};  // empty = every one
  RankId rank{-1};             // in that communicator; -1 = every one
  std::uint64_t first = 0;
  std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  double probability = 1;   // of each operation, 0 .. 1
  std::uint32_t polls = 1;  // of a delay: drawn from 1 .. polls
};

struct Fault {
  FaultKind kind = FaultKind::none;
  std::uint32_t polls = 0;
  std::uint64_t seed = 0;  // for garbage
};

class FaultScript {
 public:
  FaultScript() = default;
  FaultScript(std::uint64_t seed, std::vector<FaultRule> rules)
      : seed_(seed), rules_(std::move(rules)) {}

  bool empty() const { return rules_.empty(); }
  // Returns what happens to operation `number` of `rank`. The first rule that hits decides.
  Fault at(std::string_view communicator, RankId rank, std::uint64_t number) const;

 private:
  std::uint64_t seed_ = 0;
  std::vector<FaultRule> rules_;
};

// Applies the fault to `bytes`. `before` has the bytes that the same rank gave one operation
// earlier.
void damage(const Fault& fault, std::vector<std::byte>& bytes,
            const std::vector<std::byte>& before);

}  // namespace cox::testing
