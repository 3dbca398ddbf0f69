#include "coordinator/policies/accumulation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "coordinator/policies/accumulation_batch.h"
#include "coordinator/policies/accumulation_notes.h"
#include "coordinator/policies/accumulation_words.h"
#include "coordinator/policies/sentence.h"

namespace cox {
namespace {

using Said = AccumulationNotes::Said;

constexpr double kMargin = 1.05;    // more than the present anchor, before it is raised
constexpr double kLowerFrom = 0.5;  // of the present anchor would do, before it is lowered

// Policy `shares` moves the work to where the speed is.
bool follows_speeds(const PolicyInput& input) {
  return input.config.shares.mode == PolicyMode::on && input.config.force.shares.empty();
}

std::size_t ranks_kept(const PolicyInput& input) {
  return follows_speeds(input) ? static_cast<std::size_t>(input.job.world_size) : 0;
}

// A rank's round in parts. Seconds of one round.
struct RankRound {
  double own = 0;
  double communication = 0;
  double optimizer = 0;
  double samples = 0;
  bool is_usable = false;
};

RankRound round_of(const RankSignal& s) {
  RankRound round;
  if (s.rounds == 0) return round;
  double least = 0;
  for (std::size_t p = 0; p < kPhases; ++p) {
    const double seconds = s.phase_seconds[p] / static_cast<double>(s.rounds);
    least = std::min(least, seconds);
    if (is_own_work(static_cast<Phase>(p))) round.own += seconds;
    if (static_cast<Phase>(p) == Phase::communication) round.communication = seconds;
    if (static_cast<Phase>(p) == Phase::optimizer) round.optimizer = seconds;
  }
  round.samples = s.samples / static_cast<double>(s.rounds);
  const double sum = round.own + round.communication;
  round.is_usable = least >= 0 && std::isfinite(sum) && round.own > 0;
  return round;
}

bool worked(const RankSignal& s) {
  return !s.has(SignalFlag::finished) && !s.has(SignalFlag::watching) && s.samples > 0;
}

// Rounds of another plan, or in which something was done twice, tell nothing about this one.
bool is_ordinary(const PolicyInput& input) {
  return std::all_of(
      input.signals.reports.begin(), input.signals.reports.end(), [&](const RankSignal& s) {
        return s.rank.value() < input.job.world_size && s.plan_applied == input.plan.id.number &&
               !s.has(SignalFlag::step_repeated) && !s.has(SignalFlag::rolled_back);
      });
}

// All ranks that worked in a round.
struct WholeRound {
  double sync = std::numeric_limits<double>::infinity();
  double work = 0;         // of the slowest rank
  double optimizer = 0;    // of that one
  double micro_batch = 0;  // the dearest one's seconds, optimizer aside
};

WholeRound whole_round(const PolicyInput& input, AccumulationNotes& notes) {
  WholeRound whole;
  for (const RankSignal& s : input.signals.reports) {
    const RankRound rank = round_of(s);
    if (!worked(s) || !rank.is_usable) continue;
    const auto r = static_cast<std::size_t>(s.rank.value());
    const double variable = rank.own - rank.optimizer;
    if (r < notes.work_seconds().size()) {
      notes.work_seconds()[r] += variable * s.rounds;
      notes.samples()[r] += s.samples;
    }
    whole.sync = std::min(whole.sync, rank.communication);
    whole.micro_batch = std::max(
        whole.micro_batch, variable / rank.samples * static_cast<double>(input.job.micro_batch));
    if (rank.own <= whole.work) continue;
    whole.work = rank.own;
    whole.optimizer = rank.optimizer;
  }
  return whole;
}

RankRatios ratios_now(const PolicyInput& input, AccumulationNotes& notes) {
  if (!follows_speeds(input)) return ratios_of(input.plan, input.job);
  return ratios_of(notes.work_seconds(), notes.samples());
}

double sum_of(const RankRatios& ratios) {
  double sum = 0;
  for (const double ratio : ratios) sum += ratio;
  return sum;
}

// One look at one round.
class AccumulationRound {
 public:
  AccumulationRound(const PolicyInput& input, AccumulationNotes& notes)
      : input_(input), config_(input.config.accumulation), notes_(notes) {}

  void run() {
    notes_.start_plan(input_.plan.id.number);
    if (input_.summary.reporting > 0 && is_ordinary(input_)) measure();
    if (notes_.rounds() >= std::max<double>(1, config_.settle_rounds)) judge();
  }

  // Before the first round: no fewer micro-batches than the settings want.
  void begin() {
    const RankRatios ratios = ratios_of(input_.plan, input_.job);
    const std::uint64_t least = micro_batches(config_.min_anchor, ratios);
    const std::uint64_t now = micro_batches_of(input_.plan, input_.job);
    if (now < least) {
      return propose(least, ReasonCode::accumulation_start,
                     sentence("every rank starts with at least %u micro-batches a step; ",
                              config_.min_anchor));
    }
    Reason reason;
    reason.code = ReasonCode::accumulation_start;
    reason.text = sentence(
                      "synchronising may take %.3g %% of a step; it starts with %.0f "
                      "micro-batches: ",
                      100 * config_.target_ratio, static_cast<double>(now)) +
                  batch_words(now, input_.job);
    output_.findings.push_back(std::move(reason));
  }

