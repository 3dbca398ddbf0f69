// A job of a few ranks for tests of policy `memory`: known fronts, ranks that report the true peaks
// of their plans, plans that apply two rounds later. Header only.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/plan.h"
#include "coordinator/decide/decide.h"
#include "coordinator/policies/memory/memory.h"

namespace cox::test {

inline constexpr std::int64_t kMiB = 1 << 20;

// A letter for each action: 1 to 7 are levels of recompute.
inline constexpr std::string_view kLetters = "krot1234567";

inline std::vector<MemoryAction> actions_of(const std::string& letters) {
  std::vector<MemoryAction> actions;
  for (const char letter : letters) {
    actions.push_back(static_cast<MemoryAction>(kLetters.find(letter)));
  }
  return actions;
}

inline std::string letters_of(const std::vector<MemoryAction>& actions) {
  std::string letters;
  for (const MemoryAction action : actions) letters += kLetters[static_cast<std::size_t>(action)];
  return letters;
}

// Four blocks: 1000 MiB if kept, 100 ms a step. Each recomputed block saves 100 MiB and costs 4 ms.
inline MemoryModel plain_model() {
  MemoryModel model;
  const std::vector<std::string> plans = {"rrrr", "rrrk", "rrkk", "rkkk", "kkkk"};
  for (std::size_t p = 0; p < plans.size(); ++p) {
    const auto n = static_cast<std::int64_t>(p);
    model.front.push_back({(600 + 100 * n) * kMiB, 16000 - 4000 * n, actions_of(plans[p])});
  }
  model.base_bytes = 500 * kMiB;
  model.step_us = 100000;
  model.kept_bytes.assign(4, 100 * kMiB);
  return model;
}

// The same blocks, with a level 2 that saves half as much for 1 ms.
inline MemoryModel leveled_model() {
  MemoryModel model = plain_model();
  model.front.clear();
  const std::vector<std::string> plans = {"rrrr", "rrr2", "rr22", "r222", "2222",
                                          "222k", "22kk", "2kkk", "kkkk"};
  for (std::size_t p = 0; p < plans.size(); ++p) {
    const std::vector<MemoryAction> actions = actions_of(plans[p]);
    const auto full = std::count(actions.begin(), actions.end(), MemoryAction::recompute);
    const auto in_part = std::count(actions.begin(), actions.end(), recompute_level(2));
    const auto n = static_cast<std::int64_t>(p);
    model.front.push_back({(600 + 50 * n) * kMiB, 4000 * full + 1000 * in_part, actions});
  }
  return model;
}

inline JobFacts memory_job(std::int32_t ranks) {
  JobFacts job;
  job.incarnation = 1;
  job.world_size = ranks;
  job.blocks = {"h.0", "h.1", "h.2", "head"};
  job.capabilities.actions = kEveryAction;
  job.memory.models = {plain_model()};
  return job;
}

class SimulatedMemoryJob {
 public:
  SimulatedMemoryJob(JobFacts facts, const std::string& settings) : job(std::move(facts)) {
    const Status status = apply_text(config, settings, "test");
    if (!status.ok() || !validate(config).ok()) throw std::runtime_error(status.text());
    state = initial_state(job);
    active = state.plan;
    real_peak = [this](std::size_t rank) { return predicted(rank); };
  }

  // Starts the job. Returns the reasons of the first plan.
  std::vector<Reason> begin() {
    Begun begun = begin_job(job, config, policies, std::move(state));
    state = std::move(begun.state);
    active = state.plan;
    return begun.reasons;
  }

  Decision round() {
    ++now;
    if (state.plan.id.number > active.id.number && now >= applies_from_) active = state.plan;
    std::vector<RankSignal> reports;
    for (std::int32_t r = 0; r < job.world_size; ++r) reports.push_back(report_of(r));
    const StepSignals signals = collect(RoundId(now), 1, job.world_size, reports, {}, {1e9});
    Decided decided = decide(job, config, policies, std::move(state), signals);
    state = std::move(decided.state);
    if (decided.decision.plan) {
      ++plans;
      applies_from_ = now + 3;
    }
    for (const Reason& reason : decided.decision.reasons) said.push_back(reason);
    return std::move(decided.decision);
  }

  void rounds(int n) {
    for (int i = 0; i < n; ++i) round();
  }

  std::string letters(std::size_t rank) const {
    return letters_of(active.profiles[profile_at(active, rank)]);
  }

  std::int64_t predicted(std::size_t rank) const {
    const std::size_t m = job.memory.model_of_rank.empty() ? 0 : job.memory.model_of_rank[rank];
    if (m >= job.memory.models.size()) return 0;
    const auto cost = cost_of(job.memory.models[m], active.profiles[profile_at(active, rank)]);
    return cost ? cost->peak_bytes : 0;
  }

  // Returns the reasons with a code, in round order.
  std::vector<Reason> said_with(ReasonCode code) const {
    std::vector<Reason> found;
    for (const Reason& reason : said) {
      if (reason.code == code) found.push_back(reason);
    }
    return found;
  }

  JobFacts job;
  Config config;
  PolicySet policies{std::make_shared<MemoryPolicy>()};
  ControlState state;
  Plan active;  // in force on all ranks
  std::uint64_t now = 0;
  int plans = 0;  // published
  std::vector<Reason> said;
  std::function<std::int64_t(std::size_t rank)> real_peak;
  std::function<double(std::size_t rank)> slowness = [](std::size_t) { return 1.0; };
  std::function<void(RankSignal&)> change = [](RankSignal&) {};

 private:
  static std::size_t profile_at(const Plan& plan, std::size_t rank) {
    return profile_of(plan, RankId(static_cast<std::int32_t>(rank))).value();
  }

  RankSignal report_of(std::int32_t rank) {
    const auto r = static_cast<std::size_t>(rank);
    RankSignal signal;
    signal.rank = RankId(rank);
    signal.incarnation = 1;
    signal.round = RoundId(now);
    signal.rounds = 1;
    signal.weight = 1;
    signal.loss = 1;
    signal.phase_seconds[static_cast<std::size_t>(Phase::forward)] =
        static_cast<float>(0.1 * slowness(r));
    signal.plan_held = signal.plan_applied = active.id.number;
    signal.memory_peak_bytes = static_cast<std::uint64_t>(real_peak(r));
    change(signal);
    seal(signal);
    return signal;
  }

  std::uint64_t applies_from_ = 0;
};

}  // namespace cox::test
