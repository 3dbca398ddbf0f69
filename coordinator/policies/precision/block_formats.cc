#include "coordinator/policies/precision/block_formats.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coordinator/core/share_units.h"
#include "coordinator/core/summary.h"
#include "coordinator/estimates/estimates.h"

namespace cox {
namespace {

constexpr PrecisionSet kEveryFormat = (1u << kPrecisions) - 1;
constexpr double kShortOfMemory = 0.97;  // of the limit
constexpr std::uint32_t kFewestSamples = 2;
constexpr std::uint32_t kLongestRest = 6;  // doublings of the cooldown
constexpr std::uint32_t kManyTimes = 1'000'000;

// --- the formats of a block -------------------------------------------------------------------

bool concerns(const StandingRequest& request, std::size_t block) {
  return request.what.block == PrecisionRequest::kEveryBlock || request.what.block == block;
}

Leeway held(Leeway leeway, Held by, Precision wanted) {
  leeway.held = by;
  leeway.wanted = wanted;
  leeway.allowed = only(nearest_safe(wanted, leeway.allowed));
  return leeway;
}

// Returns the next safer format, or `now` itself when there is none.
Precision safer_than(Precision now, PrecisionSet allowed) {
  if (now == Precision::fp32) return now;
  if (now != Precision::bf16 && contains(allowed, Precision::bf16)) return Precision::bf16;
  return Precision::fp32;
}

// Returns why `format` is not worth while instead of `other` on the devices of this job.
FormatVeto veto_of(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                   std::size_t block, Precision format, Precision other) {
  if (!job.capabilities.can(format)) return FormatVeto::not_capable;
  if (!contains(allowed, format)) return FormatVeto::not_allowed;
  if (config.emulate) return FormatVeto::none;
  if (contains(job.precision.emulated, format)) return FormatVeto::imitated;
  const std::int64_t now = step_us(job, block, other);
  const std::int64_t then = step_us(job, block, format);
  if (now <= 0 || then <= 0) return FormatVeto::not_measured;
  const double most = static_cast<double>(now) * (1 - config.smallest_gain_ratio);
  return static_cast<double>(then) <= most && then < now ? FormatVeto::none
                                                         : FormatVeto::not_faster;
}

// --- what a round teaches ---------------------------------------------------------------------

// Signs of the round that concern all blocks.
struct RoundSigns {
  std::uint64_t applied_min = 0;         // oldest plan in force on a rank
  std::uint64_t applied_before = 0;      // the same, in the last round
  float smallest_scale = 0;              // of the loss, over ranks; 0 = none at work
  double memory_ratio = 0;               // largest peak over limit
  bool short_of_memory = false;          // at least one rank is
  bool computes_slowly = false;          // at least one rank is slow in computing
  std::optional<RankId> straggler{};     // the rank for which its costliest blocks change first
  std::vector<std::size_t> costliest{};  // the costliest blocks
};

RoundSigns signs_of(const PolicyInput& input, const PrecisionState& state) {
  const StepSummary& summary = input.summary;
  RoundSigns signs;
  signs.applied_min = summary.applying > 0 ? summary.plan_applied_min : state.applied_before;
  signs.applied_before = state.applied_before;
  signs.smallest_scale = summary.loss_scale_min;
  signs.memory_ratio = summary.memory_peak_ratio;
  signs.short_of_memory =
      summary.reporting > 0 ? signs.memory_ratio > kShortOfMemory : state.short_of_memory;
  return signs;
}

std::vector<RequestEvent> end_requests(RoundId now, std::vector<StandingRequest>& standing) {
  std::vector<RequestEvent> over;
  std::erase_if(standing, [&](const StandingRequest& request) {
    const bool is_over = request.until.value() != 0 && now >= request.until;
    if (is_over) over.push_back({RequestEvent::What::over, request});
    return is_over;
  });
  return over;
}

RequestEvent::What verdict_on(const JobFacts& job, const PrecisionRequest& asked) {
  using What = PrecisionRequest::What;
  const bool every = asked.block == PrecisionRequest::kEveryBlock;
  if (!every && asked.block >= job.blocks.size()) return RequestEvent::What::unknown_block;
  if (asked.what == What::force && !job.capabilities.can(asked.format)) {
    return RequestEvent::What::not_capable;
  }
  const bool forbids_fp32 = asked.what == What::forbid && asked.format == Precision::fp32;
  return forbids_fp32 ? RequestEvent::What::forbidden : RequestEvent::What::taken;
}

// A newer request replaces the requests that it contradicts; a release ends them.
RequestEvent take_request(const PolicyInput& input, const StandingRequest& asked,
                          std::vector<StandingRequest>& standing) {
  using What = PrecisionRequest::What;
  RequestEvent event{verdict_on(input.job, asked.what), asked};
  if (event.what != RequestEvent::What::taken) return event;
  const PrecisionRequest& what = asked.what;
  std::erase_if(standing, [&](const StandingRequest& old) {
    const bool same_block =
        what.block == PrecisionRequest::kEveryBlock || old.what.block == what.block;
    const bool same_format = what.what == What::force || old.what.format == what.format;
    return same_block &&
           (what.what == What::release || (old.what.what == what.what && same_format));
  });
  if (what.what == What::release) return event;
  if (standing.size() >= kMostRequests) {
    event.what = RequestEvent::What::too_many;
  } else {
    standing.push_back(asked);
  }
  return event;
}

std::vector<RequestEvent> learn_requests(const PolicyInput& input, PrecisionState& state) {
  const RoundId now = input.summary.round;
  std::vector<RequestEvent> events = end_requests(now, state.requests);
  if (input.summary.fragments_of(FragmentKind::precision_request) == 0) return events;
  for (const RankSignal& report : input.signals.reports) {
    if (report.fragment.kind != FragmentKind::precision_request) continue;
    const Result<PrecisionRequest> asked = read_precision_request(report.fragment);
    if (!asked.ok()) continue;
    const RoundId until(asked->rounds == 0 ? 0 : now.value() + asked->rounds);
    events.push_back(take_request(input, {*asked, until, report.rank}, state.requests));
  }
  return events;
}

// Returns the slowest of the ranks that lose most of their time in computing, or null. A single
// rank delays no other, and its own past cannot tell slowness from another format.
const SlowRank* find_straggler(const Estimates& estimates) {
  const SlowRank* straggler = nullptr;
  if (estimates.slowness.reports.size() < 2) return straggler;
  for (const SlowRank& slow : estimates.slowness.slow) {
    const Phase phase = slow.phase();
    const bool computes =
        phase == Phase::forward || phase == Phase::backward || phase == Phase::compute;
    if (!computes) continue;
    if (!straggler || slow.slowdown_ratio > straggler->slowdown_ratio) straggler = &slow;
  }
  return straggler;
}

// Returns whether shares can balance a slow rank and do so: the rank takes no longer than the
// others.
bool is_made_up_for(const PolicyInput& input, const SlowRank& slow) {
  const bool can_share = input.config.shares.mode == PolicyMode::on &&
                         input.config.force.shares.empty() && input.job.capabilities.shares &&
                         samples_of_step(input.job, input.plan) > 0;
  if (!can_share) return false;
  if (input.plan.shares.empty()) return true;  // try shares first
  const double ratio_then = 1 + (slow.slowdown_ratio - 1) / 2;
  return std::ranges::none_of(input.summary.worst, [&](const WorstRank& worst) {
    return worst.rank == slow.rank && worst.slowdown_ratio > ratio_then;
  });
}

// Returns up to a quarter of the blocks: the most expensive ones among those that 8 bits, imitated
// or not, were measured to make faster. REQUIRES: the times of blocks are known.
std::vector<std::size_t> costliest_blocks(const PolicyInput& input) {
  std::vector<std::size_t> blocks(input.job.blocks.size());
  std::iota(blocks.begin(), blocks.end(), std::size_t{0});
  const auto cost = [&input](std::size_t b) {
    return step_us(input.job, b, input.plan.precision[b]);
  };
  std::erase_if(blocks, [&](std::size_t b) {
    const std::int64_t then = step_us(input.job, b, Precision::fp8);
    return then <= 0 || then >= cost(b);
  });
  std::ranges::stable_sort(blocks, [&](std::size_t a, std::size_t b) { return cost(a) > cost(b); });
  blocks.resize(std::min(blocks.size(), (input.job.blocks.size() + 3) / 4));
  return blocks;
}

// --- one block --------------------------------------------------------------------------------

// The outcome of a round for one block.
struct BlockReading {
  BlockPrecisionState state;
  std::optional<BlockMove> move;   // to be made now
  std::optional<BlockMove> ready;  // to 8 bits, when the block's turn comes
  std::optional<BlockMove> held;   // trouble in a format that settings or a request hold
  std::optional<BlockWaits> waits;
};

BlockMove move_of(const PolicyInput& input, std::size_t block, const FormatTrouble& why,
                  const Leeway& leeway) {
  return {block, input.plan.precision[block], why.to, why.cause, why.amount, why.rank, false,
          leeway};
}

// Returns the worst trouble in the round's evidence for a block. `to` stays unset.
std::optional<FormatTrouble> trouble_in(const PolicyInput& input, const RoundSigns& signs,
                                        std::size_t block) {
  const PrecisionConfig& config = input.config.precision;
  const BlockEvidence& seen = input.signals.evidence[block];
  const Precision now = input.plan.precision[block];
  const auto blame = [](FormatCause cause, double amount, RankId rank) {
    return FormatTrouble{Precision::fp32, cause, amount, rank};
  };
  // A scaler can still help against overflows of the backward pass in fp16.
  const bool at_floor =
      signs.smallest_scale > 0 && signs.smallest_scale <= input.plan.scaler.min_scale * 1.0001f;
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
  if (saturated > config.leave_saturated_ratio) {
    return blame(FormatCause::saturated, saturated, seen.saturated_ratio.rank);
  }
  const double underflow = worst_underflow_ratio(seen);
  if (underflow > config.leave_underflow_ratio) {
    return blame(FormatCause::underflow, underflow, seen.underflow_ratio.rank);
  }
  const std::optional<double> noise = least_noise_ratio(seen);
  if (noise && *noise < config.leave_noise_ratio) {
    return blame(FormatCause::noise, *noise, seen.signal_over_noise.rank);
  }
  return std::nullopt;
}

// Remembers the first evidence as the cause. Each rest is twice as long as the one before.
BlockPrecisionState with_trouble(const PolicyInput& input, const FormatTrouble& trouble,
                                 BlockPrecisionState state) {
  state.good_since.reset();
  state.good_samples = 0;
  if (state.trouble) {
    state.trouble->to = trouble.to;
    return state;
  }
  state.trouble = trouble;
  const std::uint64_t longer = std::uint64_t{1} << std::min(state.failures, kLongestRest);
  state.failures = std::min(state.failures + 1, kManyTimes);
  state.rest_until =
      RoundId(input.summary.round.value() + input.config.precision.cooldown_rounds * longer);
  return state;
}

BlockPrecisionState with_signals(const PolicyInput& input, std::size_t block,
                                 BlockPrecisionState state) {
  if (input.summary.nonfinite_ranks > 0 || state.trouble) return state;
  const PrecisionConfig& config = input.config.precision;
  const BlockEvidence& seen = input.signals.evidence[block];
  const std::optional<double> noise = least_noise_ratio(seen);
  if (!noise || seen.has_overflow()) return state;
  state.noise = *noise;
  const bool good = state.noise >= config.enter_noise_ratio &&
                    worst_underflow_ratio(seen) <= config.enter_underflow_ratio &&
                    seen.saturated == 0;
  if (good) {
    if (!state.good_since) state.good_since = input.summary.round;
    state.good_samples = std::min(state.good_samples + 1, kManyTimes);
  } else {
    state.good_since.reset();
    state.good_samples = 0;
  }
  return state;
}

BlockPrecisionState with_format(const PolicyInput& input, std::size_t block,
                                BlockPrecisionState state) {
  const Precision now = input.plan.precision[block];
  if (state.seen == now) return state;
  if (state.seen) state.changed_round = input.summary.round;
  state.seen = now;
  state.changed_in = input.plan.id.number;
  state.good_since.reset();
  state.good_samples = 0;
  state.told = false;
  state.trouble.reset();
  state.for_straggler = now == Precision::fp8 && state.for_straggler;
  return state;
}

// Evidence counts if it covers only rounds in the block's format.
void take_evidence(const PolicyInput& input, const RoundSigns& signs, std::size_t block,
                   const Leeway& leeway, BlockReading& reading) {
  BlockPrecisionState& state = reading.state;
  const bool is_settled = signs.applied_before >= state.changed_in;
  if (!is_settled || block >= input.signals.evidence.size()) return;
  if (auto trouble = trouble_in(input, signs, block)) {
    const Precision now = input.plan.precision[block];
    const Precision safer = safer_than(now, input.job.capabilities.precisions);
    if (leeway.held == Held::free && safer != now) {
      trouble->to = safer_than(now, leeway.allowed);
      state = with_trouble(input, *trouble, std::move(state));
    } else if (!std::exchange(state.told, true)) {
      trouble->to = safer;
      reading.held = move_of(input, block, *trouble, leeway);
    }
  }
  state = with_signals(input, block, std::move(state));
}

// Returns the first round in which a block may go to a lower format.
RoundId free_from(const PrecisionConfig& config, const BlockPrecisionState& state) {
  if (!state.changed_round) return state.rest_until;
  return std::max(state.rest_until, RoundId(state.changed_round->value() + config.dwell_rounds));
}

bool signals_are_good(const PolicyInput& input, const BlockPrecisionState& state, bool is_first) {
  if (!state.good_since || state.good_samples < kFewestSamples) return false;
  const std::uint64_t rounds = input.summary.round.value() + 1 - state.good_since->value();
  const std::uint32_t patience = input.config.precision.patience_rounds;
  return rounds >= (is_first ? (patience + 1) / 2 : patience);
}

// Chooses for a block that settings and requests leave in 16 or 32 bits by choice.
void choose_lower(const PolicyInput& input, const RoundSigns& signs, std::size_t block,
                  const Leeway& leeway, BlockReading& reading) {
  BlockPrecisionState& state = reading.state;
  const auto& costliest = signs.costliest;
  const bool is_first = std::ranges::find(costliest, block) != costliest.end();
  if (!signals_are_good(input, state, is_first)) return;
  const PrecisionConfig& config = input.config.precision;
  const Precision now = input.plan.precision[block];
  const FormatVeto veto = fp8_veto(input.job, config, leeway.allowed, block, now);
  const RoundId free = free_from(config, state);
  if (veto != FormatVeto::none || input.summary.round < free) {
    const bool told_at_start =
        veto != FormatVeto::none && !state.changed_round && now == Precision::bf16;
    const bool was_told = std::exchange(state.told, true);
    if (!was_told && !told_at_start) reading.waits = BlockWaits{block, veto, free};
    return;
  }
  const RankId straggler = is_first ? *signs.straggler : RankId(-1);
  const FormatTrouble why{Precision::fp8, FormatCause::signals_good, state.noise, straggler};
  reading.ready = move_of(input, block, why, leeway);
  reading.ready->for_straggler = is_first;
  state.for_straggler = is_first;
}

// A format that was chosen for a straggler ends with the straggler.
std::optional<BlockMove> move_back(const PolicyInput& input, const RoundSigns& signs,
                                   std::size_t block, const Leeway& leeway, Precision base,
                                   const BlockPrecisionState& state) {
  const bool is_over = input.plan.precision[block] == Precision::fp8 && state.for_straggler &&
                       !signs.computes_slowly;
  if (!is_over) return std::nullopt;
  return move_of(input, block, {base, FormatCause::straggler_gone}, leeway);
}

// A format that settings or requests brought ends with them. Returns whether the block moves.
bool leave_guest(const PolicyInput& input, std::size_t block, const Leeway& leeway, Precision base,
                 BlockReading& reading) {
  BlockPrecisionState& state = reading.state;
  if (!state.is_guest) return false;
  state.changed_round.reset();
  const Precision now = input.plan.precision[block];
  const bool may_go =
      now == Precision::fp8 || base == Precision::fp32 || input.summary.round >= state.rest_until;
  if (now != base && may_go) {
    reading.move = move_of(input, block, {base, FormatCause::rule}, leeway);
    return true;
  }
  state.is_guest = false;
  return false;
}

// Moves between 16 and 32 bits a block that is neither held nor in trouble.
std::optional<BlockMove> move_of_rested(const PolicyInput& input, const RoundSigns& signs,
                                        std::size_t block, const Leeway& leeway, Precision base,
                                        const BlockPrecisionState& state) {
  const Precision now = input.plan.precision[block];
  const bool is_free = input.summary.round >= free_from(input.config.precision, state);
  if (now == Precision::fp16 && base != Precision::fp16) {
    return move_of(input, block, {base, FormatCause::rule}, leeway);
  }
  const bool can_shrink = now == Precision::fp32 && base == Precision::fp32 &&
                          contains(leeway.allowed, Precision::bf16);
  if (can_shrink && signs.short_of_memory && is_free) {
    return move_of(input, block, {Precision::bf16, FormatCause::memory, signs.memory_ratio},
                   leeway);
  }
  const bool back_to_fp16 = now == Precision::bf16 && base == Precision::fp16 && state.failures > 0;
  if (is_free && ((now == Precision::fp32 && base != now) || back_to_fp16)) {
    return move_of(input, block, {base, FormatCause::rested}, leeway);
  }
  return std::nullopt;
}

void choose(const PolicyInput& input, const RoundSigns& signs, std::size_t block,
            const Leeway& leeway, BlockReading& reading) {
  BlockPrecisionState& state = reading.state;
  const Precision now = input.plan.precision[block];
  if (leeway.held != Held::free || !contains(leeway.allowed, now)) {
    const Precision wanted = leeway.held == Held::free ? now : leeway.wanted;
    const Precision to = nearest_safe(wanted, leeway.allowed);
    state.trouble.reset();
    state.is_guest = true;
    if (to != now) reading.move = move_of(input, block, {to, FormatCause::rule}, leeway);
    return;
  }
  if (state.trouble) {
    FormatTrouble why = *state.trouble;
    why.to = nearest_safe(why.to, leeway.allowed);
    reading.move = move_of(input, block, why, leeway);
    return;
  }
  const PrecisionConfig& config = input.config.precision;
  const Precision base = base_format(input.job, config, leeway.allowed, block).format;
  if (leave_guest(input, block, leeway, base, reading)) return;
  reading.move = move_back(input, signs, block, leeway, base, state);
  if (!reading.move) reading.move = move_of_rested(input, signs, block, leeway, base, state);
  if (reading.move || now == Precision::fp8 || base == Precision::fp16) return;
  choose_lower(input, signs, block, leeway, reading);
}

BlockReading read_block(const PolicyInput& input, const RoundSigns& signs,
                        const std::vector<StandingRequest>& requests, std::size_t block,
                        BlockPrecisionState before) {
  BlockReading reading;
  reading.state = with_format(input, block, std::move(before));
  const Leeway leeway = leeway_of(input.job, input.config.precision, requests, block);
  take_evidence(input, signs, block, leeway, reading);
  choose(input, signs, block, leeway, reading);
  return reading;
}

// Returns a quarter of the blocks for one round: for a straggler first, then by gain.
std::vector<BlockMove> first_of(const PolicyInput& input, std::vector<BlockMove> ready) {
  const auto gain = [&input](const BlockMove& move) {
    return step_us(input.job, move.block, move.from) - step_us(input.job, move.block, move.to);
  };
  std::ranges::stable_sort(ready, [&](const BlockMove& a, const BlockMove& b) {
    if (a.for_straggler != b.for_straggler) return a.for_straggler;
    return gain(a) > gain(b);
  });
  const std::size_t most = (input.job.blocks.size() + 3) / 4;
  if (ready.size() > most) ready.resize(most);
  return ready;
}

void read_blocks(const PolicyInput& input, const RoundSigns& signs, PrecisionRound& round) {
  std::vector<BlockMove> ready;
  const auto keep = [](auto& read, auto& all) {
    if (read) all.push_back(std::move(*read));
  };
  for (std::size_t b = 0; b < round.state.blocks.size(); ++b) {
    BlockPrecisionState& known = round.state.blocks[b];
    BlockReading reading = read_block(input, signs, round.state.requests, b, std::move(known));
    known = std::move(reading.state);
    keep(reading.move, round.moves);
    keep(reading.ready, ready);
    keep(reading.held, round.held);
    keep(reading.waits, round.waits);
  }
  for (BlockMove& move : first_of(input, std::move(ready))) round.moves.push_back(move);
}

}  // namespace

Leeway leeway_of(const JobFacts& job, const PrecisionConfig& config,
                 std::span<const StandingRequest> requests, std::size_t block) {
  PrecisionConfig unforced;
  unforced.forbid = config.forbid;
  Leeway leeway;
  leeway.allowed = static_cast<PrecisionSet>(
      (allowed_formats(unforced, job.blocks[block]) & job.capabilities.precisions) |
      only(Precision::fp32));
  std::optional<std::size_t> forcing;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (!concerns(requests[i], block)) continue;
    if (requests[i].what.what == PrecisionRequest::What::force) {
      forcing = i;
    } else if (requests[i].what.format != Precision::fp32) {
      leeway.allowed &= static_cast<PrecisionSet>(~only(requests[i].what.format));
    }
  }
  leeway.allowed &= kEveryFormat;
  if (forcing) return held(leeway, Held::by_request, requests[*forcing].what.format);
  if (const FormatRule* rule = forcing_rule(config, job.blocks[block])) {
    return held(leeway, Held::by_rule, rule->value);
  }
  if (config.format) return held(leeway, Held::by_format, *config.format);
  return leeway;
}

