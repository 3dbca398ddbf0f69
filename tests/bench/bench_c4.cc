// C4: the cost of a decision for 16,384 ranks and 256 blocks, and the size of masks.
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/planner/share_assignment.h"
#include "coordinator/policies/registry.h"
#include "coordinator/testing/loopback.h"
#include "coordinator/testing/random.h"
#include "coordinator/testing/simulated_job.h"
#include "coordinator/wire/mask.h"
#include "tests/bench/line.h"
#include "tests/bench/sent_bytes.h"
#include "tests/runtime/workers.h"

namespace {

using namespace cox;
using bench::Line;
using Clock = std::chrono::steady_clock;

constexpr std::int32_t kRanks = 16384;
constexpr std::size_t kBlocks = 256;
constexpr std::size_t kProfiles = 4;

// Measures this thread's CPU time: the goal is for one core, and the machine may be busy.
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
  bool has_speeds = false;  // ranks differ in speed
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

// Turns on every policy, each with something to decide.
Config every_policy_on() {
  Config config;
  const Status applied = apply_text(config,
                                    "shares.mode = on\n"
                                    "accumulation.mode = on\n"
                                    "precision.format = auto\n"
                                    "memory.budget = 3GiB\n",
                                    "bench_c4");
  if (!applied.ok()) std::abort();
  return config;
}

// One plan for every eighth of the blocks kept: 4 GiB with all blocks kept, 2 with none.
MemoryModel memory_model() {
  MemoryModel model;
  for (std::size_t kept = 0; kept <= kBlocks; kept += kBlocks / 8) {
    std::vector<MemoryAction> actions(kBlocks, MemoryAction::recompute);
    std::fill_n(actions.rbegin(), kept, MemoryAction::keep);
    const auto blocks = static_cast<std::int64_t>(kept);
    model.front.push_back({(std::int64_t{2} << 30) + (blocks << 23),
                           100 * (static_cast<std::int64_t>(kBlocks) - blocks), actions});
  }
  model.base_bytes = std::int64_t{1} << 30;
  model.step_us = 110'000;
  model.kept_bytes.assign(kBlocks, 1 << 23);
  model.samples = 8;
  return model;
}

JobFacts with_everything(JobFacts job) {
  job.capabilities = {PrecisionSet{0xF}, kEveryAction, true, true, true};
  job.memory.models = {memory_model()};
  job.precision.blocks.assign(kBlocks, {{400, 260, 270, 180}});
  return job;
}

// Evidence about the ranks' blocks in a step without trouble.
std::vector<BlockEvidence> calm_evidence() {
  BlockEvidence seen;
  seen.sampled = 1 << 20;
  seen.underflow = 16;
  seen.activation = {8, RankId(5)};
  seen.gradient = {0.01F, RankId(7)};
  seen.noise_sum = 0.4F * kRanks;
  seen.noise_count = kRanks;
  return std::vector<BlockEvidence>(kBlocks, with_own_ratios(seen, RankId(5)));
}

// Writes the reports of ranks under `plan`. Each rank takes the samples of its share; with
// `has_speeds`, a sample takes up to half as long again.
void follow(std::vector<RankSignal>& reports, const Job& what, const JobFacts& job,
            const Plan& plan) {
  const std::uint64_t batch = plan.step_samples > 0 ? plan.step_samples : job.global_batch;
  const auto samples = units_of_shares(batch, plan.shares, kRanks);
  const double even = static_cast<double>(job.global_batch) / kRanks;
  const MemoryModel& model = job.memory.models[0];
  std::vector<std::int64_t> peaks;  // [profile]
  for (const ActionProfile& actions : plan.profiles) {
    const auto cost = cost_of(model, actions);
    peaks.push_back(cost ? cost->peak_bytes : 0);
  }
  for (RankSignal& report : reports) {
    const auto rank = static_cast<std::size_t>(report.rank.value());
    const double slower = what.has_speeds ? 1 + static_cast<double>(rank * 7919 % 97) / 192 : 1;
    report.samples = static_cast<std::uint32_t>(samples[rank]);
    report.weight = report.samples;
    for (const Phase phase : {Phase::data, Phase::forward, Phase::backward}) {
      float& seconds = report.phase_seconds[static_cast<std::size_t>(phase)];
      seconds *= static_cast<float>(slower * static_cast<double>(samples[rank]) / even);
    }
    report.memory_peak_bytes = static_cast<std::uint64_t>(
        peak_with(model, peaks[profile_of(plan, report.rank).value()], samples[rank]));
    report.plan_held = report.plan_applied = plan.id.number;
    seal(report);
  }
}

struct Times {
  std::vector<double> decide_ms;
  std::vector<double> sort_ms;
  std::vector<double> wall_ms;
  int plans = 0;
};

// Runs rounds through decide() with all default policies on. The first rounds fill the estimates
// and the history and are not counted. Plans apply two rounds later.
Times run(const Job& what, int rounds) {
  const PolicySet policies = default_policies();
  const Config config = every_policy_on();
  testing::SimulatedJob job(scenario(what), {}, {});
  const JobFacts facts = with_everything(job.job());
  ControlState state = begin_job(facts, config, policies, initial_state(facts)).state;
  Plan active = state.plan;
  const std::vector<BlockEvidence> evidence = calm_evidence();
  Times times;
  const int warmup = 40;
  int applies_in = 0;
  for (int i = 0; i < warmup + rounds; ++i) {
    if (i == applies_in) active = state.plan;
    auto reports = job.reports();
    follow(reports, what, facts, active);
    const double began = cpu_milliseconds();
    const StepSignals signals =
        collect(job.now(), facts.incarnation, kRanks, reports, evidence, job.clock());
    const double sorted = cpu_milliseconds() - began;
    const double start = cpu_milliseconds();
    const auto wall = Clock::now();
    Decided decided = decide(facts, config, policies, std::move(state), signals);
    const double spent = cpu_milliseconds() - start;
    const double passed = milliseconds_since(wall);
    state = std::move(decided.state);
    if (decided.decision.plan) applies_in = i + 3;
    job.decide_on(signals);  // without policies; advances the clock
    if (i < warmup) continue;
    times.plans += decided.decision.plan ? 1 : 0;
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
    line.with("blocks", kBlocks).with("rounds", rounds).with("plans", times.plans).print();
  };
  told(bench::quantile(times.decide_ms, 0.5), "decide, CPU time, p50", 4.0);
  told(bench::quantile(times.decide_ms, 0.99), "decide, CPU time, p99");
  told(bench::quantile(times.wall_ms, 0.5), "decide, wall time, p50");
  told(bench::quantile(times.sort_ms, 0.5), "before it: check and sort the signals, CPU time, p50");
}

JobFacts facts(std::int32_t ranks) {
  JobFacts job;
  job.incarnation = 1;
  job.world_size = ranks;
  for (std::size_t b = 0; b < kBlocks; ++b) job.blocks.push_back("block " + std::to_string(b));
  job.capabilities.precisions = 0xF;
  job.capabilities.actions = kEveryAction;
  return job;
}

// Picks among the first `kinds` actions.
Plan varied_plan(const JobFacts& job, std::size_t profiles, std::uint64_t seed,
                 std::size_t kinds = kMemoryKinds) {
  testing::Random random(seed);
  Plan plan = initial_plan(job);
  plan.id = {job.incarnation, 1};
  for (Precision& p : plan.precision) p = static_cast<Precision>(random.below(4));
  plan.profiles.assign(profiles, std::vector<MemoryAction>(kBlocks));
  for (auto& actions : plan.profiles) {
    for (MemoryAction& a : actions) a = static_cast<MemoryAction>(random.below(kinds));
  }
  return plan;
}

std::size_t bytes_of(const std::vector<wire::Frame>& frames) {
  std::size_t bytes = 0;
  for (const wire::Frame& frame : frames) bytes += frame.size;
  return bytes;
}

// Measures a full plan in which every block has a random precision and action.
int mask_sizes() {
  const JobFacts job = facts(8);
  const auto body_of = [&job](std::size_t kinds) {
    const auto frames = wire::encode_plan(varied_plan(job, 1, 7, kinds), nullptr);
    if (!frames.ok()) return -1.0;
    std::size_t headers = wire::kHeadHeaderBytes;
    headers += (frames->size() - 1) * wire::kContinuationHeaderBytes;
    return static_cast<double>(bytes_of(*frames) - headers);
  };
  const double body = body_of(kMemoryKinds);
  const double leveled = body_of(kMemoryActionNames.size());
  if (body < 0 || leveled < 0) return 1;
  const auto line = [](double bytes, double limit, const char* figure) {
    Line("C4", bytes, "bytes").limit(limit).with("figure", figure).with("blocks", kBlocks).print();
  };
  line(body, 128, "mask body, random precision and action in every block");
  line(leveled, 256, "mask body, random precision, action and level of recompute in every block");
  line(wire::kHeadHeaderBytes, 32, "mask header");
  return 0;
}

// Measures what the leaders send in control rounds of four ranks on two nodes without a new plan.
int unchanged_rounds() {
  constexpr std::int32_t kFew = 4;
  bench::SentBytes sent;
  test::WorkerOptions options;
  options.rounds = 300;
  options.blocks = kBlocks;
  std::vector<std::string> trouble(kFew);
  {
    testing::LoopbackOptions loopback;
    loopback.ranks_per_node = 2;
    const testing::LoopbackWorld world(kFew, loopback);
    std::vector<std::jthread> ranks;
    for (std::int32_t r = 0; r < kFew; ++r) {
      ranks.emplace_back([&, r] {
        const auto communicator = bench::counted(world.communicator(RankId(r)), sent);
        trouble[static_cast<std::size_t>(r)] = test::train(*communicator, options).trouble;
      });
    }
  }
  const auto line = [&](bench::Sent kind, const char* figure, std::optional<double> limit) {
    const std::size_t bytes = sent.most_common(kind);
    Line made("C4", static_cast<double>(bytes), "bytes");
    if (limit) made.limit(*limit);
    made.with("figure", figure).with("blocks", kBlocks).with("ranks_of_a_node", 2);
    made.with("times", static_cast<double>(sent.count(kind, bytes))).print();
  };
  line(bench::Sent::broadcast, "a round without a new plan: broadcast to the leaders", 8.0);
  line(bench::Sent::gather, "the same: signals from a leader, 256 bytes a rank", {});
  line(bench::Sent::reduce, "the same: evidence from a leader, 80 bytes a block", {});
  return std::count(trouble.begin(), trouble.end(), "") == kFew ? 0 : 1;
}

// Gives every rank its own entry in the plan, with four shared profiles of actions.
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
  // Keeps freed memory in the process. Otherwise each round may return pages to the system and pay
  // for them again, depending by chance on the process's other allocations.
  mallopt(M_MMAP_THRESHOLD, 1 << 25);
  mallopt(M_TRIM_THRESHOLD, 1 << 28);
  decide({.what = "a quiet job"}, rounds);
  decide({.what = "16 ranks 20 % slower", .has_stragglers = true}, rounds);
  decide({.what = "ranks of different speeds", .has_speeds = true}, rounds);
  const int failed = mask_sizes() + unchanged_rounds() +
                     shared_profiles("runs of neighbouring ranks", false) +
                     shared_profiles("profiles drawn at random", true);
  if (failed > 0) std::fprintf(stderr, "C4: a plan is not what was sent\n");
  return failed;
}
