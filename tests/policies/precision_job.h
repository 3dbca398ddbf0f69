// A job of four blocks for tests of policy `precision`. Tests set the ranks' reports and the
// blocks' values; plans apply two rounds later. Header only.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/decide/decide.h"
#include "coordinator/policies/precision/precision.h"

namespace cox::test {

inline JobFacts precision_job(std::int32_t ranks = 4) {
  JobFacts job;
  job.incarnation = 1;
  job.world_size = ranks;
  job.blocks = {"h.0", "h.1", "h.2", "head"};
  job.capabilities.precisions = 0xF;
  job.precision.blocks.assign(4, {{1000, 500, 520, 400}});
  return job;
}

// Returns "bbb8" for bf16, bf16, bf16, fp8; 3 and h are fp32 and fp16.
inline std::string letters_of(const std::vector<Precision>& formats) {
  std::string letters;
  for (const Precision format : formats) letters += "3bh8"[static_cast<std::size_t>(format)];
  return letters;
}

inline BlockEvidence good_evidence() {
  BlockEvidence evidence;
  evidence.sampled = 1000;
  evidence.noise_sum = 8;
  evidence.noise_count = 4;
  return evidence;
}

class SimulatedPrecisionJob {
 public:
  SimulatedPrecisionJob(JobFacts facts, const std::string& settings) : job(std::move(facts)) {
    const Status status = apply_text(config, settings, "test");
    if (!status.ok()) throw std::runtime_error(status.text());
    Begun begun = begin_job(job, config, policies_, initial_state(job));
    state = std::move(begun.state);
    reasons = std::move(begun.reasons);
    applied_ = state.plan;
    evidence.assign(job.blocks.size(), good_evidence());
  }

  // Plays one round: all ranks report; a published plan is in force two rounds later.
  void play() {
    if (state.plan.id.number != applied_.id.number && round + 1 >= due_) applied_ = state.plan;
    StepSignals signals;
    signals.round = RoundId(++round);
    for (std::int32_t r = 0; r < job.world_size; ++r) {
      RankSignal report;
      report.rank = RankId(r);
      report.incarnation = 1;
      report.round = signals.round;
      report.rounds = 1;
      report.loss = 2;
      report.weight = 1;
      report.plan_applied = report.plan_held = applied_.id.number;
      report.phase_seconds[1] = report.phase_seconds[2] = 0.1f;
      if (adjust) adjust(report);
      if (report.rank.value() >= 0) signals.reports.push_back(report);
    }
    signals.evidence = evidence;
    Decided decided = decide(job, config, policies_, std::move(state), signals);
    state = std::move(decided.state);
    if (decided.decision.plan) due_ = round + 2;
    for (const Reason& reason : decided.decision.reasons) reasons.push_back(reason);
  }
  void play(int rounds) {
    for (int i = 0; i < rounds; ++i) play();
  }

  std::string planned() const { return letters_of(state.plan.precision); }
  std::string in_force() const { return letters_of(applied_.precision); }

  // Returns the newest reason of this code; null if there is none.
  const Reason* last(ReasonCode code) const {
    for (auto at = reasons.rbegin(); at != reasons.rend(); ++at) {
      if (at->code == code) return &*at;
    }
    return nullptr;
  }
  bool has_said(ReasonCode code, const std::string& part) const {
    return std::any_of(reasons.begin(), reasons.end(), [&](const Reason& reason) {
      return reason.code == code && reason.text.find(part) != std::string::npos;
    });
  }
  std::string said(ReasonCode code) const {
    const Reason* reason = last(code);
    return reason ? reason->text : std::string("nothing");
  }

  JobFacts job;
  Config config;
  ControlState state;
  std::vector<BlockEvidence> evidence;
  std::function<void(RankSignal&)> adjust;  // rank -1 = missing
  std::vector<Reason> reasons;
  std::uint64_t round = 0;

 private:
  PolicySet policies_{std::make_shared<PrecisionPolicy>()};
  Plan applied_;
  std::uint64_t due_ = 0;
};

}  // namespace cox::test
