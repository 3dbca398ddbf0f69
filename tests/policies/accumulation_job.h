// A job of a few ranks for tests of policy `accumulation`, on a virtual clock. A step takes the
// slowest rank's work plus the cost of synchronising; the other ranks wait. Plans apply some rounds
// later. Header only.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/decide/decide.h"
#include "coordinator/policies/accumulation/accumulation.h"
#include "coordinator/testing/random.h"

namespace cox::test {

// Returns a job of four ranks with micro-batches of 4 samples, one for each rank.
inline JobFacts accumulation_job() {
  JobFacts job;
  job.incarnation = 1;
  job.world_size = 4;
  job.global_batch = 16;
  job.micro_batch = 4;
  job.capabilities.shares = job.capabilities.accumulation = true;
  return job;
}

// Replaces policy `shares`: proposes shares for the given speeds.
class TrueShares final : public Policy {
 public:
  explicit TrueShares(std::vector<std::uint32_t> shares) : shares_(std::move(shares)) {}
  PolicyKind kind() const override { return PolicyKind::shares; }
  std::string_view name() const override { return "shares"; }
  PolicyOutput propose(const PolicyInput&, PolicyState state) const override {
    return {{{SetShares{shares_}, {}}}, {}, std::move(state)};
  }

 private:
  std::vector<std::uint32_t> shares_;
};

class SimulatedAccumulation {
 public:
  SimulatedAccumulation(const std::string& settings, JobFacts facts = accumulation_job(),
                        PolicySet policies = {})
      : job(std::move(facts)), policies_(std::move(policies)) {
    const Status status = apply_text(config, "accumulation.mode = on\n" + settings, "test");
    if (!status.ok() || !validate(config).ok()) throw std::runtime_error(status.text());
    policies_.push_back(std::make_shared<AccumulationPolicy>());
    slowness.assign(static_cast<std::size_t>(job.world_size), 1.0);
    Begun begun = begin_job(job, config, policies_, initial_state(job));
    state = std::move(begun.state);
    active = state.plan;
    keep(begun.reasons);
  }

  // Returns the whole micro-batches of each rank. The largest remainders get the rest.
  std::vector<std::uint64_t> micro_batches() const {
    const auto ranks = static_cast<std::size_t>(job.world_size);
    std::vector<std::uint32_t> shares = active.shares;
    if (shares.empty()) shares.assign(ranks, 1);
    const std::uint64_t sum = std::accumulate(shares.begin(), shares.end(), std::uint64_t{0});
    std::vector<std::uint64_t> parts(ranks);
    std::uint64_t left = total();
    for (std::size_t r = 0; r < ranks; ++r) left -= parts[r] = total() * shares[r] / sum;
    for (std::size_t r = 0; left > 0; r = (r + 1) % ranks) {
      if (shares[r] == 0) continue;
      ++parts[r];
      --left;
    }
    return parts;
  }

  std::uint64_t total() const {
    const std::uint64_t samples = active.step_samples == 0 ? job.global_batch : active.step_samples;
    return (samples + job.micro_batch - 1) / job.micro_batch;
  }

  std::vector<RankSignal> reports() {
    const std::vector<std::uint64_t> parts = micro_batches();
    std::vector<double> work(parts.size());
    for (std::size_t r = 0; r < parts.size(); ++r) {
      work[r] = static_cast<double>(parts[r]) * micro_seconds * slowness[r] * noise();
    }
    const double slowest = *std::max_element(work.begin(), work.end());
    const double sync = sync_seconds * noise();
    std::vector<RankSignal> signals;
    for (std::size_t r = 0; r < parts.size(); ++r) {
      RankSignal s;
      s.rank = RankId(static_cast<std::int32_t>(r));
      s.incarnation = job.incarnation;
      s.round = RoundId(now);
      s.rounds = 1;
      s.samples = static_cast<std::uint32_t>(parts[r] * job.micro_batch);
      s.weight = s.samples;
      s.loss = 1;
      seconds(s, Phase::forward) = static_cast<float>(work[r] / 3);
      seconds(s, Phase::backward) = static_cast<float>(work[r] * 2 / 3);
      seconds(s, Phase::optimizer) = static_cast<float>(optimizer_seconds);
      seconds(s, Phase::communication) = static_cast<float>(slowest - work[r] + sync);
      s.wall_seconds = slowest + optimizer_seconds + sync;
      s.plan_held = s.plan_applied = active.id.number;
      change(s);
      seal(s);
      signals.push_back(s);
    }
    overhead = sync / (sync + slowest + optimizer_seconds);
    return signals;
  }

  Decision decide_on(const StepSignals& signals) {
    Decided decided = decide(job, config, policies_, std::move(state), signals);
    state = std::move(decided.state);
    if (decided.decision.plan) {
      batches += decided.decision.plan->step_samples != active.step_samples;
      applies_from_ = now + 3;
    }
    keep(decided.decision.reasons);
    return std::move(decided.decision);
  }

  StepSignals next_signals() {
    ++now;
    if (state.plan.id.number > active.id.number && now >= applies_from_) active = state.plan;
    return collect(RoundId(now), job.incarnation, job.world_size, reports(), {}, {1e9});
  }

  void rounds(int n) {
    for (int i = 0; i < n; ++i) decide_on(next_signals());
  }

  std::vector<Reason> said_with(ReasonCode code) const {
    std::vector<Reason> found;
    for (const Reason& reason : said) {
      if (reason.code == code) found.push_back(reason);
    }
    return found;
  }

  static float& seconds(RankSignal& s, Phase phase) {
    return s.phase_seconds[static_cast<std::size_t>(phase)];
  }

  JobFacts job;
  Config config;
  ControlState state;
  Plan active;  // in force on all ranks
  std::uint64_t now = 0;
  int batches = 0;      // published changes of the batch
  double overhead = 0;  // true value in the newest round
  std::vector<Reason> said;

  double micro_seconds = 0.01;
  double optimizer_seconds = 0;
  double sync_seconds = 0.0005;
  double noise_ratio = 0;
  std::vector<double> slowness;
  std::function<void(RankSignal&)> change = [](RankSignal&) {};
  testing::Random random{7};

 private:
  double noise() { return std::exp(noise_ratio * random.normal()); }
  void keep(const std::vector<Reason>& reasons) {
    said.insert(said.end(), reasons.begin(), reasons.end());
  }

  PolicySet policies_;
  std::uint64_t applies_from_ = 0;
};

}  // namespace cox::test
