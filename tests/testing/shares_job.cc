#include "tests/testing/shares_job.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "coordinator/policies/shares/shares.h"

namespace cox::test {
namespace {

constexpr std::uint64_t kBytesPerSample = 1000;
constexpr std::uint64_t kFixedBytes = 5000;

JobFacts facts_of(const SharesScenario& scenario) {
  JobFacts job;
  job.name = "shares";
  job.incarnation = 1;
  job.world_size = scenario.ranks;
  job.blocks = {"h.0"};
  job.global_batch = scenario.global_batch;
  job.micro_batch = scenario.micro_batch;
  job.capabilities.shares = job.capabilities.accumulation = true;
  return job;
}

}  // namespace

SharesJob::SharesJob(SharesScenario scenario, Config config)
    : scenario_(std::move(scenario)),
      config_(std::move(config)),
      policies_({std::make_shared<SharesPolicy>()}),
      job_(facts_of(scenario_)),
      random_(scenario_.seed),
      held_from_(static_cast<std::size_t>(scenario_.ranks), 0),
      late_(static_cast<std::size_t>(scenario_.ranks)) {
  Begun begun = begin_job(job_, config_, policies_, initial_state(job_));
  state_ = std::move(begun.state);
  reasons_ = std::move(begun.reasons);
  active_ = state_.plan;
}

std::vector<RankCost> SharesJob::costs() const {
  const double unit = scenario_.unit_seconds *
                      static_cast<double>(std::max<std::uint64_t>(scenario_.micro_batch, 1));
  std::vector<RankCost> costs;
  for (std::int32_t r = 0; r < scenario_.ranks; ++r) {
    const double speed = scenario_.speed(r, round_.value());
    RankCost cost{(scenario_.fixed_seconds + scenario_.optimizer_seconds) / speed, unit / speed};
    const auto most = config_.shares.max_samples.find(r);
    if (most != config_.shares.max_samples.end()) {
      cost.max_units = most->second / std::max<std::uint64_t>(scenario_.micro_batch, 1);
    }
    costs.push_back(cost);
  }
  return costs;
}

RankSignal SharesJob::report_of(std::size_t rank, const RankCost& cost, double seconds,
                                double step_seconds) const {
  RankSignal s;
  s.rank = RankId(static_cast<std::int32_t>(rank));
  s.incarnation = job_.incarnation;
  s.round = round_;
  s.step = StepId(round_.value());
  s.rounds = 1;
  s.samples =
      static_cast<std::uint32_t>(units_[rank] * std::max<std::uint64_t>(scenario_.micro_batch, 1));
  s.weight = s.samples;
  s.loss = 2;
  s.gradient_norm = 1;
  const double optimizer = seconds * scenario_.optimizer_seconds /
                           scenario_.speed(s.rank.value(), round_.value()) /
                           seconds_of(cost, units_[rank]);
  const double work = seconds - optimizer;
  s.phase_seconds = {static_cast<float>(0.02 * work),
                     static_cast<float>(0.33 * work),
                     static_cast<float>(0.65 * work),
                     0,
                     static_cast<float>(step_seconds - seconds),
                     static_cast<float>(optimizer),
                     1e-5f,
                     0};
  s.wall_seconds = step_seconds;
  s.plan_held = round_.value() >= held_from_[rank] ? state_.plan.id.number : active_.id.number;
  s.plan_applied = active_.id.number;
  const auto limit = scenario_.memory_limit.find(s.rank.value());
  if (limit != scenario_.memory_limit.end()) {
    s.memory_limit_bytes = limit->second;
    s.memory_peak_bytes = kFixedBytes + kBytesPerSample * s.samples;
  }
  return s;
}

std::vector<RankSignal> SharesJob::reports() {
  const std::vector<RankCost> cost = costs();
  const std::uint64_t micro = std::max<std::uint64_t>(scenario_.micro_batch, 1);
  const std::uint64_t batch =
      active_.step_samples != 0 ? active_.step_samples : scenario_.global_batch;
  const std::uint64_t units = (batch + micro - 1) / micro;
  units_ = units_of_shares(units, active_.shares, cost.size());
  const auto best = assign_shares({units, cost, {}});
  std::vector<double> factor;
  const double common = std::exp(scenario_.common_noise * random_.normal());
  for (std::size_t r = 0; r < cost.size(); ++r) {
    const double pause = random_.chance(scenario_.pauses) ? 1.2 + 1.3 * random_.uniform() : 1;
    factor.push_back(common * pause * std::exp(scenario_.noise * random_.normal()));
  }
  std::vector<double> own;
  double clairvoyant = 0;
  for (std::size_t r = 0; r < cost.size(); ++r) {
    own.push_back(factor[r] * seconds_of(cost[r], units_[r]));
    clairvoyant = std::max(clairvoyant, factor[r] * seconds_of(cost[r], best->units[r]));
  }
  const double step = *std::max_element(own.begin(), own.end());
  seconds_ += step;
  clairvoyant_seconds_ += clairvoyant;
  over_ideal_ = slowest_rank(cost, units_).seconds / best->seconds;

  std::vector<RankSignal> arrived;
  for (std::size_t r = 0; r < cost.size(); ++r) {
    RankSignal report = report_of(r, cost[r], own[r], step);
    if (late_[r].rounds > 0) report = merge_reports(late_[r], report);
    late_[r] = RankSignal{};
    if (random_.chance(scenario_.missing)) {
      late_[r] = report;
      continue;
    }
    seal(report);
    arrived.push_back(report);
  }
  return arrived;
}

void SharesJob::agree_on_plan() {
  const std::uint64_t all_hold = *std::max_element(held_from_.begin(), held_from_.end());
  const bool allowed = round_.value() + 1 >= state_.plan.earliest_round.value();
  if (round_.value() >= all_hold && allowed) active_ = state_.plan;
}

Decision SharesJob::decide_on(const std::vector<RankSignal>& arrived) {
  agree_on_plan();
  const UnixTime time{1.7e9 + seconds_};
  Decided decided = decide(job_, config_, policies_, std::move(state_),
                           collect(round_, job_.incarnation, job_.world_size, arrived, {}, time));
  state_ = std::move(decided.state);
  Decision& decision = decided.decision;
  if (decision.plan) {
    ++reshares_;
    for (std::uint64_t& from : held_from_) {
      from = round_.value() + 1 + random_.below(scenario_.delay_rounds + 1);
    }
  }
  reasons_.insert(reasons_.end(), decision.reasons.begin(), decision.reasons.end());
  round_ = round_.next();
  return std::move(decision);
}

Decision SharesJob::round() {
  return decide_on(reports());
}

}  // namespace cox::test
