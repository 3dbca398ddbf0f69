// check_loops() trains loops twice, replicated and sharded, and compares all results.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/session.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/shard/sharded_loops.h"

#include <doctest/doctest.h>

namespace cox::test {

using Flags = std::vector<std::string>;
inline const Flags kSharded = {"--cox.shard.mode=state", "--cox.shard.grain=16"};

inline std::vector<at::Tensor> trained_by(const ShardedLoop& loop, const Flags& flags) {
  Session session = solo_session(flags);
  auto found = trained(
      loop, [&](torch::nn::Module& model) { session.adopt(model); }, session.rank());
  session.finish();
  return found;
}

// Trains both with the additional flags `also`.
inline void check_loops(const std::vector<ShardedLoop>& loops, const Flags& also = {}) {
  Flags flags = kSharded;
  flags.insert(flags.end(), also.begin(), also.end());
  for (const ShardedLoop& loop : loops) {
    CAPTURE(loop.name);
    const auto replicated = trained_by(loop, also);
    const auto sharded = trained_by(loop, flags);
    REQUIRE(sharded.size() == replicated.size());
    for (std::size_t i = 0; i < sharded.size(); ++i) {
      CAPTURE(i);
      CHECK(sdk_test::same_bits(sharded[i], replicated[i]));
    }
  }
}

}  // namespace cox::test
