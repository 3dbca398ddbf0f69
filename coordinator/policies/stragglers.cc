#include "coordinator/policies/stragglers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "coordinator/core/portable_math.h"
#include "coordinator/core/text.h"
#include "coordinator/policies/cusum.h"
#include "coordinator/policies/noise.h"
#include "coordinator/policies/rank_runs.h"
#include "coordinator/policies/slowdowns.h"

namespace cox {
namespace {

constexpr double kOwnPastRounds = 32;   // an own past shorter than that says nothing
constexpr double kOwnPastMemory = 128;  // rounds behind its baseline at most
constexpr double kOwnPastMargin = 2.5;  // deviations by which a baseline may be wrong

// One round of the detector.
class Watch {
 public:
  Watch(const PolicyInput& input, StragglerMemory& memory, const Timings& timings)
      : config_(input.config.stragglers),
        own_past_(compares_with_own_past(input.job.world_size)),
        round_(static_cast<double>(input.summary.round.value())),
        shift_(portable_log(config_.slowdown_ratio)),
        memory_(memory),
        runs_(runs_of(timings.ranks)) {}

  void run(const Slowdowns& slowdowns) {
    in_use_ = slowdowns.in_use;
    const LearningRates rates = learning_rates(memory_, runs_);
    for (std::size_t c = 0; c < kChannels; ++c) {
      if (in_use_[c]) add_scores(c, rates, slowdowns.excess[c]);
    }
    const auto named = memory_.named();
    const auto level = memory_.level(0);
    for (const RankRun& run : runs_) {
      for (std::size_t rank = run.rank; rank < run.rank + run.size; ++rank) {
        memory_.reports()[rank] += 1;
        // Nearly all ranks are neither named nor slow.
        if (named[rank] != 0 || !(level[rank] < shift_ / 2)) judge(rank);
      }
    }
  }

  // Who has no work left keeps nobody waiting.
  void release_finished(const std::vector<RankSignal>& reports) {
    for (const RankSignal& report : reports) {
      const auto rank = static_cast<std::size_t>(report.rank.value());
      if (!report.has(SignalFlag::finished) || memory_.named()[rank] == 0) continue;
      release(rank, "has finished");
    }
  }

  std::vector<Reason> findings() && { return std::move(findings_); }

 private:
  // The whole takes half of the false alarms that are allowed, the phases share the rest.
  double rate_of(std::size_t channel) const {
    const double rate = config_.false_alarms_per_rank_step / 2;
    return channel == 0 ? rate : rate / static_cast<double>(kOwnPhases.size());
  }

  CusumTest test_of(std::size_t channel, double variance) const {
    return make_cusum_test(shift_, std::sqrt(variance), rate_of(channel));
  }

  void add_scores(std::size_t channel, const LearningRates& rates,
                  const std::vector<double>& excess) {
    const double variance = learn_noise(memory_, channel, runs_, rates, excess);
    ordinary_[channel] = test_of(channel, variance);
    const double noisy = kNoisyRatio * variance;
    for (const RankRun& run : runs_) {
      const double left = own_past_ ? 1 : add_ordinary_scores(channel, run, noisy, excess);
      if (left > 0) add_other_scores(channel, run, noisy, excess);
    }
  }

  // Those of ranks that are neither named nor noisier than the others, which is nearly all of them:
  // short loops without a branch, of which each takes several ranks at once. Returns how many ranks
  // are left.
  double add_ordinary_scores(std::size_t channel, const RankRun& run, double noisy,
                             const std::vector<double>& excess) {
    const CusumScale test = ordinary_[channel];
    const double round = round_;
    const double* const seen = &excess[run.report];
    const double* const named = &memory_.named()[run.rank];
    const double* const variance = &memory_.variance(channel)[run.rank];
    double* const sum = &memory_.sum(channel)[run.rank];
    double* const since = &memory_.since(channel)[run.rank];
    const auto is_other = [&](std::size_t r) { return (named[r] != 0) | (variance[r] > noisy); };
    for (std::size_t r = 0; r < run.size; ++r) {
      const double before = since[r];
      since[r] = is_other(r) | (sum[r] != 0) ? before : round;
    }
    for (std::size_t r = 0; r < run.size; ++r) {
      const double before = sum[r];
      const double next = cusum_step(before, seen[r] / test.sigma, test.k);
      sum[r] = is_other(r) ? before : next;
    }
    double left = 0;
    for (std::size_t r = 0; r < run.size; ++r) left += is_other(r) ? 1 : 0;
    return left;
  }

