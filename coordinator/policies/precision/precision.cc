#include "coordinator/policies/precision/precision.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/settings/settings.h"
#include "coordinator/core/text.h"
#include "coordinator/policies/precision/model.h"

namespace cox {
namespace {

constexpr std::uint32_t kSilence = 64;  // rounds without evidence until that is told
constexpr std::uint64_t kLastRound = std::uint64_t{1} << 50;  // later ones are not believed

// Neighbouring blocks of which the same is said.
struct BlockRun {
  std::size_t first = 0;
  std::size_t count = 1;
};

unsigned long long number(RoundId round) {
  return round.value();
}

// --- a restored state -------------------------------------------------------------------------

bool is_sane(const BlockPrecisionState& block) {
  const auto is_past = [](const std::optional<RoundId>& round) {
    return !round || round->value() <= kLastRound;
  };
  const bool has_rank = !block.trouble || (block.trouble->rank.value() >= -1 &&
                                           block.trouble->rank.value() < kMaxRanks);
  return has_rank && block.rest_until.value() <= kLastRound && is_past(block.changed_round) &&
         is_past(block.good_since);
}

bool is_sane(const StandingRequest& request, std::size_t blocks) {
  const bool names_block =
      request.what.block == PrecisionRequest::kEveryBlock || request.what.block < blocks;
  return names_block && request.what.what != PrecisionRequest::What::release &&
         request.until.value() <= kLastRound && request.asked_by.value() >= -1 &&
         request.asked_by.value() < kMaxRanks;
}

bool is_sane(const RankPrecisionState& rank) {
  return std::fabs(rank.slowness) <= 100 && std::fabs(rank.in_compute) <= 100;
}

// Takes the state out, or a fresh one where the kept one belongs to another world size or number of
// blocks, or holds values that make no sense.
PrecisionState take_precision_state(PolicyState kept, const JobFacts& job) {
  auto state = kept.take_or_fresh<PrecisionState>();
  const std::size_t blocks = job.blocks.size();
  const auto ranks = static_cast<std::size_t>(job.world_size);
  const bool is_known =
      state.blocks.size() == blocks && state.ranks.size() == ranks &&
      state.requests.size() <= kMostRequests &&
      std::all_of(state.blocks.begin(), state.blocks.end(),
                  [](const BlockPrecisionState& block) { return is_sane(block); }) &&
      std::all_of(state.ranks.begin(), state.ranks.end(),
                  [](const RankPrecisionState& rank) { return is_sane(rank); }) &&
      std::all_of(state.requests.begin(), state.requests.end(),
                  [blocks](const StandingRequest& r) { return is_sane(r, blocks); });
  if (is_known) return state;
  PrecisionState fresh;
  fresh.blocks.resize(blocks);
  fresh.ranks.resize(ranks);
  return fresh;
}

// --- sentences --------------------------------------------------------------------------------

Reason reason_of(ReasonCode code, BlockRun run, std::string text) {
  Reason reason;
  reason.code = code;
  if (run.count == 1) reason.block = static_cast<std::int32_t>(run.first);
  reason.text = std::move(text);
  return reason;
}

std::string format_text(Precision format) {
  return std::string(to_string(format));
}

std::string text_of(const PrecisionRule& rule) {
  return rule.pattern + "=" + format_text(rule.format);
}

const char* verb(BlockRun run, const char* one, const char* many) {
  return run.count == 1 ? one : many;
}

// Of a run; 0 unless all of it is measured.
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
  return us >= 10000 ? sentence("%.1f ms", 1e-3 * static_cast<double>(us))
                     : sentence("%lld us", static_cast<long long>(us));
}

// "412 us instead of 501 us in bf16".
std::string gain_text(const JobFacts& job, BlockRun run, Precision to, Precision from) {
  const std::int64_t then = total_us(job, run, to);
  const std::int64_t now = total_us(job, run, from);
  if (then == 0 || now == 0) return {};
  return us_text(then) + " instead of " + us_text(now) + " in " + format_text(from);
}

// Whose will it is that blocks have no other format.
std::string holder(const PolicyInput& input, std::size_t block, const Leeway& leeway) {
  const PrecisionConfig& config = input.config.precision;
  switch (leeway.held) {
    case Held::by_request:
      return "the program asks for " + format_text(leeway.wanted);
    case Held::by_rule:
      return "precision.force has " + text_of(*forcing_rule(config, input.job.blocks[block]));
    case Held::by_format:
      return "precision.format is " + format_text(leeway.wanted);
    case Held::free:
      break;
  }
  return "settings or the program forbid the one it had";
}

std::string forbidder(const PolicyInput& input, std::size_t block, Precision format) {
  if (!input.job.capabilities.can(format)) return "this job cannot apply " + format_text(format);
  for (const PrecisionRule& rule : input.config.precision.forbid) {
    if (rule.format == format && fits_pattern(rule.pattern, input.job.blocks[block])) {
      return "precision.forbid has " + text_of(rule);
    }
  }
  return "the program forbids " + format_text(format);
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
      return "the devices only imitate " + format_text(format) + " and precision.emulate is off";
    case FormatVeto::resting:
      return "it rests from trouble with a lower format";
    case FormatVeto::not_measured:
      return "what " + format_text(format) + " costs on these devices was not measured";
    default:
      return format_text(format) + " takes " + us_text(total_us(input.job, run, format)) + ", " +
             format_text(other) + " " + us_text(total_us(input.job, run, other)) +
             sentence(", and less than %.1f %% is no gain",
                      100 * input.config.precision.smallest_gain_ratio);
  }
}

