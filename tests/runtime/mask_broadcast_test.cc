// Masks over NCCL. All ranks switch plans in the same round whatever happens to the broadcasts. If
// NCCL fails, all ranks leave it together and training goes on. Ranks are threads, NCCL is the
// fake, devices are host memory.
#include "coordinator/runtime/mask_broadcast.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/testing/loopback.h"
#include "tests/runtime/restless_policy.h"
#include "tests/runtime/workers.h"
#include "tests/support/cuda/nccl_script.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using runtime::MaskBroadcast;
using testing::LoopbackOptions;
using testing::LoopbackWorld;

// The thread sanitizer slows threads down many times.
#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kShorter = 10;
#else
constexpr std::uint64_t kShorter = 1;
#endif

Result<std::unique_ptr<transport::DeviceLane>> host_lane() {
  return std::unique_ptr<transport::DeviceLane>(std::make_unique<HostLane>());
}

WorkerOptions workers(std::uint64_t rounds, std::uint64_t seed) {
  WorkerOptions options;
  options.rounds = rounds / kShorter;
  options.policies = {std::make_shared<RestlessPolicy>(seed)};
  options.make_lane = host_lane;
  options.nccl_library = COX_FAKE_NCCL_LIBRARY;
  return options;
}

std::vector<WorkerTrace> run_workers(const LoopbackWorld& world, std::int32_t ranks,
                                     const WorkerOptions& options) {
  REQUIRE(use_host_streams(COX_FAKE_NCCL_LIBRARY) == "");
  std::vector<WorkerTrace> traces(static_cast<std::size_t>(ranks));
  transport::on_every_rank(world, ranks, [&](transport::Communicator& c) {
    traces[static_cast<std::size_t>(c.rank().value())] = train(c, options);
    return std::string();
  });
  return traces;
}

void expect_agreement(const std::vector<WorkerTrace>& traces, std::uint64_t least_rounds) {
  for (std::size_t r = 0; r < traces.size(); ++r) {
    INFO("rank " << r);
    CHECK(traces[r].trouble == "");
    CHECK(traces[r].rounds.size() >= least_rounds);
    CHECK(traces[r].rounds == traces[0].rounds);
  }
}

struct Trial {
  std::string name;
  std::int32_t ranks;
  std::uint64_t rounds;
  std::int32_t ranks_per_node;
  std::string script;
  std::string settings;
  std::string path;
  std::string last_path;
};

void run(const Trial& trial) {
  CAPTURE(trial.name);
  CAPTURE(trial.ranks);
  const NcclScriptHere script(trial.script);
  LoopbackOptions loopback;
  loopback.ranks_per_node = trial.ranks_per_node;
  const LoopbackWorld world(trial.ranks, loopback);
  WorkerOptions options = workers(trial.rounds, 41);
  options.settings = trial.settings;
  options.least_switches = 50;
  options.leaves_nccl = trial.path != trial.last_path;
  const auto traces = run_workers(world, trial.ranks, options);
  expect_agreement(traces, options.rounds);
  for (const WorkerTrace& trace : traces) {
    CHECK(trace.path == trial.path);
    CHECK(trace.last_path == trial.last_path);
    CHECK(trace.masks.ok() == (trace.last_path.find("nccl") != std::string::npos));
  }
  CHECK(traces[0].switches >= options.least_switches);
  CHECK(world.verify().ok());
  MESSAGE(trial.name << ", " << trial.ranks << " ranks: " << traces[0].rounds.size() << " rounds, "
                     << traces[0].switches << " switches; " << traces[0].masks.text());
}

