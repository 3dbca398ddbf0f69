#include "coordinator/testing/simulated_job.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "coordinator/core/text.h"

namespace cox::testing {
namespace {

JobFacts facts_of(const Scenario& scenario, Capabilities capabilities) {
  JobFacts job;
  job.name = "simulated";
  job.incarnation = 1;
  job.world_size = scenario.ranks;
  for (std::size_t b = 0; b < scenario.blocks; ++b) job.blocks.push_back(concat("h.", b));
  job.global_batch = static_cast<std::uint64_t>(scenario.ranks) * 8;
  job.capabilities = capabilities;
  for (std::int32_t r = 0; r < scenario.ranks && scenario.ranks_per_node > 0; ++r) {
    job.node_of_rank.push_back(NodeId(r / scenario.ranks_per_node));
  }
  return job;
}

double own_work(const PhaseSeconds& phases) {
  double own = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    if (is_own_work(static_cast<Phase>(p))) own += phases[p];
  }
  return own;
}

float& seconds_of(PhaseSeconds& phases, Phase phase) {
  return phases[static_cast<std::size_t>(phase)];
}

void slow_down(PhaseSeconds& phases, double own, const Slowdown& slowdown, double extra_ratio) {
  if (slowdown.phase) {
    seconds_of(phases, *slowdown.phase) += static_cast<float>(own * extra_ratio);
    return;
  }
  for (float& seconds : phases) seconds *= static_cast<float>(1 + extra_ratio);
}

// Only data, forward, backward and compute grow with the samples.
void scale_with_samples(PhaseSeconds& phases, std::uint32_t samples) {
  for (const Phase phase : {Phase::data, Phase::forward, Phase::backward, Phase::compute}) {
    seconds_of(phases, phase) *= static_cast<float>(samples) / 8;
  }
}

}  // namespace

double Slowdown::part_in(std::uint64_t round) const {
  if (round < from || round >= until) return 0;
  const double age = static_cast<double>(round - from);
  const double place = std::fmod(age, period_rounds);
  switch (shape) {
    case SlowShape::step:
      return 1;
    case SlowShape::ramp:
      return std::min(1.0, (age + 1) / period_rounds);
    case SlowShape::on_off:
      return place < on_rounds ? 1 : 0;
    case SlowShape::wave:
      return 0.5 - 0.5 * std::cos(6.283185307179586 * place / period_rounds);
  }
  return 0;
}

SimulatedJob::SimulatedJob(Scenario scenario, Config config, PolicySet policies,
                           Capabilities capabilities)
    : scenario_(std::move(scenario)),
      config_(std::move(config)),
      policies_(std::move(policies)),
      job_(facts_of(scenario_, capabilities)),
      random_(scenario_.seed),
      state_(initial_state(job_)),
      active_(state_.plan),
      bursts_(static_cast<std::size_t>(scenario_.ranks)),
      held_from_(static_cast<std::size_t>(scenario_.ranks), 0) {}

double SimulatedJob::noise() {
  const double normal = random_.normal();
  if (scenario_.noise != NoiseKind::student) {
    const bool pause = scenario_.noise == NoiseKind::pauses && random_.chance(0.01);
    const double extra = pause ? std::log(1.2 + 1.3 * random_.uniform()) : 0;
    return scenario_.step_noise * normal + extra;
  }
  double chi = 0;
  for (int i = 0; i < 3; ++i) chi += std::pow(random_.normal(), 2);
  return scenario_.step_noise * normal / std::sqrt(chi);  // t(3) has variance 3
}

double SimulatedJob::burst_factor(std::size_t rank) {
  if (scenario_.bursts.chance == 0) return 1;
  Burst& burst = bursts_[rank];
  if (round_.value() < burst.until) return burst.factor;
  if (!random_.chance(scenario_.bursts.chance)) return 1;
  const double rounds = scenario_.bursts.least_rounds / std::pow(random_.uniform(), 1 / 1.5);
  burst.until = round_.value() + static_cast<std::uint64_t>(std::min(rounds, 1e6));
  burst.factor = 1.5 + (scenario_.bursts.most_ratio - 1.5) * random_.uniform();
  return burst.factor;
}

// Adds to each rank's communication the wait for the last rank. The rest of a rank's communication
// is the rank's own.
void SimulatedJob::add_waiting(std::vector<RankSignal>& reports) const {
  if (scenario_.waiting == WaitingKind::none) return;
  double last = 0;
  for (const RankSignal& s : reports) last = std::max(last, own_work(s.phase_seconds));
  for (RankSignal& s : reports) {
    const double waiting = last - own_work(s.phase_seconds);
    seconds_of(s.phase_seconds, Phase::communication) += static_cast<float>(waiting);
    s.wall_seconds = last + s.phase_seconds[static_cast<std::size_t>(Phase::communication)];
    if (scenario_.waiting == WaitingKind::hidden) continue;
    s.set(SignalFlag::waiting_measured);
    s.waiting_seconds = static_cast<float>(waiting);
  }
}