  PolicyOutput output() && { return std::move(output_); }

 private:
  std::uint64_t micro_batches(std::uint64_t anchor, const RankRatios& ratios) const {
    return step_micro_batches(anchor, ratios, input_.job, input_.config.shares);
  }

  double anchor_of(std::uint64_t micro_batches, const RankRatios& ratios) const {
    return static_cast<double>(micro_batches) / std::max(1.0, sum_of(ratios));
  }

  std::uint64_t now() const { return micro_batches_of(input_.plan, input_.job); }

  void measure() {
    const WholeRound whole = whole_round(input_, notes_);
    if (!std::isfinite(whole.sync)) return;
    const double anchor = anchor_of(now(), ratios_now(input_, notes_));
    // Where work follows speed, each rank's time becomes that of the dearest micro-batches.
    const double each = follows_speeds(input_) || anchor == 0
                            ? whole.micro_batch
                            : (whole.work - whole.optimizer) / anchor;
    if (!(each > 0)) return;
    const double target = config_.target_ratio;
    const double room = whole.sync * (1 - target) / target - whole.optimizer;
    notes_.add({std::clamp(room / each, 0.0, 1e9), whole.sync, whole.work});
  }

  void judge() {
    const SyncCost cost = notes_.middle();
    const RankRatios ratios = ratios_now(input_, notes_);
    const double anchor = anchor_of(now(), ratios);
    const bool is_dear = cost.anchor > kMargin * anchor;
    const bool is_cheap = cost.anchor < kLowerFrom * anchor;
    if (!is_dear) notes_.take_back(Said::capped);
    if (!is_dear && !is_cheap) return;
    const double wanted = std::clamp<double>(std::ceil(kMargin * cost.anchor), config_.min_anchor,
                                             config_.max_anchor);
    const std::uint64_t next = micro_batches(static_cast<std::uint64_t>(wanted), ratios);
    if (is_dear && next <= now()) return say_capped(cost);
    if (is_cheap && next >= now()) return;
    const auto code = is_dear ? ReasonCode::accumulation_raised : ReasonCode::accumulation_lowered;
    propose(next, code,
            overhead_words(cost) + (is_dear ? ", above" : ", below half of") +
                sentence(" the target of %.3g %%: the slowest rank computes %.0f micro-batches "
                         "instead of %.3g; ",
                         100 * config_.target_ratio, wanted, anchor));
  }

  void propose(std::uint64_t next, ReasonCode code, const std::string& why) {
    const bool is_own = next == job_micro_batches(input_.job);
    Proposal& proposal = output_.proposals.emplace_back();
    proposal.change.emplace<SetBatch>().step_samples = is_own ? 0 : next * input_.job.micro_batch;
    proposal.reason.code = code;
    proposal.reason.text = why + batch_words(next, input_.job);
  }

  void say_capped(const SyncCost& cost) {
    if (!notes_.say_once(Said::capped)) return;
    Reason reason;
    reason.code = ReasonCode::accumulation_kept;
    reason.text = overhead_words(cost) +
                  sentence(
                      ", above the target of %.3g %%, which needs %.0f micro-batches of the "
                      "slowest rank; accumulation.max_anchor is %u, so the batch stays",
                      100 * config_.target_ratio, std::ceil(cost.anchor), config_.max_anchor);
    output_.findings.push_back(std::move(reason));
  }

  const PolicyInput& input_;
  const AccumulationConfig& config_;
  AccumulationNotes& notes_;
  PolicyOutput output_;
};

PolicyOutput unable(std::string why, AccumulationNotes notes) {
  PolicyOutput output;
  if (notes.say_once(Said::unable)) {
    Reason reason;
    reason.code = ReasonCode::not_capable;
    reason.text = std::move(why);
    output.findings.push_back(std::move(reason));
  }
  output.state = std::move(notes).release();
  return output;
}

}  // namespace

PolicyOutput AccumulationPolicy::propose(const PolicyInput& input, PolicyState state) const {
  AccumulationNotes notes(std::move(state), ranks_kept(input));
  std::string why = why_unable(input.job);
  if (!why.empty()) return unable(std::move(why), std::move(notes));
  AccumulationRound round(input, notes);
  round.run();
  PolicyOutput output = std::move(round).output();
  output.state = std::move(notes).release();
  return output;
}

PolicyOutput AccumulationPolicy::at_start(const PolicyInput& input, PolicyState state) const {
  AccumulationNotes notes(std::move(state), ranks_kept(input));
  notes.take_back(Said::unable);
  notes.take_back(Said::capped);
  notes.forget_rounds();
  std::string why = why_unable(input.job);
  if (!why.empty()) return unable(std::move(why), std::move(notes));
  AccumulationRound round(input, notes);
  round.begin();
  PolicyOutput output = std::move(round).output();
  output.state = std::move(notes).release();
  return output;
}

}  // namespace cox
