#include "coordinator/policies/accumulation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/policies/accumulation_batch.h"
#include "coordinator/policies/accumulation_measure.h"
#include "coordinator/policies/accumulation_notes.h"
#include "coordinator/policies/accumulation_words.h"

namespace cox {
namespace {

using Said = AccumulationNotes::Said;

constexpr double kMargin = 1.05;    // more than the present anchor, before it is raised
constexpr double kLowerFrom = 0.5;  // of the present anchor would do, before it is lowered

// One look at one round.
class AccumulationRound {
 public:
  AccumulationRound(const PolicyInput& input, AccumulationNotes& notes)
      : input_(input), config_(input.config.accumulation), notes_(notes) {}

  void run() {
    notes_.start_plan(input_.plan.id.number);
    measure_round(input_, notes_);
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

  std::uint64_t now() const { return micro_batches_of(input_.plan, input_.job); }

  void judge() {
    const SyncCost cost = notes_.middle();
    const RankRatios ratios = ratios_now(input_, notes_);
    const double anchor = anchor_now(input_, ratios);
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
  AccumulationNotes notes(state.take_or_fresh<NumbersState>(), ranks_kept(input));
  std::string why = why_unable(input.job);
  if (!why.empty()) return unable(std::move(why), std::move(notes));
  AccumulationRound round(input, notes);
  round.run();
  PolicyOutput output = std::move(round).output();
  output.state = std::move(notes).release();
  return output;
}

PolicyOutput AccumulationPolicy::at_start(const PolicyInput& input, PolicyState state) const {
  AccumulationNotes notes(state.take_or_fresh<NumbersState>(), ranks_kept(input));
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
