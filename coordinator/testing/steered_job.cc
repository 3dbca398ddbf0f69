#include "coordinator/testing/steered_job.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/core/share_units.h"
#include "coordinator/core/step_signals.h"

namespace cox::testing {
namespace {

// Returns evidence that admits every format, so that only time decides.
BlockEvidence good_evidence() {
  BlockEvidence evidence;
  evidence.sampled = 1000;
  evidence.noise_sum = 8;
  evidence.noise_count = 4;
  return evidence;
}

// Returns the ratio of the step time under the plan's formats to that in fp32.
double format_ratio(const JobFacts& job, const Plan& plan) {
  double fp32 = 0;
  double now = 0;
  for (std::size_t b = 0; b < job.precision.blocks.size(); ++b) {
    const auto& times = job.precision.blocks[b].step_us;
    fp32 += static_cast<double>(times[0]);
    now += static_cast<double>(times[static_cast<std::size_t>(plan.precision[b])]);
  }
  return fp32 > 0 ? now / fp32 : 1;
}

const MemoryModel* model_of(const JobFacts& job, RankId rank) {
  if (job.memory.models.empty()) return nullptr;
  const auto r = static_cast<std::size_t>(rank.value());
  return &job.memory.models[job.memory.model_of_rank.empty() ? 0 : job.memory.model_of_rank[r]];
}

MemoryCost cost_under(const MemoryModel& model, const Plan& plan, RankId rank) {
  const auto cost = cost_of(model, plan.profiles[profile_of(plan, rank).value()]);
  return cost.value_or(MemoryCost{model.front.back().peak_bytes, 0});
}

}  // namespace

SteeredJob::SteeredJob(SteeredScenario scenario, JobFacts job, Config config, PolicySet policies)
    : scenario_(std::move(scenario)),
      job_(std::move(job)),
      config_(std::move(config)),
      policies_(std::move(policies)),
      random_(scenario_.seed) {
  Begun begun = begin_job(job_, config_, policies_, initial_state(job_));
  state_ = std::move(begun.state);
  said_ = std::move(begun.reasons);
  active_ = state_.plan;
}

std::uint64_t SteeredJob::samples_of(const Plan& plan, RankId rank) const {
  const std::vector<std::uint64_t> samples = samples_of_ranks(job_, plan);
  return samples.empty() ? 0 : samples[static_cast<std::size_t>(rank.value())];
}

SteeredJob::RankTime SteeredJob::time_of(const Plan& plan, RankId rank) const {
  const MemoryModel* const model = model_of(job_, rank);
  const std::uint64_t samples = samples_of(plan, rank);
  double pace = scenario_.truth ? scenario_.truth(plan) : 1;
  if (scenario_.slowdown) pace *= scenario_.slowdown(rank, round_);
  if (samples > 0) {
    const std::uint64_t even = job_.global_batch / job_.ranks();
    const std::uint64_t modelled = model != nullptr && model->samples > 0 ? model->samples : even;
    pace *=
        static_cast<double>(samples) / static_cast<double>(std::max<std::uint64_t>(modelled, 1));
  }
  RankTime time{scenario_.step_seconds, 0};
  if (model != nullptr) {
    time.compute = 1e-6 * static_cast<double>(model->step_us);
    time.recompute = 1e-6 * static_cast<double>(cost_under(*model, plan, rank).added_us) * pace;
  }
  time.compute *= format_ratio(job_, plan) * pace;
  return time;
}

std::int64_t SteeredJob::peak_of(const Plan& plan, RankId rank) const {
  const MemoryModel* const model = model_of(job_, rank);
  if (model == nullptr) return 0;
  const std::uint64_t samples = samples_of(plan, rank);
  return peak_with(*model, cost_under(*model, plan, rank).peak_bytes,
                   samples > 0 ? samples : model->samples);
}

double SteeredJob::rank_seconds(const Plan& plan, RankId rank) const {
  const RankTime time = time_of(plan, rank);
  return time.compute + time.recompute;
}

double SteeredJob::step_seconds(const Plan& plan) const {
  double slowest = 0;
  for (std::size_t r = 0; r < job_.ranks(); ++r) {
    slowest = std::max(slowest, rank_seconds(plan, rank_id(r)));
  }
  return slowest + scenario_.sync_seconds;
}

double SteeredJob::rank_noise() {
  const PaceNoise& noise = scenario_.noise;
  double log = noise.rank * random_.normal();
  if (noise.heavy_tails) {
    double chi = 0;
    for (int i = 0; i < 3; ++i) chi += std::pow(random_.normal(), 2);
    log /= std::sqrt(chi);
  }
  if (random_.chance(noise.pauses)) log += std::log(1.2 + 1.3 * random_.uniform());
  return log;
}

RankSignal SteeredJob::report_of(RankId rank, const RankTime& time, double wall_seconds) const {
  RankSignal s;
  s.rank = rank;
  s.incarnation = job_.incarnation;
  s.round = round_;
  s.step = StepId(round_.value());
  s.rounds = 1;
  const std::uint64_t samples = samples_of(active_, rank);
  s.samples = static_cast<std::uint32_t>(samples > 0 ? samples : 8);
  s.weight = s.samples;
  s.tokens = s.samples;
  s.loss = 2;
  s.gradient_norm = 1;
  const auto in = [&s](Phase phase) -> float& {
    return s.phase_seconds[static_cast<std::size_t>(phase)];
  };
  in(Phase::forward) = static_cast<float>(time.compute / 3);
  in(Phase::backward) = static_cast<float>(2 * time.compute / 3 + time.recompute);
  in(Phase::communication) = static_cast<float>(wall_seconds - time.compute - time.recompute);
  s.recompute_seconds = static_cast<float>(time.recompute);
  s.waiting_seconds =
      std::max(0.0f, in(Phase::communication) - static_cast<float>(scenario_.sync_seconds));
  s.set(SignalFlag::waiting_measured);
  s.wall_seconds = wall_seconds;
  if (scenario_.host) s.fragment = make_fragment(scenario_.host(rank));
  s.memory_peak_bytes = static_cast<std::uint64_t>(peak_of(active_, rank));
  const std::vector<std::int64_t>& limits = job_.memory.limit_bytes;
  if (!limits.empty()) {
    s.memory_limit_bytes =
        static_cast<std::uint64_t>(limits[static_cast<std::size_t>(rank.value())]);
    s.memory_used_bytes = s.memory_peak_bytes;
  }
  s.plan_held = s.plan_applied = active_.id.number;
  seal(s);
  return s;
}

StepSignals SteeredJob::signals() {
  const PaceNoise& noise = scenario_.noise;
  const double fresh = std::sqrt(1 - noise.correlation * noise.correlation);
  common_ = noise.correlation * common_ + fresh * noise.common * random_.normal();
  std::vector<RankTime> times;
  double slowest = 0;
  for (std::size_t r = 0; r < job_.ranks(); ++r) {
    RankTime time = time_of(active_, rank_id(r));
    const double factor = std::exp(common_ + rank_noise());
    time.compute *= factor;
    time.recompute *= factor;
    slowest = std::max(slowest, time.compute + time.recompute);
    times.push_back(time);
  }
  const double wall = slowest + scenario_.sync_seconds * std::exp(common_);
  clock_seconds_ += wall;
  std::vector<RankSignal> arrived;
  for (std::size_t r = 0; r < times.size(); ++r) {
    arrived.push_back(report_of(rank_id(r), times[r], wall));
  }
  StepSignals signals =
      collect(round_, job_.incarnation, job_.world_size, arrived, {}, {1.7e9 + clock_seconds_});
  signals.evidence.assign(job_.blocks.size(), good_evidence());
  return signals;
}

Decision SteeredJob::round() {
  constexpr std::uint64_t kDelayRounds = 3;
  if (state_.plan.id.number > active_.id.number && round_.value() >= applies_from_) {
    active_ = state_.plan;
  }
  Decided decided = decide(job_, config_, policies_, std::move(state_), signals());
  state_ = std::move(decided.state);
  if (decided.decision.plan) applies_from_ = round_.value() + kDelayRounds;
  said_.insert(said_.end(), decided.decision.reasons.begin(), decided.decision.reasons.end());
  round_ = round_.next();
  last_ = decided.decision;
  return std::move(decided.decision);
}

void SteeredJob::rounds(std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) round();
}

void SteeredJob::save_and_restore() {
  for (NamedPolicyState& named : state_.policies) {
    named.state = PolicyState::from_bytes(named.state.bytes());
  }
}

}  // namespace cox::testing
