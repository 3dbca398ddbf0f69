// Formats and loss scale are equal on all ranks in every round, whatever happens to control
// messages: 100000 rounds in total, with policies that follow the ranks' true reports.
#include <memory>
#include <string>
#include <utility>

#include "coordinator/policies/loss_scale/loss_scale.h"
#include "coordinator/policies/precision/precision.h"
#include "coordinator/runtime/journal.h"
#include "coordinator/runtime/replay.h"
#include "coordinator/testing/loopback.h"
#include "tests/runtime/driven_job.h"
#include "tests/runtime/workers.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::test {
namespace {

using testing::FaultKind;
using testing::FaultRule;
using testing::LoopbackOptions;
using testing::LoopbackWorld;

#ifdef __SANITIZE_THREAD__
constexpr std::uint64_t kShorter = 10;
#else
constexpr std::uint64_t kShorter = 1;
#endif

// See agreement_test.cc for the names of the communicators.
testing::FaultScript trouble(std::uint64_t seed) {
  std::vector<FaultRule> rules;
  for (const char* communicator : {"world.2:0.0", "world.2:0.1"}) {
    for (const FaultKind kind :
         {FaultKind::blank, FaultKind::repeat, FaultKind::garbage, FaultKind::delay}) {
      FaultRule rule;
      rule.kind = kind;
      rule.communicator = communicator;
      rule.probability = kind == FaultKind::delay ? 0.2 : 0.03;
      rule.polls = 6;
      rules.push_back(rule);
    }
  }
  return testing::FaultScript(seed, std::move(rules));
}

PolicySet policies() {
  return {std::make_shared<LossScalePolicy>(), std::make_shared<PrecisionPolicy>()};
}

struct Scenario {
  std::string name;
  std::int32_t ranks;
  std::uint64_t rounds;
  ControlPath path;
  std::int32_t ranks_per_node;  // 0 = one node
  bool is_troubled;
  std::int32_t late_rank;
  const char* format;
};

// Counts the formats of published plans.
class FormatSink final : public StepSink {
 public:
  void record(const StepRecord& record) override {
    if (record.decision.plan) {
      for (const Precision p : record.plan.precision) ++seen[static_cast<std::size_t>(p)];
    }
    rounds = record.counters.rounds;
  }
  std::array<std::uint64_t, kPrecisions> seen{};
  std::uint64_t rounds = 0;
};

void run_and_compare(const Scenario& scenario, const std::filesystem::path& journal) {
  CAPTURE(scenario.name);
  LoopbackOptions loopback;
  loopback.ranks_per_node = scenario.ranks_per_node;
  if (scenario.is_troubled) loopback.faults = trouble(7);
  const LoopbackWorld world(scenario.ranks, loopback);
  FormatSink sink;
  WorkerOptions options;
  options.rounds = scenario.rounds / kShorter;
  options.path = scenario.path;
  options.policies = policies();
  options.sink = &sink;
  options.journal = journal;
  options.late_rank = scenario.late_rank;
  options.has_numbers = true;
  options.settings = "precision.format = " + std::string(scenario.format) +
                     "\nprecision.emulate = on\nprecision.patience_rounds = 2\n"
                     "precision.dwell_rounds = 6\nprecision.cooldown_rounds = 6\n"
                     "loss_scale.growth_interval = 50\n";
  std::vector<WorkerTrace> traces(static_cast<std::size_t>(scenario.ranks));
  transport::on_every_rank(world, scenario.ranks, [&](transport::Communicator& c) {
    traces[static_cast<std::size_t>(c.rank().value())] = train(c, options);
    return std::string();
  });
  for (const WorkerTrace& trace : traces) {
    CHECK(trace.trouble == "");
    REQUIRE(trace.rounds.size() == options.rounds);
    CHECK(trace.rounds == traces[0].rounds);
  }
  CHECK(traces[0].switches >= options.rounds / 1000);
  if (std::string(scenario.format) == "auto") {
    CHECK(sink.seen[static_cast<std::size_t>(Precision::bf16)] > 0);
    CHECK(sink.seen[static_cast<std::size_t>(Precision::fp8)] > 0);
  }
  MESSAGE(scenario.name << ", " << scenario.ranks << " ranks: " << options.rounds << " rounds, "
                        << sink.rounds << " control rounds, " << traces[0].switches << " switches");
}

TEST_SUITE("runtime.agreement") {
  TEST_CASE("all ranks compute in the same formats under the same scale in every round") {
    constexpr auto kAuto = ControlPath::automatic;
    constexpr auto kMpi = ControlPath::mpi;
    for (const Scenario& scenario : {
             Scenario{"mailboxes", 2, 40'000, kAuto, 0, false, -1, "auto"},
             Scenario{"mailboxes, fp16", 4, 20'000, kAuto, 0, false, -1, "fp16"},
             Scenario{"troubled messages", 2, 16'000, kMpi, 0, true, -1, "auto"},
             Scenario{"troubled messages", 4, 12'000, kMpi, 0, true, -1, "auto"},
             Scenario{"troubled nodes", 4, 8'000, kAuto, 2, true, -1, "auto"},
             Scenario{"a dead-slow rank", 3, 4'000, kAuto, 0, false, 1, "auto"},
         }) {
      TempFolder folder;
      run_and_compare(scenario, folder / "journal");
      auto reader = runtime::JournalReader::open(folder / "journal");
      REQUIRE_MESSAGE(reader.ok(), reader.status().text());
      const auto report = runtime::replay(*reader, policies(), {});
      REQUIRE_MESSAGE(report.ok(), report.status().text());
      CHECK(report->plans > 0);
      CHECK(report->equal());
    }
  }
}

}  // namespace
}  // namespace cox::test