  void add_other_scores(std::size_t channel, const RankRun& run, double noisy,
                        const std::vector<double>& excess) {
    const auto named = memory_.named();
    const auto own = memory_.variance(channel);
    for (std::size_t r = 0; r < run.size; ++r) {
      const std::size_t rank = run.rank + r;
      const bool is_noisy = own[rank] > noisy;
      if (!own_past_ && named[rank] == 0 && !is_noisy) continue;
      if (own_past_ && memory_.reports()[rank] == 0) continue;
      const CusumScale test = is_noisy ? make_cusum_scale(shift_, std::sqrt(own[rank]))
                                       : CusumScale(ordinary_[channel]);
      add_score(channel, rank, excess[run.report + r], test);
    }
  }

  void add_score(std::size_t channel, std::size_t rank, double excess, const CusumScale& test) {
    double score = excess / test.sigma;
    if (own_past_) {
      score -= kOwnPastMargin / std::sqrt(std::min(memory_.reports()[rank], kOwnPastMemory));
    }
    if (memory_.named()[rank] == 0) {
      double& sum = memory_.sum(channel)[rank];
      if (sum == 0) memory_.since(channel)[rank] = round_;
      sum = cusum_step(sum, score, test.k);
    } else if (channel == 0) {
      double& gone = memory_.gone()[rank];
      gone = std::max(0.0, gone + test.k - std::clamp(score, -kMaxScore, kMaxScore));
    }
  }

  // The test that belongs to a rank's noise now.
  CusumTest test_for(std::size_t channel, std::size_t rank) const {
    const double own = memory_.variance(channel)[rank];
    const double pooled = ordinary_[channel].sigma * ordinary_[channel].sigma;
    return own > kNoisyRatio * pooled ? test_of(channel, own) : ordinary_[channel];
  }

  void judge(std::size_t rank) {
    if (memory_.named()[rank] != 0) return judge_named(rank);
    const double least =
        own_past_ ? std::max<double>(config_.min_rounds, kOwnPastRounds) : config_.min_rounds;
    if (memory_.reports()[rank] < least || memory_.level(0)[rank] < shift_ / 2) return;
    for (std::size_t c = 0; c < kChannels; ++c) {
      if (!in_use_[c]) continue;
      // The common threshold is the lowest, so most ranks need no second look.
      if (memory_.sum(c)[rank] < ordinary_[c].h) continue;
      const CusumTest test = test_for(c, rank);
      if (memory_.sum(c)[rank] >= test.h) return name(rank, c, test);
    }
  }

  std::size_t costliest_phase(std::size_t rank) const {
    std::size_t costliest = 0;
    for (std::size_t p = 1; p < kOwnPhases.size(); ++p) {
      if (memory_.level(1 + p)[rank] > memory_.level(1 + costliest)[rank]) costliest = p;
    }
    return costliest;
  }

  static const char* phase_name(std::size_t phase) {
    return to_string(kOwnPhases[phase]).data();  // names are literals
  }

  double percent_slower(std::size_t rank) const {
    return 100 * (portable_exp(memory_.level(0)[rank]) - 1);
  }

