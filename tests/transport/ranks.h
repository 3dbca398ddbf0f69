// Runs one function on every rank of a loopback world, each on a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/testing/loopback.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {

using testing::FaultKind;
using testing::FaultScript;
using testing::LoopbackOptions;
using testing::LoopbackWorld;

// Returns the result of each rank's call, in rank order. The communicators are destroyed on return.
inline std::vector<std::string> on_every_rank(
    const LoopbackWorld& world, std::int32_t ranks,
    const std::function<std::string(Communicator&)>& run) {
  std::vector<std::string> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::int32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> communicator = world.communicator(RankId(r));
      results[static_cast<std::size_t>(r)] = run(*communicator);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline WaitPolicy patient() {
  return with_timeout(wait_policy(8, 1), std::chrono::seconds(20), "the test");
}

}  // namespace cox::transport