RankSignal SimulatedJob::report_of(RankId rank, double common) {
  RankSignal s;
  s.rank = rank;
  s.incarnation = job_.incarnation;
  s.round = round_;
  s.step = StepId(round_.value());
  s.rounds = 1;
  const auto r = static_cast<std::size_t>(rank.value());
  s.samples = scenario_.samples.empty() ? 8 : scenario_.samples[r];
  s.phase_seconds = scenario_.phases;
  if (s.samples != 8) scale_with_samples(s.phase_seconds, s.samples);
  const double own = own_work(s.phase_seconds);
  for (const Slowdown& slowdown : scenario_.slowdowns) {
    const double part = slowdown.rank == rank ? slowdown.part_in(round_.value()) : 0;
    if (part > 0) slow_down(s.phase_seconds, own, slowdown, part * slowdown.extra_ratio);
  }
  if (!scenario_.recompute.empty()) {
    float& backward = seconds_of(s.phase_seconds, Phase::backward);
    s.recompute_seconds = backward * static_cast<float>(scenario_.recompute[r]);
    backward += s.recompute_seconds;
  }
  const double factor = common * std::exp(noise()) * burst_factor(r);
  for (float& seconds : s.phase_seconds) {
    if (seconds == 0) continue;
    seconds *= static_cast<float>(factor * std::exp(scenario_.phase_noise * random_.normal()));
  }
  s.wall_seconds = own_work(s.phase_seconds);
  const bool storm =
      round_.value() >= scenario_.storm_from && round_.value() < scenario_.storm_until;
  const bool lost = storm || random_.chance(scenario_.nonfinite);
  s.loss = lost ? std::numeric_limits<double>::quiet_NaN() : 2 + 0.05 * random_.normal();
  if (lost) s.set(SignalFlag::nonfinite_loss);
  s.weight = s.samples;
  s.gradient_norm = 1;
  const bool upper_half = rank.value() >= (scenario_.ranks + 1) / 2;
  if (upper_half && round_.value() >= scenario_.finish_from) {
    s.set(SignalFlag::finished);
    s.weight = s.samples = 0;
  }
  if (scenario_.watching) s.set(SignalFlag::watching);
  s.plan_held = round_.value() >= held_from_[r] ? state_.plan.id.number : active_.id.number;
  s.plan_applied = active_.id.number;
  return s;
}

void SimulatedJob::add_faults(const RankSignal& signal, std::vector<RankSignal>& arrived) {
  RankSignal sealed = signal;
  if (random_.chance(scenario_.missing)) return;
  if (random_.chance(scenario_.stale)) sealed.round = RoundId(round_.value() - 1);
  seal(sealed);
  arrived.push_back(sealed);
  if (random_.chance(scenario_.duplicate)) arrived.push_back(sealed);
  if (random_.chance(scenario_.damaged)) {
    auto bytes = std::as_writable_bytes(std::span(&arrived.back(), 1));
    bytes[random_.below(bytes.size())] ^= static_cast<std::byte>(1 + random_.below(255));
  }
}

StepSignals SimulatedJob::signals() {
  StepSignals signals;
  signals.round = round_;
  signals.now = clock();
  signals.reports.reserve(held_from_.size());
  const double common = std::exp(scenario_.common_noise * random_.normal());
  for (std::int32_t r = 0; r < scenario_.ranks; ++r) {
    signals.reports.push_back(report_of(RankId(r), common));
  }
  add_waiting(signals.reports);
  return signals;
}

void SimulatedJob::skip() {
  round_ = round_.next();
  clock_seconds_ += own_work(scenario_.phases);
}

std::vector<RankSignal> SimulatedJob::reports() {
  std::vector<RankSignal> arrived;
  arrived.reserve(held_from_.size());
  for (const RankSignal& report : signals().reports) add_faults(report, arrived);
  for (std::size_t i = arrived.size(); i > 1; --i) {
    std::swap(arrived[i - 1], arrived[random_.below(i)]);
  }
  return arrived;
}

// Acts like a step's reduction: the plan held by all ranks is active from the next round on.
void SimulatedJob::agree_on_plan() {
  const std::uint64_t all_hold = *std::ranges::max_element(held_from_);
  const std::uint64_t next = round_.value() + 1;
  const bool allowed = next >= state_.plan.earliest_round.value() && !scenario_.watching;
  if (round_.value() >= all_hold && allowed) active_ = state_.plan;
}

Decision SimulatedJob::decide_on(const StepSignals& signals) {
  agree_on_plan();
  Decided decided = decide(job_, config_, policies_, std::move(state_), signals);
  state_ = std::move(decided.state);
  if (decided.decision.plan) {
    for (std::uint64_t& from : held_from_) {
      from = round_.value() + 1 + random_.below(scenario_.plan_delay_rounds + 1);
    }
  }
  skip();
  return std::move(decided.decision);
}

Decision SimulatedJob::round() {
  const std::vector<RankSignal> arrived = reports();
  return decide_on(collect(round_, job_.incarnation, job_.world_size, arrived, {}, clock()));
}

}  // namespace cox::testing