  // The running level has taken up only a part of a change that is this young.
  double percent_since_onset(std::size_t rank, double rounds) const {
    double left = 1;
    for (double n = 0; n < std::min(rounds, 64.0); ++n) left *= 1 - 1 / kLevelRounds;
    return 100 * (portable_exp(std::min(memory_.level(0)[rank] / (1 - left), 8.0)) - 1);
  }

  void say(ReasonCode code, std::size_t rank, std::string text) {
    Reason reason;
    reason.code = code;
    reason.outcome = Outcome::reported;
    reason.rank = RankId(static_cast<std::int32_t>(rank));
    reason.text = std::move(text);
    findings_.push_back(std::move(reason));
  }

  void name(std::size_t rank, std::size_t channel, const CusumTest& test) {
    const std::size_t phase = costliest_phase(rank);
    const double sum = memory_.sum(channel)[rank];
    const double since = memory_.since(channel)[rank];
    const double rounds = round_ - since + 1;
    memory_.named()[rank] = static_cast<double>(1 + phase);
    memory_.named_round()[rank] = round_;
    memory_.gone()[rank] = 0;
    say(ReasonCode::straggler_found, rank,
        sentence("rank %zu is %.1f %% slower than %s, most of it in %s, since round %.0f (%.0f "
                 "rounds); noise would look like this once in 10^%.0f rank-steps",
                 rank, percent_since_onset(rank, rounds),
                 own_past_ ? "in its own past" : "the other ranks", phase_name(phase), since,
                 rounds, std::floor(cusum_rarity(sum, test.k))));
  }

  void judge_named(std::size_t rank) {
    const CusumTest test = test_for(0, rank);
    if (memory_.gone()[rank] >= test.h) {
      return release(rank, sentence("is no longer slow (%.1f %%)", percent_slower(rank)));
    }
    const auto before = static_cast<std::size_t>(memory_.named()[rank]) - 1;
    const std::size_t now = costliest_phase(rank);
    const double more = memory_.level(1 + now)[rank] - memory_.level(1 + before)[rank];
    if (more < shift_ / 2 || round_ < memory_.named_round()[rank] + config_.min_rounds) return;
    memory_.named()[rank] = static_cast<double>(1 + now);
    memory_.named_round()[rank] = round_;
    say(ReasonCode::straggler_phase_moved, rank,
        sentence("rank %zu, %.1f %% slow, now loses most in %s, before in %s", rank,
                 percent_slower(rank), phase_name(now), phase_name(before)));
  }

  void release(std::size_t rank, const std::string& why) {
    say(ReasonCode::straggler_gone, rank, sentence("rank %zu ", rank) + why);
    memory_.named()[rank] = 0;
    memory_.gone()[rank] = 0;
    for (std::size_t c = 0; c < kChannels; ++c) memory_.sum(c)[rank] = 0;
  }

  const StragglerConfig& config_;
  const bool own_past_;
  const double round_;
  const double shift_;
  StragglerMemory& memory_;
  const std::vector<RankRun> runs_;
  std::array<bool, kChannels> in_use_{};
  std::array<CusumTest, kChannels> ordinary_{};
  std::vector<Reason> findings_;
};

}  // namespace

PolicyOutput Stragglers::propose(const PolicyInput& input, PolicyState state) const {
  StragglerMemory memory(state.take_or_fresh<NumbersState>(), input.job.world_size);
  const std::vector<RankSignal>& reports = input.signals.reports;
  PolicyOutput output;
  if (!reports.empty() && reports.back().rank.value() < input.job.world_size) {
    const Timings timings = timings_of(reports);
    Watch watch(input, memory, timings);
    watch.release_finished(reports);
    const bool own_past = compares_with_own_past(input.job.world_size);
    if (own_past && !timings.ranks.empty()) watch.run(against_own_past(timings, memory));
    if (!own_past && timings.ranks.size() >= 3) {
      watch.run(against_others(timings, input.summary));
    }
    output.findings = std::move(watch).findings();
  }
  output.state = std::move(memory).release();
  return output;
}

}  // namespace cox
