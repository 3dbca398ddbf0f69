#include "coordinator/policies/accumulation_measure.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace cox {
namespace {

// Policy `shares` moves the work to where the speed is.
bool follows_speeds(const PolicyInput& input) {
  return input.config.shares.mode == PolicyMode::on && input.config.force.shares.empty();
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

double sum_of(const RankRatios& ratios) {
  double sum = 0;
  for (const double ratio : ratios) sum += ratio;
  return sum;
}

}  // namespace

std::size_t ranks_kept(const PolicyInput& input) {
  return follows_speeds(input) ? static_cast<std::size_t>(input.job.world_size) : 0;
}

RankRatios ratios_now(const PolicyInput& input, AccumulationNotes& notes) {
  if (!follows_speeds(input)) return ratios_of(input.plan, input.job);
  return ratios_of(notes.work_seconds(), notes.samples());
}

double anchor_now(const PolicyInput& input, const RankRatios& ratios) {
  const auto total = static_cast<double>(micro_batches_of(input.plan, input.job));
  return total / std::max(1.0, sum_of(ratios));
}

void measure_round(const PolicyInput& input, AccumulationNotes& notes) {
  if (input.summary.reporting == 0 || !is_ordinary(input)) return;
  const WholeRound whole = whole_round(input, notes);
  if (!std::isfinite(whole.sync)) return;
  const double anchor = anchor_now(input, ratios_now(input, notes));
  // Where work follows speed, each rank's time becomes that of the dearest micro-batches.
  const double each = follows_speeds(input) || anchor == 0
                          ? whole.micro_batch
                          : (whole.work - whole.optimizer) / anchor;
  if (!(each > 0)) return;
  const double target = input.config.accumulation.target_ratio;
  const double room = whole.sync * (1 - target) / target - whole.optimizer;
  notes.add({std::clamp(room / each, 0.0, 1e9), whole.sync, whole.work});
}

}  // namespace cox
