// Masks over the fake NCCL between MPI processes, and over the real library without a driver. All
// ranks have the same plan in every round, and leave NCCL together.
#include <algorithm>
#include <memory>
#include <string>

#include "coordinator/transport/wait.h"
#include "tests/mpi/agreement.h"
#include "tests/runtime/driven_job.h"
#include "tests/support/cuda/nccl_script.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using transport::Communicator;

WorkerOptions cuda_workers(ControlPath path) {
  WorkerOptions options = restless_workers(path);
  REQUIRE(use_host_streams(COX_FAKE_NCCL_LIBRARY) == "");
  options.nccl_library = COX_FAKE_NCCL_LIBRARY;
  options.least_switches = 10;
  options.make_lane = []() -> Result<std::unique_ptr<transport::DeviceLane>> {
    return std::unique_ptr<transport::DeviceLane>(std::make_unique<HostLane>());
  };
  return options;
}

std::string with_nccl(const Communicator& world, const std::string& path) {
  return world.size() == 1 ? "mailbox" : path + "+nccl";
}

TEST_SUITE("mpi.nccl") {
  TEST_CASE("all ranks have the same plan in every round, with masks over NCCL") {
    struct Case {
      ControlPath path;
      std::uint64_t rounds;
      const char* base;
    };
    const NcclScriptHere script("rank=1 every=8 slow_us=500; rank=0 settle=4");
    for (const Case& it :
         {Case{ControlPath::automatic, 10'000, "mailbox"}, Case{ControlPath::mpi, 1'000, "mpi"}}) {
      const auto c = mpi_world(0);
      WorkerOptions options = cuda_workers(it.path);
      options.rounds = c->size() > 2 ? std::min<std::uint64_t>(it.rounds, 2'500) : it.rounds;
      const WorkerTrace trace = train(*c, options);
      CHECK(trace.path == with_nccl(*c, it.base));
      CHECK(trace.last_path == trace.path);
      expect_agreement(*c, trace);
    }
  }

  TEST_CASE("a mask that is lost ends NCCL on all ranks in the same round") {
    const NcclScriptHere script("rank=1 from=5 lost");
    const auto c = mpi_world(2);
    WorkerOptions options = cuda_workers(ControlPath::automatic);
    options.settings = "control.nccl_seconds = 1";
    options.leaves_nccl = c->size() > 1;
    const WorkerTrace trace = train(*c, options);
    const std::string base = c->size() > 2 ? "mailbox+mpi" : "mailbox";
    CHECK(trace.path == with_nccl(*c, base));
    CHECK(trace.last_path == base);
    expect_agreement(*c, trace);
  }

  TEST_CASE("an error in the middle ends NCCL on all ranks in the same round") {
    const NcclScriptHere script("rank=1 op=3 error=6");
    const auto c = mpi_world(0);
    WorkerOptions options = cuda_workers(ControlPath::automatic);
    options.leaves_nccl = c->size() > 1;
    const WorkerTrace trace = train(*c, options);
    CHECK(trace.path == with_nccl(*c, "mailbox"));
    expect_agreement(*c, trace);
    CHECK(trace.last_path == "mailbox");
    if (c->rank().value() == 1)
      CHECK(trace.masks.text().find("remote error (6)") != std::string::npos);
  }

  TEST_CASE("the journal of a run with masks over NCCL replays to the same plans") {
    const auto c = mpi_world(0);
    TempFolder folder;
    WorkerOptions options = cuda_workers(ControlPath::automatic);
    if (c->rank() == kRoot) options.journal = folder / "journal.cox";
    expect_agreement(*c, train(*c, options));
    if (c->rank() == kRoot) expect_replay(options);
  }

  TEST_CASE("the real library without a driver is a reason, and masks go over MPI") {
    const auto c = mpi_world(0);
    WorkerOptions options = cuda_workers(ControlPath::mpi);
    options.nccl_library = COX_REAL_NCCL_LIBRARY;
    const auto library = transport::NcclLibrary::open(options.nccl_library);
    const WorkerTrace trace = train(*c, options);
    expect_agreement(*c, trace);
    if (c->size() == 1) return;
    if (library.ok() && trace.path == "mpi+nccl") {
      MESSAGE("left out: this machine has a driver");
      return;
    }
    CHECK(trace.path == "mpi");
    CHECK_FALSE(trace.masks.ok());
    MESSAGE(trace.masks.text());
  }
}

}  // namespace
}  // namespace cox::test