std::string percent(double ratio) {
  return sentence("%.2g %%", 100 * ratio);
}

std::string trouble_text(const PolicyInput& input, const BlockMove& move) {
  const PrecisionConfig& config = input.config.precision;
  const bool forward = move.cause == FormatCause::overflow_forward;
  switch (move.cause) {
    case FormatCause::overflow_forward:
    case FormatCause::overflow_backward:
      return sentence("values of its %s pass on rank %d were not finite (%.0f)",
                      forward ? "forward" : "backward", move.rank.value(), move.amount);
    case FormatCause::saturated:
      return percent(move.amount) + " of its values were clipped, more than " +
             percent(config.leave_saturated_ratio);
    case FormatCause::underflow:
      return percent(move.amount) + " of its values became zero, more than " +
             percent(config.leave_underflow_ratio);
    default:
      return sentence("the noise of its gradients is %.3g of the signal, less than %.3g",
                      move.amount, config.leave_noise_ratio);
  }
}

ReasonCode rule_code(const BlockMove& move) {
  const bool is_over = contains(move.leeway.allowed, move.from);
  if (is_over || move.leeway.held == Held::by_request) return ReasonCode::precision_requested;
  return move.leeway.held == Held::free ? ReasonCode::precision_forbidden
                                        : ReasonCode::precision_forced;
}

bool is_overflow(FormatCause cause) {
  return cause == FormatCause::overflow_forward || cause == FormatCause::overflow_backward;
}

std::string blocks_text(const JobFacts& job, BlockRun run) {
  if (run.count == 1) return "block " + job.blocks[run.first];
  return "blocks " + job.blocks[run.first] + " to " + job.blocks[run.first + run.count - 1];
}

