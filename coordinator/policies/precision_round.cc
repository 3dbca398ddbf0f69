#include "coordinator/policies/precision_round.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "coordinator/core/timings.h"

namespace cox {
namespace {

constexpr double kSlowBy = 1.0 / 8;
constexpr double kTimedRounds = 8;
constexpr double kShortOfMemory = 0.97;  // of the limit
constexpr double kFewestSamples = 2;
constexpr double kLongestRest = 64;  // times the cooldown

bool applies_plans(const RankSignal& report) {
  return !report.has(SignalFlag::watching) && !report.has(SignalFlag::finished);
}

double computing(const Timings& timings, std::size_t i) {
  const auto at = [&](Phase phase) { return timings.phases[static_cast<std::size_t>(phase)][i]; };
  return at(Phase::forward) + at(Phase::backward) + at(Phase::compute);
}

}  // namespace

PrecisionRound::PrecisionRound(const PolicyInput& input, PrecisionNotes& notes)
    : input_(input),
      config_(input.config.precision),
      notes_(notes),
      round_(input.signals.round.value()) {
  end_requests();
  take_requests();
  learn_times();
  find_straggler();
  look_at_memory();
  if (input.summary.reporting > 0) read_blocks();
  notes_.applied_before = static_cast<double>(applied_min_);
}

void PrecisionRound::end_requests() {
  std::erase_if(notes_.requests, [this](const StandingRequest& request) {
    const bool is_over = request.until != 0 && round_ >= request.until;
    if (is_over) requests_.push_back({RequestEvent::What::over, request});
    return is_over;
  });
}

void PrecisionRound::take_requests() {
  applied_min_ = std::numeric_limits<std::uint64_t>::max();
  for (const RankSignal& report : input_.signals.reports) {
    if (report.fragment.kind == FragmentKind::precision_request) take_request(report);
    if (!applies_plans(report)) continue;
    applied_min_ = std::min(applied_min_, report.plan_applied);
    if (report.loss_scale > 0 && (smallest_scale_ == 0 || report.loss_scale < smallest_scale_)) {
      smallest_scale_ = report.loss_scale;
    }
    if (report.memory_limit_bytes > 0) {
      memory_ratio_ = std::max(memory_ratio_, static_cast<double>(report.memory_peak_bytes) /
                                                  static_cast<double>(report.memory_limit_bytes));
    }
  }
  const bool nobody = applied_min_ == std::numeric_limits<std::uint64_t>::max();
  if (nobody) applied_min_ = static_cast<std::uint64_t>(notes_.applied_before);
}

void PrecisionRound::take_request(const RankSignal& report) {
  const Result<PrecisionRequest> read = read_precision_request(report.fragment);
  if (!read.ok()) return;
  StandingRequest asked{*read, read->rounds == 0 ? 0 : round_ + read->rounds, report.rank};
  RequestEvent event{RequestEvent::What::taken, asked};
  const bool forces = read->what == PrecisionRequest::What::force;
  const bool every = read->block == PrecisionRequest::kEveryBlock;
  if (!every && read->block >= notes_.blocks.size()) {
    event.what = RequestEvent::What::unknown_block;
  } else if (forces && !input_.job.capabilities.can(read->format)) {
    event.what = RequestEvent::What::not_capable;
  } else if (read->what == PrecisionRequest::What::forbid && read->format == Precision::fp32) {
    event.what = RequestEvent::What::forbidden;
  } else {
    std::erase_if(notes_.requests, [&](const StandingRequest& old) {
      const bool same_block = every || old.what.block == read->block;
      const bool same_wish =
          read->what == PrecisionRequest::What::release ||
          (old.what.what == read->what && (forces || old.what.format == read->format));
      return same_block && same_wish;
    });
    const bool stands = read->what != PrecisionRequest::What::release;
    if (stands && notes_.requests.size() >= kMostRequests) {
      event.what = RequestEvent::What::too_many;
    } else if (stands) {
      notes_.requests.push_back(asked);
    }
  }
  requests_.push_back(event);
}

void PrecisionRound::learn_times() {
  const double median = input_.summary.own_seconds.median;
  if (input_.job.world_size < 3 || !(median > 0)) return;
  const Timings timings = timings_of(input_.signals.reports);
  double usual = 0;  // of computing
  for (const Phase phase : {Phase::forward, Phase::backward, Phase::compute}) {
    usual += input_.summary.phases[static_cast<std::size_t>(phase)].median;
  }
  for (std::size_t i = 0; i < timings.ranks.size(); ++i) {
    const auto r = static_cast<std::size_t>(timings.ranks[i].value());
    if (r >= notes_.ranks.size()) continue;
    RankNotes& rank = notes_.ranks[r];
    const double ratio = std::min(timings.own[i] / median, 100.0);
    const double excess = std::clamp((computing(timings, i) - usual) / median, -100.0, 100.0);
    const double by = rank.timed_rounds == 0 ? 1 : kSlowBy;
    rank.slowness += by * (ratio - rank.slowness);
    rank.in_compute += by * (excess - rank.in_compute);
    rank.timed_rounds = std::min(rank.timed_rounds + 1, 1e6);
  }
}

// Its costliest blocks are the quarter that takes longest where times are known.
void PrecisionRound::find_straggler() {
  const double slow = 1 + 2 * (input_.config.stragglers.slowdown_ratio - 1);
  for (std::size_t r = 0; r < notes_.ranks.size(); ++r) {
    const RankNotes& rank = notes_.ranks[r];
    if (rank.timed_rounds < kTimedRounds || rank.slowness <= slow) continue;
    if (rank.in_compute < (rank.slowness - 1) / 2) continue;
    if (straggler_ && straggler_->slowness >= rank.slowness) continue;
    straggler_ = ComputeStraggler{RankId(static_cast<std::int32_t>(r)), rank.slowness};
  }
  if (!straggler_ || input_.job.precision.blocks.empty()) return;
  costly_.resize(notes_.blocks.size());
  std::iota(costly_.begin(), costly_.end(), std::size_t{0});
  const auto cost = [this](std::size_t b) {
    return step_us(input_.job, b, input_.plan.precision[b]);
  };
  std::stable_sort(costly_.begin(), costly_.end(),
                   [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
  costly_.resize((costly_.size() + 3) / 4);
}

void PrecisionRound::look_at_memory() {
  if (input_.summary.reporting == 0) return;
  notes_.pressed = memory_ratio_ > kShortOfMemory ? 1 : 0;
}

void PrecisionRound::read_blocks() {
  for (std::size_t b = 0; b < notes_.blocks.size(); ++b) read_block(b);
  lower_some();
}

void PrecisionRound::read_block(std::size_t block) {
  BlockNotes& notes = notes_.blocks[block];
  const Precision now = input_.plan.precision[block];
  const double seen = 1 + static_cast<double>(now);
  if (notes.seen != seen) {
    if (notes.seen != 0) notes.changed_round = 1 + static_cast<double>(round_);
    notes.seen = seen;
    notes.changed_in = static_cast<double>(input_.plan.id.number);
    notes.good_since = notes.good_samples = notes.told = 0;
    notes.wish = 0;
  }
  const Leeway leeway = leeway_of(input_.job, config_, notes_.requests, block);
  const bool is_settled = notes_.applied_before >= notes.changed_in;
  if (is_settled && block < input_.signals.evidence.size()) {
    if (auto trouble = trouble_of(block, now)) {
      const bool can_move = leeway.held == Held::free && trouble->to != now;
      trouble->leeway = leeway;
      if (can_move) {
        note_trouble(notes, *trouble);
        notes.wish = 1 + static_cast<double>(safer_than(now, leeway.allowed));
      } else if (std::exchange(notes.told, 1.0) == 0) {
        held_.push_back(*trouble);
      }
    }
  }
  note_signals(block, notes, is_settled);
  choose(block, leeway);
}

std::optional<BlockMove> PrecisionRound::trouble_of(std::size_t block, Precision now) const {
  const BlockEvidence& seen = input_.signals.evidence[block];
  BlockMove move =
      move_of(block, safer_than(now, input_.job.capabilities.precisions), FormatCause::none);
  const auto blame = [&](FormatCause cause, double amount, RankId rank) {
    move.cause = cause;
    move.amount = amount;
    move.rank = rank;
    return move;
  };
  // A scaler can still help against what overflows in the backward pass in fp16.
  const bool at_floor =
      smallest_scale_ > 0 && smallest_scale_ <= input_.plan.scaler.min_scale * 1.0001f;
  if (seen.overflow_forward > 0 && now != Precision::fp32) {
    return blame(FormatCause::overflow_forward, seen.overflow_forward, seen.rank_of_overflow);
  }
  const bool backward_counts =
      now == Precision::bf16 || now == Precision::fp8 || (now == Precision::fp16 && at_floor);
  if (seen.overflow_backward > 0 && backward_counts) {
    return blame(FormatCause::overflow_backward, seen.overflow_backward, seen.rank_of_overflow);
  }
  if (now != Precision::fp8) return std::nullopt;
  const double saturated = worst_saturated_ratio(seen);
  if (saturated > config_.leave_saturated_ratio) {
    return blame(FormatCause::saturated, saturated, seen.saturated_ratio.rank);
  }
  const double underflow = worst_underflow_ratio(seen);
  if (underflow > config_.leave_underflow_ratio) {
    return blame(FormatCause::underflow, underflow, seen.underflow_ratio.rank);
  }
  const std::optional<double> noise = least_noise_ratio(seen);
  if (noise && *noise < config_.leave_noise_ratio) {
    return blame(FormatCause::noise, *noise, seen.signal_over_noise.rank);
  }
  return std::nullopt;
}

void PrecisionRound::note_trouble(BlockNotes& notes, const BlockMove& trouble) {
  const bool is_new = notes.wish == 0;
  notes.good_since = notes.good_samples = 0;
  if (!is_new) return;
  notes.cause = static_cast<double>(trouble.cause);
  notes.amount = trouble.amount;
  notes.culprit = trouble.rank.value();
  const double longer = std::min(std::exp2(std::min(notes.failures, 60.0)), kLongestRest);
  notes.failures = std::min(notes.failures + 1, 1e6);
  notes.rest_until = static_cast<double>(round_) + config_.cooldown_rounds * longer;
}

void PrecisionRound::note_signals(std::size_t block, BlockNotes& notes, bool is_settled) {
  if (!is_settled || block >= input_.signals.evidence.size()) return;
  if (input_.summary.nonfinite_ranks > 0 || notes.wish != 0) return;
  const BlockEvidence& seen = input_.signals.evidence[block];
  const std::optional<double> noise = least_noise_ratio(seen);
  if (!noise || seen.has_overflow()) return;
  notes.noise = *noise;
  const bool good = notes.noise >= config_.enter_noise_ratio &&
                    worst_underflow_ratio(seen) <= config_.enter_underflow_ratio &&
                    seen.saturated == 0;
  if (!good) {
    notes.good_since = notes.good_samples = 0;
    return;
  }
  if (notes.good_since == 0) notes.good_since = 1 + static_cast<double>(round_);
  notes.good_samples = std::min(notes.good_samples + 1, 1e6);
}

bool PrecisionRound::signals_are_good(const BlockNotes& notes, bool is_first) const {
  if (notes.good_since == 0 || notes.good_samples < kFewestSamples) return false;
  const double rounds = static_cast<double>(round_) + 2 - notes.good_since;
  const std::uint32_t patience = config_.patience_rounds;
  return rounds >= (is_first ? (patience + 1) / 2 : patience);
}

std::uint64_t PrecisionRound::free_from(const BlockNotes& notes) const {
  const auto rest = static_cast<std::uint64_t>(notes.rest_until);
  if (notes.changed_round == 0) return rest;
  const auto changed = static_cast<std::uint64_t>(notes.changed_round) - 1;
  return std::max<std::uint64_t>(rest, changed + config_.dwell_rounds);
}

BlockMove PrecisionRound::move_of(std::size_t block, Precision to, FormatCause cause) const {
  BlockMove move;
  move.block = block;
  move.from = input_.plan.precision[block];
  move.to = to;
  move.cause = cause;
  return move;
}

void PrecisionRound::choose(std::size_t block, const Leeway& leeway) {
  BlockNotes& notes = notes_.blocks[block];
  const Precision now = input_.plan.precision[block];
  const auto go = [&](Precision to, FormatCause cause) {
    BlockMove move = move_of(block, to, cause);
    move.leeway = leeway;
    moves_.push_back(move);
  };
  if (leeway.held != Held::free || !contains(leeway.allowed, now)) {
    const Precision to =
        nearest_safe(leeway.held == Held::free ? now : leeway.wanted, leeway.allowed);
    notes.wish = 0;
    notes.guest = 1;
    if (to != now) go(to, FormatCause::rule);
    return;
  }
  if (notes.wish != 0) {
    const auto to = static_cast<Precision>(static_cast<int>(notes.wish) - 1);
    go(nearest_safe(to, leeway.allowed), static_cast<FormatCause>(static_cast<int>(notes.cause)));
    moves_.back().amount = notes.amount;
    moves_.back().rank = RankId(static_cast<std::int32_t>(notes.culprit));
    return;
  }
  const Precision base = base_format(input_.job, config_, leeway.allowed, block).format;
  if (notes.guest != 0) {
    notes.changed_round = 0;
    const bool may_go = now == Precision::fp8 || base == Precision::fp32 ||
                        static_cast<double>(round_) >= notes.rest_until;
    if (now != base && may_go) return go(base, FormatCause::rule);
    notes.guest = 0;
  }
  const bool is_free = round_ >= free_from(notes);
  if (now == Precision::fp16 && base != Precision::fp16) return go(base, FormatCause::rule);
  if (now == Precision::fp32 && base == Precision::fp32 && notes_.pressed != 0 && is_free &&
      contains(leeway.allowed, Precision::bf16)) {
    go(Precision::bf16, FormatCause::memory);
    moves_.back().amount = memory_ratio_;
    return;
  }
  if (now == Precision::fp32 && base != now && is_free) return go(base, FormatCause::rested);
  if (now == Precision::bf16 && base == Precision::fp16 && is_free && notes.failures > 0) {
    return go(base, FormatCause::rested);
  }
  if (now != Precision::fp8) choose_lower(block, leeway, base);
}

void PrecisionRound::choose_lower(std::size_t block, const Leeway& leeway, Precision base) {
  BlockNotes& notes = notes_.blocks[block];
  if (base == Precision::fp16 || notes.good_since == 0) return;
  const bool is_first = std::find(costly_.begin(), costly_.end(), block) != costly_.end();
  if (!signals_are_good(notes, is_first)) return;
  const FormatVeto veto =
      fp8_veto(input_.job, config_, leeway.allowed, block, input_.plan.precision[block]);
  if (veto != FormatVeto::none || round_ < free_from(notes)) {
    const bool told_at_start = veto != FormatVeto::none && notes.changed_round == 0 &&
                               input_.plan.precision[block] == Precision::bf16;
    if (std::exchange(notes.told, 1.0) == 0 && !told_at_start)
      waits_.push_back({block, veto, free_from(notes)});
    return;
  }
  BlockMove move = move_of(block, Precision::fp8, FormatCause::signals_good);
  move.amount = notes.noise;
  move.for_straggler = is_first;
  move.rank = is_first ? straggler_->rank : RankId(-1);
  move.leeway = leeway;
  ready_.push_back(move);
}

void PrecisionRound::lower_some() {
  const auto gain = [this](const BlockMove& move) {
    return step_us(input_.job, move.block, move.from) - step_us(input_.job, move.block, move.to);
  };
  std::stable_sort(ready_.begin(), ready_.end(), [&](const BlockMove& a, const BlockMove& b) {
    if (a.for_straggler != b.for_straggler) return a.for_straggler;
    return gain(a) > gain(b);
  });
  const std::size_t most = (notes_.blocks.size() + 3) / 4;
  if (ready_.size() > most) ready_.resize(most);
  moves_.insert(moves_.end(), ready_.begin(), ready_.end());
}

}  // namespace cox
