#include "coordinator/policies/precision/precision.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/settings/settings.h"
#include "coordinator/core/text.h"
#include "coordinator/estimates/estimates.h"
#include "coordinator/policies/precision/block_formats.h"

namespace cox {
namespace {

constexpr std::uint32_t kSilence = 64;  // rounds without evidence before a report
constexpr std::uint64_t kLastRestRound = std::uint64_t{1} << 50;  // later ones are invalid

// Neighbouring blocks that share a sentence.
struct BlockRun {
  std::size_t first = 0;
  std::size_t count = 1;
};

// --- a restored state -------------------------------------------------------------------------

bool is_sane(const BlockPrecisionState& block) {
  const auto is_past = [](const std::optional<RoundId>& round) {
    return !round || round->value() <= kLastRestRound;
  };
  const bool has_rank = !block.trouble || (block.trouble->rank.value() >= -1 &&
                                           block.trouble->rank.value() < kMaxRanks);
  return has_rank && block.rest_until.value() <= kLastRestRound && is_past(block.changed_round) &&
         is_past(block.good_since);
}

bool is_sane(const StandingRequest& request, std::size_t blocks) {
  const bool names_block =
      request.what.block == PrecisionRequest::kEveryBlock || request.what.block < blocks;
  return names_block && request.what.what != PrecisionRequest::What::release &&
         request.until.value() <= kLastRestRound && request.asked_by.value() >= -1 &&
         request.asked_by.value() < kMaxRanks;
}

// Takes the state out. Returns a fresh one if the kept state belongs to another number of blocks,
// or has invalid values.
PrecisionState take_precision_state(PolicyState kept, const JobFacts& job) {
  auto state = kept.take_or_fresh<PrecisionState>();
  const std::size_t blocks = job.blocks.size();
  const bool is_known =
      state.blocks.size() == blocks && state.requests.size() <= kMostRequests &&
      std::ranges::all_of(state.blocks, [](const auto& block) { return is_sane(block); }) &&
      std::ranges::all_of(state.requests, [&](const auto& r) { return is_sane(r, blocks); });
  if (is_known) return state;
  PrecisionState fresh;
  fresh.blocks.resize(blocks);
  return fresh;
}

// --- sentences --------------------------------------------------------------------------------

Reason reason_of(ReasonCode code, BlockRun run, std::string text, Outcome outcome = {},
                 RankId rank = RankId(-1)) {
  Reason reason = reason_of(code, std::move(text), outcome, rank);
  if (run.count == 1) reason.block = static_cast<std::int32_t>(run.first);
  return reason;
}

const char* verb(BlockRun run, const char* one, const char* many) {
  return run.count == 1 ? one : many;
}

// Returns the time of a run; 0 unless every block was measured.
std::int64_t total_us(const JobFacts& job, BlockRun run, Precision format) {
  std::int64_t sum = 0;
  for (std::size_t b = run.first; b < run.first + run.count; ++b) {
    const std::int64_t us = step_us(job, b, format);
    if (us == 0) return 0;
    sum += us;
  }
  return sum;
}

std::string us_text(std::int64_t us) {
  return us >= 10000 ? concat(fixed(1e-3 * static_cast<double>(us), 1), " ms") : concat(us, " us");
}

// Returns "412 us instead of 501 us in bf16".
std::string gain_text(const JobFacts& job, BlockRun run, Precision to, Precision from) {
  const std::int64_t then = total_us(job, run, to);
  const std::int64_t now = total_us(job, run, from);
  if (then == 0 || now == 0) return {};
  return concat(us_text(then), " instead of ", us_text(now), " in ", from);
}

// Names the setting or request that fixes the format of blocks.
std::string holder(const PolicyInput& input, std::size_t block, const Leeway& leeway) {
  const PrecisionConfig& config = input.config.precision;
  switch (leeway.held) {
    case Held::by_request:
      return concat("the program asks for ", leeway.wanted);
    case Held::by_rule:
      return concat("precision.force has ", forcing_rule(config, input.job.blocks[block])->text());
    case Held::by_format:
      return concat("precision.format is ", leeway.wanted);
    case Held::free:
      break;
  }
  return "settings or the program forbid its earlier format";
}

std::string forbidder(const PolicyInput& input, std::size_t block, Precision format) {
  if (!input.job.capabilities.can(format)) return concat("this job cannot apply ", format);
  for (const FormatRule& rule : input.config.precision.forbid) {
    if (rule.value == format && fits_pattern(rule.pattern, input.job.blocks[block])) {
      return concat("precision.forbid has ", rule.text());
    }
  }
  return concat("the program forbids ", format);
}

ReasonCode code_of(FormatVeto veto) {
  switch (veto) {
    case FormatVeto::not_allowed:
      return ReasonCode::precision_forbidden;
    case FormatVeto::not_capable:
      return ReasonCode::not_capable;
    case FormatVeto::not_measured:
      return ReasonCode::precision_no_evidence;
    case FormatVeto::resting:
      return ReasonCode::precision_raised;
    default:
      return ReasonCode::precision_not_faster;
  }
}

std::string veto_text(const PolicyInput& input, BlockRun run, FormatVeto veto, Precision format,
                      Precision other) {
  switch (veto) {
    case FormatVeto::not_allowed:
    case FormatVeto::not_capable:
      return forbidder(input, run.first, format);
    case FormatVeto::imitated:
      return concat("the devices only imitate ", format, " and precision.emulate is off");
    case FormatVeto::resting:
      return "after trouble with a lower format it stays in this one for now";
    case FormatVeto::not_measured:
      return concat("the cost of ", format, " on these devices was not measured");
    default:
      return concat(format, " takes ", us_text(total_us(input.job, run, format)), ", ", other, " ",
                    us_text(total_us(input.job, run, other)), ", and less than ",
                    percent_text(input.config.precision.smallest_gain_ratio, 1), " is no gain");
  }
}

std::string percent(double ratio) {
  return concat(general(100 * ratio, 2), " %");
}

std::string trouble_text(const PolicyInput& input, const BlockMove& move) {
  const PrecisionConfig& config = input.config.precision;
  switch (move.cause) {
    case FormatCause::overflow_forward:
    case FormatCause::overflow_backward:
      return concat("values of its ",
                    move.cause == FormatCause::overflow_forward ? "forward" : "backward",
                    " pass on rank ", move.rank, " were not finite (", fixed(move.amount, 0), ")");
    case FormatCause::saturated:
      return concat(percent(move.amount), " of its values were clipped, more than ",
                    percent(config.leave_saturated_ratio));
    case FormatCause::underflow:
      return concat(percent(move.amount), " of its values became zero, more than ",
                    percent(config.leave_underflow_ratio));
    default:
      return concat("the noise of its gradients is ", general(move.amount, 3),
                    " of the signal, less than ", general(config.leave_noise_ratio, 3));
  }
}

ReasonCode rule_code(const BlockMove& move) {
  const bool is_over = contains(move.leeway.allowed, move.from);
  if (is_over || move.leeway.held == Held::by_request) return ReasonCode::precision_requested;
  return move.leeway.held == Held::free ? ReasonCode::precision_forbidden
                                        : ReasonCode::precision_forced;
}

ReasonCode trouble_code(FormatCause cause) {
  const bool is_overflow =
      cause == FormatCause::overflow_forward || cause == FormatCause::overflow_backward;
  return is_overflow ? ReasonCode::precision_overflow : ReasonCode::precision_raised;
}

std::string blocks_text(const JobFacts& job, BlockRun run) {
  if (run.count == 1) return concat("block ", job.blocks[run.first]);
  return concat("blocks ", job.blocks[run.first], " to ", job.blocks[run.first + run.count - 1]);
}

// Explains the formats of blocks that settings or requests hold.
Reason explain_held_start(const PolicyInput& input, BlockRun run, const Leeway& leeway) {
  const Precision runs_in = nearest_safe(leeway.wanted, leeway.allowed);
  std::string text = concat(blocks_text(input.job, run), verb(run, " runs in ", " run in "),
                            runs_in, ": ", holder(input, run.first, leeway));
  if (runs_in == leeway.wanted)
    return reason_of(ReasonCode::precision_forced, run, std::move(text));
  text += concat(", but ", forbidder(input, run.first, leeway.wanted));
  const bool capable = input.job.capabilities.can(leeway.wanted);
  return reason_of(capable ? ReasonCode::precision_forbidden : ReasonCode::not_capable, run,
                   std::move(text));
}

Reason explain_start(const PolicyInput& input, BlockRun run, const Leeway& leeway,
                     const BaseFormat& base) {
  if (leeway.held != Held::free) return explain_held_start(input, run, leeway);
  const std::string name = blocks_text(input.job, run);
  const std::string not_bf16 = veto_text(input, run, base.bf16, Precision::bf16, Precision::fp32);
  if (base.format == Precision::fp32) {
    return reason_of(code_of(base.bf16), run,
                     concat(name, verb(run, " stays", " stay"), " in fp32: ", not_bf16));
  }
  const std::string gain = gain_text(input.job, run, base.format, Precision::fp32);
  return reason_of(
      ReasonCode::precision_start, run,
      concat(name, verb(run, " starts in ", " start in "), base.format, gain.empty() ? "" : ": ",
             gain, base.format == Precision::fp16 ? concat("; not in bf16: ", not_bf16) : ""));
}

// REQUIRES: `veto` is not none.
Reason explain_no_8_bits(const PolicyInput& input, BlockRun run, FormatVeto veto, Precision now) {
  return reason_of(code_of(veto), run,
                   concat(blocks_text(input.job, run), " will not go to 8 bits: ",
                          veto_text(input, run, veto, Precision::fp8, now)),
                   Outcome::vetoed);
}

Reason explain_move(const PolicyInput& input, BlockRun run, const BlockMove& move,
                    const BlockPrecisionState& state, const SlowRank* straggler) {
  std::string text = concat(blocks_text(input.job, run), verb(run, " goes", " go"), " from ",
                            move.from, " to ", move.to, ": ");
  std::string gain = gain_text(input.job, run, move.to, move.from);
  if (!gain.empty()) gain.insert(0, "; ");
  ReasonCode code = ReasonCode::precision_lowered;
  switch (move.cause) {
    case FormatCause::rule:
      code = rule_code(move);
      text += contains(move.leeway.allowed, move.from) ? "no rule requires another format any more"
                                                       : holder(input, run.first, move.leeway);
      break;
    case FormatCause::straggler_gone:
      code = ReasonCode::precision_straggler;
      text += "the slow rank that was the reason for this format has recovered";
      break;
    case FormatCause::memory:
      text += concat("a rank's peak is ", percent_text(move.amount, 1), " of its memory");
      break;
    case FormatCause::rested:
      text += concat("no trouble since round ", state.changed_round.value_or(RoundId()), gain);
      break;
    case FormatCause::signals_good:
      text += concat("noise of gradients ", general(move.amount, 3), " of the signal (from ",
                     general(input.config.precision.enter_noise_ratio, 3), " on), since round ",
                     state.good_since.value_or(RoundId()), gain);
      break;
    default:
      code = trouble_code(move.cause);
      text +=
          concat(trouble_text(input, move), "; no lower format before round ", state.rest_until);
  }
  if (move.for_straggler && straggler) {
    code = ReasonCode::precision_straggler;
    text +=
        concat("; rank ", straggler->rank, " is ", percent_text(straggler->slowdown_ratio - 1, 0),
               " slow, most of it computing, so its costliest blocks go first");
  }
  return reason_of(code, run, std::move(text), {}, move.rank);
}

Reason explain_held(const PolicyInput& input, const BlockMove& move) {
  const BlockRun run{move.block, 1};
  return reason_of(trouble_code(move.cause), run,
                   concat(blocks_text(input.job, run), " stays in ", move.from, " although ",
                          trouble_text(input, move), ": ", holder(input, move.block, move.leeway)),
                   Outcome::vetoed, move.rank);
}

Reason explain_request(const PolicyInput& input, const RequestEvent& event) {
  using What = RequestEvent::What;
  const PrecisionRequest& asked = event.request.what;
  const bool every = asked.block == PrecisionRequest::kEveryBlock;
  const bool known = !every && asked.block < input.job.blocks.size();
  const std::string name = every   ? "all blocks"
                           : known ? concat("block ", input.job.blocks[asked.block])
                                   : concat("block ", asked.block);
  constexpr const char* kVerbs[] = {"wants ", "forbids ", "releases "};
  std::string text = concat("the program on rank ", event.request.asked_by, " ",
                            kVerbs[static_cast<std::size_t>(asked.what)]);
  if (asked.what == PrecisionRequest::What::release) {
    text += name;
  } else {
    text += concat(asked.format, " for ", name);
    if (asked.rounds > 0) text += concat(" for ", asked.rounds, " rounds");
  }
  Reason reason =
      reason_of(ReasonCode::precision_requested, std::move(text), {}, event.request.asked_by);
  if (known) reason.block = asked.block;
  if (event.what == What::taken) return reason;
  reason.outcome = event.what == What::over ? Outcome::reported : Outcome::vetoed;
  switch (event.what) {
    case What::over:
      reason.text += ": that is over";
      break;
    case What::unknown_block:
      reason.text += concat(": this job has ", input.job.blocks.size(), " blocks");
      break;
    case What::not_capable:
      reason.code = ReasonCode::not_capable;
      reason.text += ": this job cannot apply it";
      break;
    case What::forbidden:
      reason.text += ": fp32 is always possible";
      break;
    default:
      reason.text += ": too many requests are in force";
  }
  return reason;
}

Reason explain_wait(const PolicyInput& input, const BlockWaits& waits) {
  const BlockRun run{waits.block, 1};
  const Precision now = input.plan.precision[waits.block];
  const bool is_vetoed = waits.veto != FormatVeto::none;
  return reason_of(is_vetoed ? code_of(waits.veto) : ReasonCode::precision_lowered, run,
                   concat(blocks_text(input.job, run), " could go to 8 bits by its signals: ",
                          is_vetoed ? veto_text(input, run, waits.veto, Precision::fp8, now)
                                    : concat("it keeps ", now, " until round ", waits.until)),
                   Outcome::vetoed);
}

Reason explain_silence(const PrecisionConfig& config) {
  return reason_of(ReasonCode::precision_no_evidence,
                   concat("no noise of gradients was reported for ", kSilence,
                          " rounds, so no block goes to 8 bits (precision.sample_every is ",
                          config.sample_every, ")"),
                   Outcome::vetoed);
}

// --- the start --------------------------------------------------------------------------------

struct StartChoice {
  Precision format = Precision::fp32;
  Leeway leeway;
  BaseFormat base;
  FormatVeto fp8 = FormatVeto::none;
  const FormatRule* rule = nullptr;