Reason explain_start(const PolicyInput& input, BlockRun run, const Leeway& leeway,
                     const BaseFormat& base) {
  const std::string name = blocks_text(input.job, run);
  if (leeway.held != Held::free) {
    const Precision runs_in = nearest_safe(leeway.wanted, leeway.allowed);
    std::string text = name + verb(run, " runs in ", " run in ") + format_text(runs_in) + ": " +
                       holder(input, run.first, leeway);
    if (runs_in == leeway.wanted)
      return reason_of(ReasonCode::precision_forced, run, std::move(text));
    const bool capable = input.job.capabilities.can(leeway.wanted);
    text += ", but " + forbidder(input, run.first, leeway.wanted);
    return reason_of(capable ? ReasonCode::precision_forbidden : ReasonCode::not_capable, run,
                     std::move(text));
  }
  if (base.format != Precision::fp32) {
    std::string text = name + verb(run, " starts in ", " start in ") + format_text(base.format);
    const std::string gain = gain_text(input.job, run, base.format, Precision::fp32);
    if (!gain.empty()) text += ": " + gain;
    if (base.format == Precision::fp16) {
      text +=
          "; not in bf16: " + veto_text(input, run, base.bf16, Precision::bf16, Precision::fp32);
    }
    return reason_of(ReasonCode::precision_start, run, std::move(text));
  }
  return reason_of(code_of(base.bf16), run,
                   name + verb(run, " stays", " stay") + " in fp32: " +
                       veto_text(input, run, base.bf16, Precision::bf16, Precision::fp32));
}

std::optional<Reason> explain_no_8_bits(const PolicyInput& input, BlockRun run, FormatVeto veto,
                                        Precision now) {
  if (veto == FormatVeto::none) return std::nullopt;
  Reason reason = reason_of(code_of(veto), run,
                            blocks_text(input.job, run) + " will not go to 8 bits: " +
                                veto_text(input, run, veto, Precision::fp8, now));
  reason.outcome = Outcome::vetoed;
  return reason;
}

Reason explain_move(const PolicyInput& input, BlockRun run, const BlockMove& move,
                    const BlockPrecisionState& state,
                    const std::optional<ComputeStraggler>& straggler) {
  std::string text = blocks_text(input.job, run) + verb(run, " goes", " go") + " from " +
                     format_text(move.from) + " to " + format_text(move.to) + ": ";
  const std::string gain = gain_text(input.job, run, move.to, move.from);
  ReasonCode code = ReasonCode::precision_lowered;
  switch (move.cause) {
    case FormatCause::rule:
      code = rule_code(move);
      text += contains(move.leeway.allowed, move.from) ? "nothing holds another format any more"
                                                       : holder(input, run.first, move.leeway);
      break;
    case FormatCause::memory:
      text += sentence("a rank's peak is %.1f %% of its memory", 100 * move.amount);
      break;
    case FormatCause::rested:
      text +=
          sentence("no trouble since round %llu", number(state.changed_round.value_or(RoundId())));
      if (!gain.empty()) text += "; " + gain;
      break;
    case FormatCause::signals_good:
      text += sentence("noise of gradients %.3g of the signal (from %.3g on), since round %llu",
                       move.amount, input.config.precision.enter_noise_ratio,
                       number(state.good_since.value_or(RoundId())));
      if (!gain.empty()) text += "; " + gain;
      break;
    default:
      code =
          is_overflow(move.cause) ? ReasonCode::precision_overflow : ReasonCode::precision_raised;
      text += trouble_text(input, move) +
              sentence("; no lower format before round %llu", number(state.rest_until));
  }
  if (move.for_straggler && straggler) {
    code = ReasonCode::precision_straggler;
    text += sentence(
        "; rank %d is %.0f %% slow, most of it computing, so its costliest blocks go "
        "first",
        straggler->rank.value(), 100 * (straggler->slowness - 1));
  }
  Reason reason = reason_of(code, run, std::move(text));
  reason.rank = move.rank;
  return reason;
}

Reason explain_held(const PolicyInput& input, const BlockMove& move) {
  const BlockRun run{move.block, 1};
  Reason reason = reason_of(
      is_overflow(move.cause) ? ReasonCode::precision_overflow : ReasonCode::precision_raised, run,
      blocks_text(input.job, run) + " stays in " + format_text(move.from) + " although " +
          trouble_text(input, move) + ": " + holder(input, move.block, move.leeway));
  reason.rank = move.rank;
  reason.outcome = Outcome::vetoed;
  return reason;
}

