// Shared parts of the tests of NCCL's transport: the fake library, its script, a rank with a group
// and a lane, and a wait for the end of submitted work.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "coordinator/transport/nccl/group.h"
#include "tests/support/cuda/nccl_script.h"
#include "tests/transport/ranks.h"

namespace cox::transport {

using Script = test::NcclScriptHere;

inline Result<NcclLibrary> fake_nccl() {
  return test::fake_nccl(COX_FAKE_NCCL_LIBRARY);
}

inline NcclGroupOptions test_options() {
  NcclGroupOptions options;
  options.start_limit = std::chrono::seconds(30);
  options.end_limit = std::chrono::seconds(10);
  options.wait = patient();
  return options;
}

// A rank under test. The group is destroyed before its lane.
struct NcclRank {
  test::HostStream training;
  test::HostLane lane{training};
  std::unique_ptr<NcclGroup> group;

  // Joins the group. Returns an error, empty on success.
  std::string join(Communicator& ranks, const NcclGroupOptions& options = test_options()) {
    const Status made = take(NcclGroup::create(ranks, fake_nccl(), options), group);
    return made.ok() ? "" : made.text();
  }

  // Polls until the lane's work is done. Returns the first error.
  Status finish() {
    Waiter waiter(patient());
    for (bool is_behind = false;;) {
      const auto settled = group->settle();
      if (!settled.ok()) return settled.status();
      if (*settled == Progress::done && !is_behind) {
        is_behind = true;
        if (Status s = lane.mark(0); !s.ok()) return s;
      }
      if (is_behind) {
        const auto passed = lane.passed(0);
        if (!passed.ok()) return passed.status();
        if (*passed == Progress::done) return ok_status();
      }
      if (Status s = waiter.pause(); !s.ok()) return s;
    }
  }

  // Polls until the call has settled.
  Status settle() {
    Waiter waiter(patient());
    for (;;) {
      const auto settled = group->settle();
      if (!settled.ok() || *settled == Progress::done) return settled.status();
      if (Status s = waiter.pause(); !s.ok()) return s;
    }
  }
};

}  // namespace cox::transport
