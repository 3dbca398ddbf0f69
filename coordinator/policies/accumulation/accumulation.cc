#include "coordinator/policies/accumulation/accumulation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "coordinator/core/selection.h"
#include "coordinator/core/text.h"
#include "coordinator/policies/accumulation/model.h"

namespace cox {
namespace {

constexpr std::size_t kWindow = 32;  // rounds looked back
constexpr double kMargin = 1.05;     // more than the present anchor, before it is raised
constexpr double kLowerFrom = 0.5;   // of the present anchor would do, before it is lowered

struct AccumulationState {
  static constexpr std::uint32_t kVersion = 2;
  bool told_unable = false;
  bool told_capped = false;
  std::uint64_t plan = 0;        // number of the plan that the rounds belong to
  std::uint32_t rounds = 0;      // measured under it
  std::vector<SyncCost> recent;  // the last ones, a ring: round n in place n % kWindow

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit(self.told_unable);
    visit(self.told_capped);
    visit(self.plan);
    visit(self.rounds);
    visit(self.recent);
  }
  bool is_sane() const {
    const auto is_amount = [](double amount) { return amount >= 0 && amount <= 1e300; };
    return recent.size() == std::min<std::size_t>(rounds, kWindow) &&
           std::ranges::all_of(recent, [&](const SyncCost& cost) {
             return is_amount(cost.anchor) && is_amount(cost.sync_seconds) &&
                    is_amount(cost.work_seconds);
           });
  }
};

void forget_rounds(AccumulationState& state) {
  state.rounds = 0;
  state.recent.clear();
}

void add_round(AccumulationState& state, const SyncCost& cost) {
  if (state.recent.size() < kWindow) {
    state.recent.push_back(cost);
  } else {
    state.recent[state.rounds % kWindow] = cost;
  }
  // Counting on from a multiple of the window keeps the place and bounds the number.
  constexpr std::uint32_t kMostRounds = 1u << 30;
  state.rounds = state.rounds + 1 < kMostRounds ? state.rounds + 1 : kMostRounds - kWindow;
}

// A value that was measured: the mean of two in the middle is neither, right after a change.
double lower_median(const std::vector<SyncCost>& costs, double SyncCost::*part) {
  std::vector<double> values;
  for (const SyncCost& cost : costs) values.push_back(cost.*part);
  return select(values, (values.size() - 1) / 2).lower;
}

// ---- Sentences.

std::string explain_unable(const JobFacts& job) {
  if (job.micro_batch == 0) {
    return "accumulation needs steps of whole micro-batches, and this job gives no size of them; "
           "the batch stays as it is";
  }
  if (!job.capabilities.accumulation) {
    return "accumulation needs a loop that takes the samples of a step from the plan, as "
           "step.accumulate() of the Trainer does; the batch stays as it is";
  }
  return {};
}

// "synchronising takes 23.1 % of a step (4.6 ms of 20.1 ms)".
std::string explain_overhead(const SyncCost& cost) {
  const double step = cost.sync_seconds + cost.work_seconds;
  return sentence("synchronising takes %.1f %% of a step (%.3g of %.3g ms)",
                  step > 0 ? 100 * cost.sync_seconds / step : 0, 1e3 * cost.sync_seconds,
                  1e3 * step);
}

// The batch of that many micro-batches against the job's, and what common rules make of it for the
// learning rate. A hint: nothing changes the learning rate.
std::string explain_batch(std::uint64_t micro_batches, const JobFacts& job) {
  const auto samples = static_cast<double>(micro_batches * job.micro_batch);
  if (job.global_batch == 0) return sentence("a step has %.0f samples", samples);
  if (micro_batches == job_micro_batches(job)) {
    return sentence("a step has the job's own batch of %.0f samples",
                    static_cast<double>(job.global_batch));
  }
  const double factor = samples / static_cast<double>(job.global_batch);
  return sentence(
      "a step has %.0f samples, %.4g times the job's batch; for its learning rate the linear rule "
      "gives x%.4g, the square root rule x%.4g",
      samples, factor, factor, std::sqrt(factor));
}

// ---- Decisions.

PolicyOutput finding_of(ReasonCode code, std::string text) {
  PolicyOutput output;
  Reason& reason = output.findings.emplace_back();
  reason.code = code;
  reason.text = std::move(text);
  return output;
}

PolicyOutput proposal_of(const JobFacts& job, std::uint64_t micro_batches, ReasonCode code,
                         const std::string& why) {
  PolicyOutput output;
  const bool is_own = micro_batches == job_micro_batches(job);
  Proposal& proposal = output.proposals.emplace_back();
  proposal.change.emplace<SetBatch>().step_samples = is_own ? 0 : micro_batches * job.micro_batch;
  proposal.reason.code = code;
  proposal.reason.text = why + explain_batch(micro_batches, job);
  return output;
}

PolicyOutput unable(std::string why, AccumulationState& state) {
  if (std::exchange(state.told_unable, true)) return {};
  return finding_of(ReasonCode::not_capable, std::move(why));
}

PolicyOutput capped(const AccumulationConfig& config, const SyncCost& cost,
                    AccumulationState& state) {
  if (std::exchange(state.told_capped, true)) return {};
  return finding_of(
      ReasonCode::accumulation_kept,
      explain_overhead(cost) +
          sentence(", above the target of %.3g %%, which needs %.0f micro-batches of "
                   "the slowest rank; accumulation.max_anchor is %u, so the batch "
                   "stays",
                   100 * config.target_ratio, std::ceil(cost.anchor), config.max_anchor));
}

PolicyOutput judge(const PolicyInput& input, AccumulationState& state) {
  const AccumulationConfig& config = input.config.accumulation;
  const SyncCost cost{lower_median(state.recent, &SyncCost::anchor),
                      lower_median(state.recent, &SyncCost::sync_seconds),
                      lower_median(state.recent, &SyncCost::work_seconds)};
  const RankRatios ratios = rank_ratios(input);
  const double anchor = present_anchor(input, ratios);
  const bool is_dear = cost.anchor > kMargin * anchor;
  const bool is_cheap = cost.anchor < kLowerFrom * anchor;
  if (!is_dear) state.told_capped = false;
  if (!is_dear && !is_cheap) return {};
  const double wanted =
      std::clamp<double>(std::ceil(kMargin * cost.anchor), config.min_anchor, config.max_anchor);
  const std::uint64_t now = micro_batches_of(input.plan, input.job);
  const std::uint64_t next = step_micro_batches(static_cast<std::uint64_t>(wanted), ratios,
                                                input.job, input.config.shares);
  if (is_dear && next <= now) return capped(config, cost, state);
  if (is_cheap && next >= now) return {};
  return proposal_of(
      input.job, next, is_dear ? ReasonCode::accumulation_raised : ReasonCode::accumulation_lowered,
      explain_overhead(cost) + (is_dear ? ", above" : ", below half of") +
          sentence(" the target of %.3g %%: the slowest rank computes %.0f micro-batches instead "
                   "of %.3g; ",
                   100 * config.target_ratio, wanted, anchor));
}

// Before the first round: no fewer micro-batches than the settings want.
PolicyOutput first_batch(const PolicyInput& input) {
  const AccumulationConfig& config = input.config.accumulation;
  const RankRatios ratios = ratios_of(input.plan, input.job);
  const std::uint64_t least =
      step_micro_batches(config.min_anchor, ratios, input.job, input.config.shares);
  const std::uint64_t now = micro_batches_of(input.plan, input.job);
  if (now < least) {
    return proposal_of(
        input.job, least, ReasonCode::accumulation_start,
        sentence("every rank starts with at least %u micro-batches a step; ", config.min_anchor));
  }
  return finding_of(
      ReasonCode::accumulation_start,
      sentence("synchronising may take %.3g %% of a step; it starts with %.0f micro-batches: ",
               100 * config.target_ratio, static_cast<double>(now)) +
          explain_batch(now, input.job));
}

PolicyOutput look_at_round(const PolicyInput& input, AccumulationState& state) {
  const std::uint64_t plan = input.plan.id.number;
  if (std::exchange(state.plan, plan) != plan) forget_rounds(state);
  if (const auto cost = sync_cost(input)) add_round(state, *cost);
  const std::uint32_t settle = std::max(1u, input.config.accumulation.settle_rounds);
  return state.rounds >= settle ? judge(input, state) : PolicyOutput{};
}

}  // namespace

PolicyOutput AccumulationPolicy::propose(const PolicyInput& input, PolicyState state) const {
  auto mine = state.take_or_fresh<AccumulationState>();
  std::string why = explain_unable(input.job);
  PolicyOutput output = why.empty() ? look_at_round(input, mine) : unable(std::move(why), mine);
  output.state = PolicyState::of(std::move(mine));
  return output;
}

PolicyOutput AccumulationPolicy::at_start(const PolicyInput& input, PolicyState state) const {
  auto mine = state.take_or_fresh<AccumulationState>();
  mine.told_unable = mine.told_capped = false;
  forget_rounds(mine);
  std::string why = explain_unable(input.job);
  PolicyOutput output = why.empty() ? first_batch(input) : unable(std::move(why), mine);
  output.state = PolicyState::of(std::move(mine));
  return output;
}

}  // namespace cox