Reason explain_request(const PolicyInput& input, const RequestEvent& event) {
  using What = RequestEvent::What;
  const PrecisionRequest& asked = event.request.what;
  const bool every = asked.block == PrecisionRequest::kEveryBlock;
  const bool known = !every && asked.block < input.job.blocks.size();
  const std::string name = every   ? "all blocks"
                           : known ? "block " + input.job.blocks[asked.block]
                                   : sentence("block %u", static_cast<unsigned>(asked.block));
  constexpr const char* kVerbs[] = {"wants ", "forbids ", "releases "};
  std::string text = sentence("the program on rank %d ", event.request.asked_by.value()) +
                     kVerbs[static_cast<std::size_t>(asked.what)];
  if (asked.what == PrecisionRequest::What::release) {
    text += name;
  } else {
    text += format_text(asked.format) + " for " + name;
    if (asked.rounds > 0) text += sentence(" for %u rounds", asked.rounds);
  }
  Reason reason = reason_of(ReasonCode::precision_requested, {0, 2}, std::move(text));
  if (known) reason.block = asked.block;
  reason.rank = event.request.asked_by;
  if (event.what == What::taken) return reason;
  reason.outcome = event.what == What::over ? Outcome::reported : Outcome::vetoed;
  switch (event.what) {
    case What::over:
      reason.text += ": that is over";
      break;
    case What::unknown_block:
      reason.text += sentence(": this job has %zu blocks", input.job.blocks.size());
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
  const std::string name = blocks_text(input.job, run) + " could go to 8 bits by its signals: ";
  Reason reason = waits.veto == FormatVeto::none
                      ? reason_of(ReasonCode::precision_lowered, run,
                                  name + sentence("it keeps %s until round %llu",
                                                  format_text(now).c_str(), number(waits.until)))
                      : reason_of(code_of(waits.veto), run,
                                  name + veto_text(input, run, waits.veto, Precision::fp8, now));
  reason.outcome = Outcome::vetoed;
  return reason;
}

Reason explain_silence(const PrecisionConfig& config) {
  Reason reason;
  reason.code = ReasonCode::precision_no_evidence;
  reason.outcome = Outcome::vetoed;
  reason.text = sentence(
      "no noise of gradients was reported for %u rounds, so no block goes to 8 "
      "bits (precision.sample_every is %u)",
      kSilence, config.sample_every);
  return reason;
}

// --- the start --------------------------------------------------------------------------------

struct StartChoice {
  Precision format = Precision::fp32;
  Leeway leeway;
  BaseFormat base;
  FormatVeto fp8 = FormatVeto::none;
  const PrecisionRule* rule = nullptr;

  bool says_the_same_as(const StartChoice& other) const {
    return format == other.format && leeway.held == other.leeway.held && rule == other.rule &&
           leeway.wanted == other.leeway.wanted && leeway.allowed == other.leeway.allowed &&
           base.bf16 == other.base.bf16 && base.fp16 == other.base.fp16 && fp8 == other.fp8;
  }
};

// A job that goes on keeps 8 bits that it had, and rests on from trouble.
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
  SetPrecision change;
  change.block = BlockId(static_cast<BlockId::rep>(run.first));
  change.precision = format;
  change.blocks = static_cast<std::uint16_t>(run.count);
  return change;
}

// Plans are numbered anew; everything that blocks went through is still true.
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

// Returns the rounds in a row without evidence, this one included.
std::uint32_t silent_rounds(const PolicyInput& input, std::uint32_t before) {
  if (input.summary.reporting == 0 || input.config.precision.format) return before;
  const auto& evidence = input.signals.evidence;
  const bool heard = std::any_of(evidence.begin(), evidence.end(),
                                 [](const BlockEvidence& e) { return e.noise_count > 0; });
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

// One proposal for neighbouring blocks that change for the same reason.
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
         explain_move(input, run, moves[i], round.state.blocks[run.first], round.straggler)});
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
    if (!has_16_bits) continue;
    if (auto reason = explain_no_8_bits(input, run, choice.fp8, choice.format)) {
      output.findings.push_back(*std::move(reason));
    }
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
