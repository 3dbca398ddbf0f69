// Prints digests of the decisions in simulated jobs, one line a job. Two builds with equal
// decisions, reasons and memory print equal lines:
//
//   diff <(old/bin/decisions) <(new/bin/decisions)
//
// The jobs: every kind of straggler among few ranks, with lost or damaged reports and every policy
// on; some jobs of hundreds of ranks, and one of 16,384.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/hash.h"
#include "coordinator/core/share_units.h"
#include "coordinator/decide/decide.h"
#include "coordinator/policies/registry.h"
#include "coordinator/testing/random.h"
#include "coordinator/testing/straggler_scenario.h"
#include "coordinator/wire/control_codec.h"

namespace {

using namespace cox;
using testing::Random;

constexpr std::size_t kBlocks = 16;

Config every_policy_on(std::uint64_t seed) {
  constexpr const char* kBudgets[] = {"3GiB", "2560MiB", "balanced", "0.9", "conservative"};
  Config config;
  const std::string text =
      std::string("shares.mode = on\naccumulation.mode = on\nprecision.format = auto\n") +
      "memory.budget = " + kBudgets[seed % std::size(kBudgets)] + "\n";
  if (!apply_text(config, text, "decisions").ok()) std::abort();
  return config;
}

// One plan for every quarter of the blocks kept: 4 GiB with all blocks kept, 2 with none.
MemoryModel memory_model() {
  MemoryModel model;
  const std::int64_t each = (std::int64_t{2} << 30) / static_cast<std::int64_t>(kBlocks);
  for (std::size_t kept = 0; kept <= kBlocks; kept += kBlocks / 4) {
    std::vector<MemoryAction> actions(kBlocks, MemoryAction::recompute);
    std::fill_n(actions.rbegin(), kept, MemoryAction::keep);
    const auto blocks = static_cast<std::int64_t>(kept);
    model.front.push_back({(std::int64_t{2} << 30) + blocks * each,
                           500 * (static_cast<std::int64_t>(kBlocks) - blocks), actions});
  }
  model.base_bytes = std::int64_t{1} << 30;
  model.step_us = 110'000;
  model.kept_bytes.assign(kBlocks, each);
  model.samples = 8;
  return model;
}

JobFacts with_everything(JobFacts job, std::uint64_t seed) {
  job.capabilities = {PrecisionSet{0xF}, kEveryAction, true, true, true};
  job.memory.models = {memory_model()};
  job.precision.blocks.assign(job.blocks.size(), {{400, 260, 270, 180}});
  if (seed % 7 == 3) job.micro_batch = 2;
  if (seed % 3 == 1) job.memory.limit_bytes.assign(job.ranks(), std::int64_t{4} << 30);
  return job;
}

std::vector<BlockEvidence> evidence(Random& random, std::size_t ranks) {
  BlockEvidence calm;
  calm.sampled = 1 << 20;
  calm.underflow = 16;
  calm.activation = {8, RankId(0)};
  calm.gradient = {0.01F, RankId(0)};
  calm.noise_sum = 0.4F * static_cast<float>(ranks);
  calm.noise_count = static_cast<std::uint32_t>(ranks);
  std::vector<BlockEvidence> all(kBlocks, with_own_ratios(calm, RankId(0)));
  if (random.chance(0.02)) all[random.below(kBlocks)].overflow_forward = 3;
  return all;
}

// Adds an occasional fragment beside a report.
void add_fragment(Random& random, RankSignal& report) {
  if (random.chance(0.02)) {
    HostEvidence host;
    std::memcpy(host.host.data(), "node", 4);
    host.steal_ratio = static_cast<float>(0.1 * random.uniform());
    report.fragment = make_fragment(host);
  } else if (random.chance(0.001)) {
    BlockFailure failure;
    failure.block = BlockId(static_cast<std::uint16_t>(random.below(kBlocks)));
    failure.blocks = kBlocks;
    report.fragment = make_fragment(failure);
  } else if (random.chance(0.001)) {
    PrecisionRequest request;
    request.block = static_cast<std::uint16_t>(random.below(kBlocks));
    request.format = Precision::bf16;
    request.rounds = 20;
    report.fragment = make_fragment(request);
  }
}

// Sets the samples of the ranks' shares and the memory of their plans, with occasional excess.
void follow(Random& random, const JobFacts& job, const Plan& plan, double pace,
            std::vector<RankSignal>& reports) {
  const std::uint64_t batch = plan.step_samples > 0 ? plan.step_samples : job.global_batch;
  const auto samples = units_of_shares(batch, plan.shares, job.ranks());
  const MemoryModel& model = job.memory.models[0];
  for (RankSignal& report : reports) {
    if (!check(report).ok() || report.has(SignalFlag::finished)) continue;
    const auto rank = static_cast<std::size_t>(report.rank.value());
    const double slower = 1 + pace * static_cast<double>(rank * 7919 % 97) / 192;
    const double more = slower * static_cast<double>(samples[rank]) / 8;
    if (report.samples == 8) {
      report.samples = static_cast<std::uint32_t>(samples[rank]);
      for (const Phase phase : {Phase::data, Phase::forward, Phase::backward}) {
        report.phase_seconds[static_cast<std::size_t>(phase)] *= static_cast<float>(more);
      }
    }
    const auto cost = cost_of(model, plan.profiles[profile_of(plan, report.rank).value()]);
    const double noise = random.chance(0.01) ? 1.1 : 1 - 0.02 * random.uniform();
    const std::int64_t peak = peak_with(model, cost ? cost->peak_bytes : 0, samples[rank]);
    report.memory_peak_bytes = static_cast<std::uint64_t>(noise * static_cast<double>(peak));
    if (pace > 0) report.memory_limit_bytes = std::uint64_t{5} << 30;
    report.memory_used_bytes = report.memory_peak_bytes / 2;
    if (job.ranks() % 2 == 0) report.tokens = std::uint64_t{report.samples} * 100;
    if (random.chance(0.0005)) report.set(SignalFlag::out_of_memory);
    if (random.chance(0.001)) report.loss_scale = 1024;
    report.plan_held = report.plan_applied = plan.id.number;
    add_fragment(random, report);
    seal(report);
  }
}

class Digest {
 public:
  void add(const Spread& spread) {
    for (const double value : {spread.min, spread.median, spread.p95, spread.max})
      add_double(value);
    hash_.add(static_cast<std::uint64_t>(spread.rank_of_max.value()));
    hash_.add(static_cast<std::uint64_t>(spread.count));
  }
  void add(const StepSummary& summary) {
    for (const Spread& phase : summary.phases) add(phase);
    add(summary.own_seconds);
    add(summary.wall_seconds);
    add(summary.memory_used_ratio);
    for (const WorstRank& worst : summary.worst) {
      hash_.add(static_cast<std::uint64_t>(worst.rank.value()));
      hash_.add(static_cast<std::uint64_t>(worst.phase));
      add_double(worst.own_seconds);
      add_double(worst.slowdown_ratio);
    }
    add_double(summary.loss);
    add_double(summary.gradient_norm);
  }
  void add(std::string_view bytes) {
    hash_.add(std::uint64_t{crc32(std::as_bytes(std::span(bytes)))});
  }
  std::uint64_t value() const { return hash_.value(); }

