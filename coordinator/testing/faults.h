// FaultScript: the scripted faults of a loopback world. A fault is a function of communicator, rank
// and operation number, so a script gives the same faults on every run, in any order of threads.
// Immutable value; any thread.
//
// Names: the world is "world". A derived communicator has its parent's name with a count in order
// of creation: "world.0" is the world's first duplicate; "world.1:3" holds the ranks with color 3
// of the next split.
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
  delay,     // test() returns pending for this many more polls
  never,     // the operation never completes on this rank
  error,     // test() fails with unavailable
  refuse,    // start_*() fails with unavailable; other ranks see no call of this rank
  garbage,   // the rank's bytes are replaced by random ones
  truncate,  // the second half of the rank's bytes is zero
  blank,     // all of the rank's bytes are zero: a lost frame
  repeat,    // the rank's bytes are those of the previous operation: a duplicate frame
};
// Faults on bytes damage a rank's part of a gather and a rank's result of a broadcast. Other
// operations ignore them, because the data of other operations must stay intact.

// FaultRule applies to operations first .. last of the named ranks and communicators.
struct FaultRule {
  FaultKind kind = FaultKind::none;
  std::string communicator{};  // empty = all communicators
  RankId rank{-1};             // rank in the communicator; -1 = all ranks
  std::uint64_t first = 0;
  std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  double probability = 1;   // per operation, 0 .. 1
  std::uint32_t polls = 1;  // length of a delay: drawn from 1 .. polls
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
  // Returns the fault of operation `number` of `rank`. The first rule that applies decides.
  Fault at(std::string_view communicator, RankId rank, std::uint64_t number) const;

 private:
  std::uint64_t seed_ = 0;
  std::vector<FaultRule> rules_;
};

// Applies the fault to `bytes`. `before` holds the rank's bytes of its previous operation.
void damage(const Fault& fault, std::vector<std::byte>& bytes,
            const std::vector<std::byte>& before);

}  // namespace cox::testing