BaseFormat base_format(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                       std::size_t block) {
  BaseFormat base;
  base.bf16 = veto_of(job, config, allowed, block, Precision::bf16, Precision::fp32);
  base.fp16 = veto_of(job, config, allowed, block, Precision::fp16, Precision::fp32);
  if (base.bf16 == FormatVeto::none) {
    base.format = Precision::bf16;
  } else if (base.fp16 == FormatVeto::none) {
    base.format = Precision::fp16;
  }
  return base;
}

FormatVeto fp8_veto(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                    std::size_t block, Precision base) {
  if (!job.capabilities.can(Precision::fp8) || !job.capabilities.can(Precision::bf16)) {
    return FormatVeto::not_capable;
  }
  if (!contains(allowed, Precision::bf16)) return FormatVeto::not_allowed;
  return veto_of(job, config, allowed, block, Precision::fp8, base);
}

Precision nearest_safe(Precision wanted, PrecisionSet allowed) {
  if (contains(allowed, wanted)) return wanted;
  return safer_than(wanted, allowed);
}

std::int64_t step_us(const JobFacts& job, std::size_t block, Precision format) {
  if (block >= job.precision.blocks.size()) return 0;
  return job.precision.blocks[block].step_us[static_cast<std::size_t>(format)];
}

PrecisionRound look_at_round(const PolicyInput& input, PrecisionState before) {
  PrecisionRound round;
  round.state = std::move(before);
  round.requests = learn_requests(input, round.state);
  round.straggler = find_straggler(input.estimates);
  RoundSigns signs = signs_of(input, round.state);
  signs.computes_slowly = round.straggler != nullptr;
  if (round.straggler && is_made_up_for(input, *round.straggler)) round.straggler = nullptr;
  if (round.straggler && !input.job.precision.blocks.empty()) {
    signs.straggler = round.straggler->rank;
    signs.costliest = costliest_blocks(input);
  }
  round.state.short_of_memory = signs.short_of_memory;
  if (input.summary.reporting > 0) read_blocks(input, signs, round);
  round.state.applied_before = signs.applied_min;
  return round;
}

}  // namespace cox
