#include "coordinator/policies/stragglers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "coordinator/core/portable_math.h"
#include "coordinator/policies/cusum.h"
#include "coordinator/policies/noise.h"
#include "coordinator/policies/sentence.h"
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
        memory_(memory) {
    for (const RankId rank : timings.ranks) {
      ranks_.push_back(static_cast<std::size_t>(rank.value()));
    }
  }

  void run(const Slowdowns& slowdowns) {
    in_use_ = slowdowns.in_use;
    for (std::size_t c = 0; c < kChannels; ++c) {
      if (in_use_[c]) add_scores(c, slowdowns.excess[c]);
    }
    for (const std::size_t rank : ranks_) {
      memory_.reports()[rank] += 1;
      judge(rank);
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

  void add_scores(std::size_t channel, const std::vector<double>& excess) {
    const double variance = learn_noise(memory_, channel, ranks_, excess);
    const CusumTest ordinary = test_of(channel, variance);
    ordinary_[channel] = ordinary;
    const auto own = memory_.variance(channel);
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      const std::size_t rank = ranks_[i];
      if (memory_.reports()[rank] == 0 && own_past_) continue;
      const bool noisy = own[rank] > kNoisyRatio * variance;
      add_score(channel, rank, excess[i], noisy ? test_of(channel, own[rank]) : ordinary);
    }
  }

  void add_score(std::size_t channel, std::size_t rank, double excess, const CusumTest& test) {
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
  std::vector<std::size_t> ranks_;
  std::array<bool, kChannels> in_use_{};
  std::array<CusumTest, kChannels> ordinary_{};
  std::vector<Reason> findings_;
};

}  // namespace

PolicyOutput Stragglers::propose(const PolicyInput& input, PolicyState state) const {
  StragglerMemory memory(std::move(state), input.job.world_size);
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
