#include "coordinator/policies/precision.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/policies/precision_notes.h"
#include "coordinator/policies/precision_round.h"
#include "coordinator/policies/precision_words.h"

namespace cox {
namespace {

constexpr double kSilence = 64;  // rounds without evidence until that is told

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
void go_on(const PolicyInput& input, const BlockNotes& notes, StartChoice& choice) {
  if (input.history.empty() || notes.seen == 0) return;
  const auto had = static_cast<Precision>(static_cast<int>(notes.seen) - 1);
  const auto last = static_cast<double>(input.history.rounds().back().round.value());
  const bool is_safer = nearest_safe(choice.format, only(had)) == had && had != choice.format;
  if (had == Precision::fp8 && choice.fp8 == FormatVeto::none) choice.base.format = had;
  if (is_safer && notes.rest_until > last && contains(choice.leeway.allowed, had)) {
    choice.base = {had, FormatVeto::resting, FormatVeto::resting};
  }
  choice.format = choice.base.format;
}

StartChoice start_choice(const PolicyInput& input, const PrecisionNotes& notes, std::size_t block) {
  const PrecisionConfig& config = input.config.precision;
  StartChoice choice;
  choice.leeway = leeway_of(input.job, config, notes.requests, block);
  if (choice.leeway.held == Held::free) {
    choice.base = base_format(input.job, config, choice.leeway.allowed, block);
    choice.format = choice.base.format;
    choice.fp8 = fp8_veto(input.job, config, choice.leeway.allowed, block, choice.format);
    go_on(input, notes.blocks[block], choice);
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

bool says_the_same(const BlockMove& a, const BlockMove& b) {
  return a.cause == FormatCause::rule && b.cause == FormatCause::rule && a.from == b.from &&
         a.to == b.to && a.leeway.held == b.leeway.held && a.leeway.wanted == b.leeway.wanted &&
         a.leeway.allowed == b.leeway.allowed;
}

void tell_silence(const PolicyInput& input, PrecisionNotes& notes, PolicyOutput& output) {
  const PrecisionConfig& config = input.config.precision;
  const auto& evidence = input.signals.evidence;
  const bool heard = std::any_of(evidence.begin(), evidence.end(),
                                 [](const BlockEvidence& e) { return e.noise_count > 0; });
  if (input.summary.reporting == 0 || config.format) return;
  notes.silent_rounds = heard ? 0 : std::min(notes.silent_rounds + 1, kSilence + 1);
  if (notes.silent_rounds != kSilence) return;
  Reason reason;
  reason.code = ReasonCode::precision_no_evidence;
  reason.outcome = Outcome::vetoed;
  reason.text = sentence(
      "no noise of gradients was reported for %.0f rounds, so no block goes to 8 "
      "bits (precision.sample_every is %u)",
      kSilence, config.sample_every);
  output.findings.push_back(std::move(reason));
}

}  // namespace

PolicyOutput PrecisionPolicy::at_start(const PolicyInput& input, PolicyState state) const {
  PolicyOutput output;
  PrecisionNotes notes(state.take_or_fresh<NumbersState>(), input.job);
  const std::size_t blocks = input.job.blocks.size();
  for (BlockRun run; run.first < blocks; run.first += run.count) {
    const StartChoice choice = start_choice(input, notes, run.first);
    run.count = 1;
    while (run.first + run.count < blocks &&
           choice.says_the_same_as(start_choice(input, notes, run.first + run.count))) {
      ++run.count;
    }
    output.proposals.push_back(
        {change_of(run, choice.format), start_reason(input, run, choice.leeway, choice.base)});
    const bool has_16_bits = choice.leeway.held == Held::free && choice.format == Precision::bf16;
    if (!has_16_bits) continue;
    if (auto reason = no_8_bits_reason(input, run, choice.fp8, choice.format)) {
      output.findings.push_back(*std::move(reason));
    }
  }
  // Plans are numbered anew; what blocks went through is still true.
  notes.applied_before = 0;
  for (BlockNotes& block : notes.blocks) {
    block.changed_in = block.changed_round = block.wish = 0;
    block.good_since = block.good_samples = block.told = block.guest = 0;
  }
  output.state = notes.state();
  return output;
}

PolicyOutput PrecisionPolicy::propose(const PolicyInput& input, PolicyState state) const {
  PrecisionNotes notes(state.take_or_fresh<NumbersState>(), input.job);
  const PrecisionRound round(input, notes);
  PolicyOutput output;
  for (const RequestEvent& event : round.requests()) {
    output.findings.push_back(request_reason(input, event));
  }
  for (const BlockMove& move : round.held()) {
    output.findings.push_back(held_reason(input, move));
  }
  for (const BlockWaits& waits : round.waits()) {
    output.findings.push_back(wait_reason(input, waits));
  }
  tell_silence(input, notes, output);
  const std::vector<BlockMove>& moves = round.moves();
  for (std::size_t i = 0; i < moves.size();) {
    BlockRun run{moves[i].block, 1};
    std::size_t next = i + 1;
    while (next < moves.size() && moves[next].block == run.first + run.count &&
           says_the_same(moves[i], moves[next])) {
      ++run.count;
      ++next;
    }
    output.proposals.push_back(
        {change_of(run, moves[i].to),
         move_reason(input, run, moves[i], notes.blocks[run.first], round.straggler())});
    i = next;
  }
  output.state = notes.state();
  return output;
}

}  // namespace cox