TEST_SUITE("runtime.masks over nccl") {
  TEST_CASE("all ranks have the same plan in every round, whether broadcasts are quick or slow") {
    for (const Trial& trial : {
             Trial{"quick", 2, 10'000, 0, "", "", "mailbox+nccl", "mailbox+nccl"},
             Trial{"quick", 4, 10'000, 0, "", "", "mailbox+nccl", "mailbox+nccl"},
             Trial{"slow", 2, 10'000, 0, "rank=1 every=3 slow_us=2000; rank=0 settle=5", "",
                   "mailbox+nccl", "mailbox+nccl"},
             Trial{"slow", 4, 10'000, 2, "rank=3 every=2 slow_us=1000; rank=2 settle=9", "",
                   "mailbox+mpi+nccl", "mailbox+mpi+nccl"},
             Trial{"slow", 3, 3'000, 1, "rank=0 every=5 slow_us=3000", "", "mpi+nccl", "mpi+nccl"},
         }) {
      run(trial);
    }
  }

  TEST_CASE("broadcasts that are lost or fail end NCCL on all ranks, and training goes on") {
    const char* quick = "control.nccl_seconds = 1";
    for (const Trial& trial : {
             Trial{"lost", 2, 10'000, 0, "rank=1 from=20 lost", quick, "mailbox+nccl", "mailbox"},
             Trial{"lost", 4, 10'000, 2, "rank=2 from=9 lost", quick, "mailbox+mpi+nccl",
                   "mailbox+mpi"},
             Trial{"failing", 2, 10'000, 0, "rank=0 op=30 error=6", "", "mailbox+nccl", "mailbox"},
             Trial{"failing", 4, 10'000, 0, "rank=3 op=12 error=2", "", "mailbox+nccl", "mailbox"},
             Trial{"failing", 3, 3'000, 1, "rank=1 op=0 error=3", "", "mpi+nccl", "mpi"},
         }) {
      run(trial);
    }
  }

  TEST_CASE("where NCCL cannot start, masks go without it from the first step on") {
    const char* quick = "control.nccl_seconds = 0.3";
    for (const Trial& trial : {
             Trial{"refused", 2, 2'000, 0, "rank=1 init=fail", "", "mailbox", "mailbox"},
             Trial{"refused later", 4, 2'000, 2, "rank=0 init=error", "", "mailbox+mpi",
                   "mailbox+mpi"},
             Trial{"stuck", 2, 2'000, 0, "rank=0 init=hang", quick, "mailbox", "mailbox"},
             Trial{"too old", 2, 2'000, 0, "version=21500", "", "mailbox", "mailbox"},
         }) {
      run(trial);
    }
  }

  TEST_CASE("a rank that comes late is waited for, and its masks arrive") {
    const LoopbackWorld world(2);
    WorkerOptions options = workers(500, 7);
    options.late_rank = 1;
    options.least_switches = 10;
    options.make_lane = [] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      return host_lane();
    };
    const auto traces = run_workers(world, 2, options);
    expect_agreement(traces, options.rounds);
    CHECK(traces[0].last_path == "mailbox+nccl");
    CHECK(traces[0].switches >= options.least_switches);
  }

  TEST_CASE("control.masks says whether NCCL is asked at all, and whether it may be missing") {
    struct Case {
      const char* settings;
      bool has_device;
      const char* path;
      const char* trouble;
    };
    for (const Case& it : {
             Case{"control.masks = mpi", true, "mailbox", ""},
             Case{"control.masks = auto", false, "mailbox", ""},
             Case{"control.masks = nccl", true, "mailbox+nccl", ""},
             Case{"control.masks = nccl", false, "",
                  "unavailable: control.masks=nccl: masks over NCCL: expected several ranks with a "
                  "device each, found 0 of 2"},
         }) {
      CAPTURE(it.settings);
      const LoopbackWorld world(2);
      WorkerOptions options = workers(50, 3);
      options.settings = it.settings;
      if (!it.has_device) options.make_lane = {};
      for (const WorkerTrace& trace : run_workers(world, 2, options)) {
        CHECK(trace.path == it.path);
        CHECK(trace.trouble == it.trouble);
      }
    }
  }

  TEST_CASE("a device that cannot be had on one rank is the reason on all") {
    const LoopbackWorld world(3);
    REQUIRE(use_host_streams(COX_FAKE_NCCL_LIBRARY) == "");
    const auto results = transport::on_every_rank(world, 3, [&](transport::Communicator& c) {
      MaskBroadcast::Setup setup;
      setup.library = COX_FAKE_NCCL_LIBRARY;
      setup.wait = transport::patient();
      setup.make_lane = [&]() -> Result<std::unique_ptr<transport::DeviceLane>> {
        if (c.rank().value() == 2) return resource_exhausted("no memory on the device");
        return host_lane();
      };
      const auto made = MaskBroadcast::create(c, setup);
      return made.ok() ? std::string("made") : made.status().text();
    });
    CHECK(results == std::vector<std::string>(3, "unavailable: rank 2: no memory on the device"));
  }

  TEST_CASE("a parcel arrives in host memory and on the device, up to eight frames at once") {
    const LoopbackWorld world(2);
    REQUIRE(use_host_streams(COX_FAKE_NCCL_LIBRARY) == "");
    const auto results = transport::on_every_rank(world, 2, [&](transport::Communicator& c) {
      MaskBroadcast::Setup setup;
      setup.library = COX_FAKE_NCCL_LIBRARY;
      setup.wait = transport::patient();
      setup.make_lane = host_lane;
      auto made = MaskBroadcast::create(c, setup);
      if (!made.ok()) return made.status().text();
      MaskBroadcast& masks = **made;
      for (std::size_t turn = 0; turn < 5; ++turn) {
        std::vector<std::vector<std::byte>> sent;
        for (std::size_t f = 0; f < 1 + turn * 7 / 4; ++f) {
          sent.emplace_back(33 + 10 * f + turn, static_cast<std::byte>(f + turn));
        }
        std::vector<std::span<const std::byte>> frames(sent.begin(), sent.end());
        masks.start(c.rank() == kRoot ? MaskBroadcast::Frames(frames) : MaskBroadcast::Frames());
        if (masks.lane() != MaskLane::busy) return std::string("not busy");
        transport::Waiter waiter(transport::patient());
        while (masks.poll() != MaskBroadcast::Arrival::frames) {
          if (!masks.status().ok()) return masks.status().text();
          if (Status s = waiter.pause(); !s.ok()) return s.text();
        }
        if (masks.frames().size() != sent.size()) return std::string("other frames");
        for (std::size_t f = 0; f < sent.size(); ++f) {
          const auto& frame = masks.frames()[f];
          if (!std::ranges::equal(frame, sent[f])) return concat("frame ", f);
        }
        if (masks.lane() != MaskLane::free) return std::string("not free");
      }
      return std::string();
    });
    CHECK(results == std::vector<std::string>(2));
  }
}

}  // namespace
}  // namespace cox::test
