// C4: what a decision costs for 16,384 ranks and 256 blocks, and how large the masks are.
#include <malloc.h>
#include <time.h>

#include <chrono>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/planner/share_assignment.h"
#include "coordinator/policies/registry.h"
#include "coordinator/runtime/node_leader.h"
#include "coordinator/testing/random.h"
#include "coordinator/testing/simulated_job.h"
#include "coordinator/wire/mask.h"
#include "tests/bench/line.h"

namespace {

using namespace cox;
using bench::Line;
using Clock = std::chrono::steady_clock;

constexpr std::int32_t kRanks = 16384;
constexpr std::size_t kBlocks = 256;
constexpr std::size_t kProfiles = 4;

// CPU time of this thread: the goal speaks of one core, and the machine may be busy.
double cpu_milliseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Job {
  const char* what = "";
  bool has_stragglers = false;
  bool has_shares = false;  // ranks of different speeds, and policy `shares` on
};

testing::Scenario scenario(const Job& job) {
  testing::Scenario scenario;
  scenario.ranks = kRanks;
  scenario.blocks = kBlocks;
  if (!job.has_stragglers) return scenario;
  for (std::int32_t i = 0; i < 16; ++i) {
    scenario.slowdowns.push_back({RankId(i * 1000), std::nullopt, 0.2, 20});
  }
  return scenario;
}

// Some ranks take up to half as long again for a sample, and each takes the samples of its share.
void share_out(std::vector<RankSignal>& reports, const JobFacts& job, const Plan& plan) {
  const auto samples = units_of_shares(job.global_batch, plan.shares, kRanks);
  const double even = static_cast<double>(job.global_batch) / kRanks;
  for (RankSignal& report : reports) {
    const auto rank = static_cast<std::size_t>(report.rank.value());
    const double slower = 1 + static_cast<double>(rank * 7919 % 97) / 192;
    report.samples = static_cast<std::uint32_t>(samples[rank]);
    report.weight = report.samples;
    for (const Phase phase : {Phase::data, Phase::forward, Phase::backward}) {
      float& seconds = report.phase_seconds[static_cast<std::size_t>(phase)];
      seconds *= static_cast<float>(slower * static_cast<double>(samples[rank]) / even);
    }
    seal(report);
  }
}

struct Times {
  std::vector<double> decide_ms;
  std::vector<double> sort_ms;
  std::vector<double> wall_ms;
};

// One after another through decide() with the default policies; the first rounds fill the
// detector's and the history's memory and are not counted.
Times run(const Job& what, int rounds) {
  const PolicySet policies = default_policies();
  Config config;
  Capabilities capabilities;
  if (what.has_shares) config.shares.mode = PolicyMode::on;
  capabilities.shares = what.has_shares;
  testing::SimulatedJob job(scenario(what), config, policies, capabilities);
  ControlState state = initial_state(job.job());
  Times times;
  const int warmup = 40;
  for (int i = 0; i < warmup + rounds; ++i) {
    auto reports = job.reports();
    if (what.has_shares) share_out(reports, job.job(), job.active());
    const double began = cpu_milliseconds();
    const StepSignals signals = collect(job.now(), job.job().incarnation, kRanks, reports,
                                        std::vector<BlockEvidence>(kBlocks), job.clock());
    const double sorted = cpu_milliseconds() - began;
    const double start = cpu_milliseconds();
    const auto wall = Clock::now();
    Decided decided = decide(job.job(), config, policies, std::move(state), signals);
    const double spent = cpu_milliseconds() - start;
    const double passed = milliseconds_since(wall);
    state = std::move(decided.state);
    job.decide_on(signals);
    if (i < warmup) continue;
    times.decide_ms.push_back(spent);
    times.sort_ms.push_back(sorted);
    times.wall_ms.push_back(passed);
  }
  return times;
}

void decide(const Job& job, int rounds) {
  const Times times = run(job, rounds);
  const auto told = [&](double value, const char* figure, std::optional<double> limit = {}) {
    Line line("C4", value, "ms");
    if (limit) line.limit(*limit);
    line.with("figure", figure).with("what", job.what).with("ranks", kRanks);
    line.with("blocks", kBlocks).with("rounds", rounds).print();
  };
  // The goal speaks of the default policies; what another one adds is a figure beside it.
  const auto limit = job.has_shares ? std::nullopt : std::optional(5.0);
  told(bench::quantile(times.decide_ms, 0.5), "decide, CPU time, p50", limit);
  told(bench::quantile(times.decide_ms, 0.99), "decide, CPU time, p99");
  told(bench::quantile(times.wall_ms, 0.5), "decide, wall time, p50");
  told(bench::quantile(times.sort_ms, 0.5), "before it: check and sort the signals, CPU time, p50");
}

JobFacts facts(std::int32_t ranks) {
  JobFacts job;
  job.incarnation = 1;
  job.world_size = ranks;
  for (std::size_t b = 0; b < kBlocks; ++b) job.blocks.push_back("block " + std::to_string(b));
  job.capabilities.precisions = job.capabilities.actions = 0xF;
  return job;
}

Plan varied_plan(const JobFacts& job, std::size_t profiles, std::uint64_t seed) {
  testing::Random random(seed);
  const auto quarter = [&] { return static_cast<std::uint8_t>(random.below(4)); };
  Plan plan = initial_plan(job);
  plan.id = {job.incarnation, 1};
  for (Precision& p : plan.precision) p = static_cast<Precision>(quarter());
  plan.profiles.assign(profiles, std::vector<MemoryAction>(kBlocks));
  for (auto& actions : plan.profiles) {
    for (MemoryAction& a : actions) a = static_cast<MemoryAction>(quarter());
  }
  return plan;
}

std::size_t bytes_of(const std::vector<wire::Frame>& frames) {
  std::size_t bytes = 0;
  for (const wire::Frame& frame : frames) bytes += frame.size;
  return bytes;
}

// A full plan in which every block has a random precision and action.
int mask_sizes() {
  const JobFacts job = facts(8);
  const auto frames = wire::encode_plan(varied_plan(job, 1, 7), nullptr);
  if (!frames.ok() || frames->size() != 1) return 1;
  const double body = static_cast<double>(frames->front().size - wire::kHeadHeaderBytes);
  const auto line = [](double bytes, double limit, const char* figure) {
    Line("C4", bytes, "bytes").limit(limit).with("figure", figure).with("blocks", kBlocks).print();
  };
  line(body, 128, "mask body, random precision and action in every block");
  line(wire::kHeadHeaderBytes, 32, "mask header");
  line(sizeof(runtime::RoundWord), 8, "a round without a new plan");
  return 0;
}

// Every rank its own entry in the plan, four profiles of actions shared by all of them.
int shared_profiles(const char* what, bool is_scattered) {
  const JobFacts job = facts(kRanks);
  Plan plan = varied_plan(job, kProfiles, 11);
  testing::Random random(3);
  for (std::int32_t r = 0; r < kRanks; ++r) {
    const auto drawn = static_cast<std::uint16_t>(random.below(kProfiles));
    const auto in_order =
        static_cast<std::uint16_t>(static_cast<std::size_t>(r) * kProfiles / kRanks);
    plan.rank_profile.push_back(ProfileId(is_scattered ? drawn : in_order));
  }
  const auto start = Clock::now();
  const auto frames = wire::encode_plan(plan, nullptr);
  const double encode_ms = milliseconds_since(start);
  if (!frames.ok()) return 1;
  wire::PlanAssembler assembler(job, initial_plan(job));
  const auto before = Clock::now();
  for (const wire::Frame& frame : *frames) {
    if (!assembler.feed(frame.used()).ok()) return 1;
  }
  const double decode_ms = milliseconds_since(before);
  if (assembler.held().rank_profile != plan.rank_profile) return 1;
  const double one_by_one = static_cast<double>(kRanks) * (kBlocks / 2);
  const double bytes = static_cast<double>(bytes_of(*frames));
  Line("C4", bytes / one_by_one, "ratio")
      .limit(0.01)
      .with("figure", "bytes of all ranks' plans against 128 bytes for each of them")
      .with("what", what)
      .with("bytes", bytes)
      .with("ranks", kRanks)
      .with("profiles", kProfiles)
      .with("encode_ms", encode_ms)
      .with("decode_ms", decode_ms)
      .print();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_quick = bench::effort_of(argc, argv) == bench::Effort::quick;
  const int rounds = is_quick ? 30 : 300;
  // What frees memory in every round would otherwise hand it back to the system, and pay for each
  // page again in the next: by chance, depending on what else the process has allocated.
  mallopt(M_MMAP_THRESHOLD, 1 << 25);
  mallopt(M_TRIM_THRESHOLD, 1 << 28);
  decide({.what = "a quiet job"}, rounds);
  decide({.what = "16 ranks 20 % slower", .has_stragglers = true}, rounds);
  decide({.what = "ranks of different speeds, shares on", .has_shares = true}, rounds);
  const int failed = mask_sizes() + shared_profiles("runs of neighbouring ranks", false) +
                     shared_profiles("profiles drawn at random", true);
  if (failed > 0) std::fprintf(stderr, "C4: a plan did not survive its journey\n");
  return failed;
}
