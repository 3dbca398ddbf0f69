#include "coordinator/policies/precision_words.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/memory_config.h"
#include "coordinator/core/text.h"

namespace cox {
namespace {

Reason say(ReasonCode code, BlockRun run, std::string text) {
  Reason reason;
  reason.code = code;
  if (run.count == 1) reason.block = static_cast<std::int32_t>(run.first);
  reason.text = std::move(text);
  return reason;
}

std::string word(Precision format) {
  return std::string(to_string(format));
}

std::string text_of(const PrecisionRule& rule) {
  return rule.pattern + "=" + word(rule.format);
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
  return us_text(then) + " instead of " + us_text(now) + " in " + word(from);
}

// Whose will it is that blocks have no other format.
std::string holder(const PolicyInput& input, std::size_t block, const Leeway& leeway) {
  const PrecisionConfig& config = input.config.precision;
  switch (leeway.held) {
    case Held::by_request:
      return "the program asks for " + word(leeway.wanted);
    case Held::by_rule:
      return "precision.force has " + text_of(*forcing_rule(config, input.job.blocks[block]));
    case Held::by_format:
      return "precision.format is " + word(leeway.wanted);
    case Held::free:
      break;
  }
  return "settings or the program forbid the one it had";
}

std::string forbidder(const PolicyInput& input, std::size_t block, Precision format) {
  if (!input.job.capabilities.can(format)) return "this job cannot apply " + word(format);
  for (const PrecisionRule& rule : input.config.precision.forbid) {
    if (rule.format == format && fits_pattern(rule.pattern, input.job.blocks[block])) {
      return "precision.forbid has " + text_of(rule);
    }
  }
  return "the program forbids " + word(format);
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
      return "the devices only imitate " + word(format) + " and precision.emulate is off";
    case FormatVeto::resting:
      return "it rests from trouble with a lower format";
    case FormatVeto::not_measured:
      return "what " + word(format) + " costs on these devices was not measured";
    default:
      return word(format) + " takes " + us_text(total_us(input.job, run, format)) + ", " +
             word(other) + " " + us_text(total_us(input.job, run, other)) +
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

}  // namespace

std::string name_of(const JobFacts& job, BlockRun run) {
  if (run.count == 1) return "block " + job.blocks[run.first];
  return "blocks " + job.blocks[run.first] + " to " + job.blocks[run.first + run.count - 1];
}

Reason start_reason(const PolicyInput& input, BlockRun run, const Leeway& leeway,
                    const BaseFormat& base) {
  const std::string name = name_of(input.job, run);
  if (leeway.held != Held::free) {
    const Precision runs_in = nearest_safe(leeway.wanted, leeway.allowed);
    std::string text = name + verb(run, " runs in ", " run in ") + word(runs_in) + ": " +
                       holder(input, run.first, leeway);
    if (runs_in == leeway.wanted) return say(ReasonCode::precision_forced, run, std::move(text));
    const bool capable = input.job.capabilities.can(leeway.wanted);
    text += ", but " + forbidder(input, run.first, leeway.wanted);
    return say(capable ? ReasonCode::precision_forbidden : ReasonCode::not_capable, run,
               std::move(text));
  }
  if (base.format != Precision::fp32) {
    std::string text = name + verb(run, " starts in ", " start in ") + word(base.format);
    const std::string gain = gain_text(input.job, run, base.format, Precision::fp32);
    if (!gain.empty()) text += ": " + gain;
    if (base.format == Precision::fp16) {
      text +=
          "; not in bf16: " + veto_text(input, run, base.bf16, Precision::bf16, Precision::fp32);
    }
    return say(ReasonCode::precision_start, run, std::move(text));
  }
  return say(code_of(base.bf16), run,
             name + verb(run, " stays", " stay") +
                 " in fp32: " + veto_text(input, run, base.bf16, Precision::bf16, Precision::fp32));
}

std::optional<Reason> no_8_bits_reason(const PolicyInput& input, BlockRun run, FormatVeto veto,
                                       Precision now) {
  if (veto == FormatVeto::none) return std::nullopt;
  Reason reason = say(code_of(veto), run,
                      name_of(input.job, run) + " will not go to 8 bits: " +
                          veto_text(input, run, veto, Precision::fp8, now));
  reason.outcome = Outcome::vetoed;
  return reason;
}

Reason move_reason(const PolicyInput& input, BlockRun run, const BlockMove& move,
                   const BlockNotes& notes, const std::optional<ComputeStraggler>& straggler) {
  std::string text = name_of(input.job, run) + verb(run, " goes", " go") + " from " +
                     word(move.from) + " to " + word(move.to) + ": ";
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
      text += sentence("no trouble since round %.0f", notes.changed_round - 1);
      if (!gain.empty()) text += "; " + gain;
      break;
    case FormatCause::signals_good:
      text += sentence("noise of gradients %.3g of the signal (from %.3g on), since round %.0f",
                       move.amount, input.config.precision.enter_noise_ratio, notes.good_since - 1);
      if (!gain.empty()) text += "; " + gain;
      break;
    default:
      code =
          is_overflow(move.cause) ? ReasonCode::precision_overflow : ReasonCode::precision_raised;
      text += trouble_text(input, move) +
              sentence("; no lower format before round %.0f", notes.rest_until);
  }
  if (move.for_straggler && straggler) {
    code = ReasonCode::precision_straggler;
    text += sentence(
        "; rank %d is %.0f %% slow, most of it computing, so its costliest blocks go "
        "first",
        straggler->rank.value(), 100 * (straggler->slowness - 1));
  }
  Reason reason = say(code, run, std::move(text));
  reason.rank = move.rank;
  return reason;
}

Reason held_reason(const PolicyInput& input, const BlockMove& move) {
  const BlockRun run{move.block, 1};
  Reason reason = say(
      is_overflow(move.cause) ? ReasonCode::precision_overflow : ReasonCode::precision_raised, run,
      name_of(input.job, run) + " stays in " + word(move.from) + " although " +
          trouble_text(input, move) + ": " + holder(input, move.block, move.leeway));
  reason.rank = move.rank;
  reason.outcome = Outcome::vetoed;
  return reason;
}

Reason request_reason(const PolicyInput& input, const RequestEvent& event) {
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
    text += word(asked.format) + " for " + name;
    if (asked.rounds > 0) text += sentence(" for %u rounds", asked.rounds);
  }
  Reason reason = say(ReasonCode::precision_requested, {0, 2}, std::move(text));
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

Reason wait_reason(const PolicyInput& input, const BlockWaits& waits) {
  const BlockRun run{waits.block, 1};
  const Precision now = input.plan.precision[waits.block];
  const std::string name = name_of(input.job, run) + " could go to 8 bits by its signals: ";
  Reason reason = waits.veto == FormatVeto::none
                      ? say(ReasonCode::precision_lowered, run,
                            name + sentence("it keeps %s until round %llu", word(now).c_str(),
                                            static_cast<unsigned long long>(waits.until)))
                      : say(code_of(waits.veto), run,
                            name + veto_text(input, run, waits.veto, Precision::fp8, now));
  reason.outcome = Outcome::vetoed;
  return reason;
}

}  // namespace cox