 private:
  void add_double(double value) { hash_.add(std::bit_cast<std::uint64_t>(value)); }

  Fnv1a64 hash_;
};

struct Played {
  std::uint64_t digest = 0;
  int plans = 0;
  std::size_t reasons = 0;
};

Played play(testing::Scenario scenario, std::uint64_t seed, std::uint64_t rounds) {
  const PolicySet policies = default_policies();
  const Config config = every_policy_on(seed);
  scenario.blocks = kBlocks;
  testing::SimulatedJob job(scenario, {}, {});
  const JobFacts facts = with_everything(job.job(), seed);
  Random random(seed);
  Digest digest;
  Played played;
  Begun begun = begin_job(facts, config, policies, initial_state(facts));
  ControlState state = std::move(begun.state);
  Plan active = state.plan;
  std::uint64_t applies_in = 0;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    if (i == applies_in) active = state.plan;
    auto reports = job.reports();
    follow(random, facts, active, seed % 2 == 0 ? 0.3 : 0, reports);
    const StepSignals signals = collect(job.now(), facts.incarnation, facts.world_size, reports,
                                        evidence(random, facts.ranks()), job.clock());
    Decided decided = decide(facts, config, policies, std::move(state), signals);
    state = std::move(decided.state);
    digest.add(decided.decision.summary);
    digest.add(wire::serialize(StepSignals{}, decided.decision));
    digest.add(wire::serialize(state));
    played.plans += decided.decision.plan ? 1 : 0;
    played.reasons += decided.decision.reasons.size();
    if (decided.decision.plan) applies_in = i + 3;
    job.skip();
  }
  played.digest = digest.value();
  return played;
}

void print(const char* what, std::uint64_t seed, const testing::Scenario& scenario,
           std::uint64_t rounds) {
  const Played played = play(scenario, seed, rounds);
  std::printf("%s %llu: %d ranks, %d plans, %zu reasons, %016llx\n", what,
              static_cast<unsigned long long>(seed), scenario.ranks, played.plans, played.reasons,
              static_cast<unsigned long long>(played.digest));
  std::fflush(stdout);
}

void add_faults(std::uint64_t seed, testing::Scenario& scenario) {
  scenario.missing = seed % 4 == 0 ? 0.02 : 0;
  scenario.duplicate = seed % 5 == 0 ? 0.02 : 0;
  scenario.stale = seed % 5 == 1 ? 0.01 : 0;
  scenario.damaged = seed % 5 == 2 ? 0.01 : 0;
  scenario.nonfinite = seed % 6 == 0 ? 0.001 : 0;
  if (seed % 11 == 0) scenario.finish_from = 150;
  if (seed % 13 == 0) scenario.watching = true;
}

}  // namespace

int main() {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    testing::StragglerScenario made = testing::straggler_scenario(seed);
    add_faults(seed, made.job);
    print(std::string(to_string(made.kind)).c_str(), seed, made.job,
          std::min<std::uint64_t>(made.rounds, 200));
  }
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    testing::Scenario scenario;
    scenario.seed = seed;
    scenario.ranks = static_cast<std::int32_t>(300 * seed + seed % 3);
    scenario.waiting = static_cast<testing::WaitingKind>(seed % 3);
    scenario.ranks_per_node = 8;
    add_faults(seed, scenario);
    for (std::int32_t r = 0; r < 20; ++r) {
      scenario.slowdowns.push_back({RankId(r * 13), std::nullopt, 0.2, 30});
    }
    print("many", seed, scenario, 130);
  }
  testing::Scenario largest;
  largest.ranks = 16384;
  for (std::uint64_t seed = 1; seed <= 2; ++seed) print("largest", seed, largest, 70);
  return 0;
}