  bool says_the_same_as(const StartChoice& other) const {
    return format == other.format && leeway.held == other.leeway.held && rule == other.rule &&
           leeway.wanted == other.leeway.wanted && leeway.allowed == other.leeway.allowed &&
           base.bf16 == other.base.bf16 && base.fp16 == other.base.fp16 && fp8 == other.fp8;
  }
};

// A resumed job keeps 8 bits where a block had them, and continues its rests from trouble.
BaseFormat resumed_format(const PolicyInput& input, const BlockPrecisionState& state,
                          const StartChoice& choice) {
  BaseFormat base = choice.base;
  if (input.history.empty() || !state.seen) return base;
  const Precision had = *state.seen;
  const RoundId last = input.history.rounds().back().round;
  const bool is_safer = nearest_safe(base.format, only(had)) == had && had != base.format;
  if (had == Precision::fp8 && choice.fp8 == FormatVeto::none) base.format = had;
  if (is_safer && state.rest_until > last && contains(choice.leeway.allowed, had)) {
    base = {had, FormatVeto::resting, FormatVeto::resting};
  }
  return base;
}

StartChoice start_choice(const PolicyInput& input, const PrecisionState& state, std::size_t block) {
  const PrecisionConfig& config = input.config.precision;
  StartChoice choice;
  choice.leeway = leeway_of(input.job, config, state.requests, block);
  if (choice.leeway.held == Held::free) {
    const PrecisionSet allowed = choice.leeway.allowed;
    choice.base = base_format(input.job, config, allowed, block);
    choice.fp8 = fp8_veto(input.job, config, allowed, block, choice.base.format);
    choice.base = resumed_format(input, state.blocks[block], choice);
    choice.format = choice.base.format;
  } else {
    choice.format = nearest_safe(choice.leeway.wanted, choice.leeway.allowed);
    choice.rule = forcing_rule(config, input.job.blocks[block]);
  }
  return choice;
}

SetPrecision change_of(BlockRun run, Precision format) {
  return {BlockId(static_cast<BlockId::rep>(run.first)), format,
          static_cast<std::uint16_t>(run.count)};
}

// Plans are numbered anew. The history of blocks still holds.
PrecisionState restarted(PrecisionState state) {
  state.applied_before = 0;
  for (BlockPrecisionState& block : state.blocks) {
    block.changed_in = 0;
    block.changed_round.reset();
    block.trouble.reset();
    block.good_since.reset();
    block.good_samples = 0;
    block.told = block.is_guest = false;
  }
  return state;
}

// --- a round ----------------------------------------------------------------------------------

bool says_the_same(const BlockMove& a, const BlockMove& b) {
  return a.cause == FormatCause::rule && b.cause == FormatCause::rule && a.from == b.from &&
         a.to == b.to && a.leeway.held == b.leeway.held && a.leeway.wanted == b.leeway.wanted &&
         a.leeway.allowed == b.leeway.allowed;
}

// Returns the rounds in a row without evidence, the present one included.
std::uint32_t silent_rounds(const PolicyInput& input, std::uint32_t before) {
  if (input.summary.reporting == 0 || input.config.precision.format) return before;
  const auto& evidence = input.signals.evidence;
  const bool heard =
      std::ranges::any_of(evidence, [](const BlockEvidence& e) { return e.noise_count > 0; });
  return heard ? 0 : std::min(before + 1, kSilence + 1);
}

std::vector<Reason> findings_of(const PolicyInput& input, const PrecisionRound& round) {
  std::vector<Reason> findings;
  for (const RequestEvent& event : round.requests)
    findings.push_back(explain_request(input, event));
  for (const BlockMove& move : round.held) findings.push_back(explain_held(input, move));
  for (const BlockWaits& waits : round.waits) findings.push_back(explain_wait(input, waits));
  return findings;
}

// Blocks were measured with the noise of a step in both formats; hence the relative error of the
// predicted gain. On a rank that is slow in computing the gain is larger, and the step waits for
// that rank. Unknown if blocks or steps were not measured.
Forecast forecast_of(const PolicyInput& input, BlockRun run, const BlockMove& move,
                     const SlowRank* straggler) {
  const std::int64_t then = total_us(input.job, run, move.to);
  const std::int64_t now = total_us(input.job, run, move.from);
  const StepPace step = step_pace(input.effects);
  if (then == 0 || now == 0 || step.seconds <= 0) return {};
  const double slowdown = straggler ? std::max(straggler->slowdown_ratio, 1.0) : 1;
  const double saved = 1e-6 * slowdown * static_cast<double>(now - then) / step.seconds;
  if (saved >= 1) return {};
  return forecast_of_time(1 - saved, std::sqrt(2.0) * step.noise * std::abs(saved));
}

Motive motive_of(FormatCause cause) {
  const bool is_for_time = cause == FormatCause::signals_good || cause == FormatCause::rested;
  return is_for_time ? Motive::gain : Motive::necessity;
}

// Makes one proposal for neighbouring blocks that change for the same reason.
std::vector<Proposal> proposals_of(const PolicyInput& input, const PrecisionRound& round) {
  std::vector<Proposal> proposals;
  const std::vector<BlockMove>& moves = round.moves;
  for (std::size_t i = 0; i < moves.size();) {
    BlockRun run{moves[i].block, 1};
    std::size_t next = i + 1;
    while (next < moves.size() && moves[next].block == run.first + run.count &&
           says_the_same(moves[i], moves[next])) {
      ++run.count;
      ++next;
    }
    proposals.push_back(
        {change_of(run, moves[i].to),
         explain_move(input, run, moves[i], round.state.blocks[run.first], round.straggler),
         motive_of(moves[i].cause)});
    proposals.back().reason.forecast = forecast_of(input, run, moves[i], round.straggler);
    i = next;
  }
  return proposals;
}

}  // namespace

PolicyOutput PrecisionPolicy::at_start(const PolicyInput& input, PolicyState kept) const {
  PolicyOutput output;
  PrecisionState state = take_precision_state(std::move(kept), input.job);
  const std::size_t blocks = input.job.blocks.size();
  for (BlockRun run; run.first < blocks; run.first += run.count) {
    const StartChoice choice = start_choice(input, state, run.first);
    run.count = 1;
    while (run.first + run.count < blocks &&
           choice.says_the_same_as(start_choice(input, state, run.first + run.count))) {
      ++run.count;
    }
    output.proposals.push_back(
        {change_of(run, choice.format), explain_start(input, run, choice.leeway, choice.base)});
    const bool has_16_bits = choice.leeway.held == Held::free && choice.format == Precision::bf16;
    if (!has_16_bits || choice.fp8 == FormatVeto::none) continue;
    output.findings.push_back(explain_no_8_bits(input, run, choice.fp8, choice.format));
  }
  output.state = PolicyState::of(restarted(std::move(state)));
  return output;
}

PolicyOutput PrecisionPolicy::propose(const PolicyInput& input, PolicyState kept) const {
  PrecisionRound round = look_at_round(input, take_precision_state(std::move(kept), input.job));
  PolicyOutput output;
  output.findings = findings_of(input, round);
  output.proposals = proposals_of(input, round);
  std::uint32_t& silent = round.state.silent_rounds;
  const std::uint32_t before = std::exchange(silent, silent_rounds(input, silent));
  if (silent == kSilence && before != kSilence) {
    output.findings.push_back(explain_silence(input.config.precision));
  }
  output.state = PolicyState::of(std::move(round.state));
  return output;
}

}  // namespace cox
