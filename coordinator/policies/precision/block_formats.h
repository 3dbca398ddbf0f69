// The model behind policy `precision`: the formats that a block may have, the formats that are
// worth while before any signal is known, and the blocks that should change by the evidence of a
// round. The policy calls this code once a round. Values and pure functions.
//
//   trouble   A block goes to a safer format on the first evidence that covers only rounds in its
//             present one, and to no lower format for cooldown_rounds, twice as long each time.
//   good      After patience_rounds of good signals a block goes to 8 bits: at most a quarter of
//             the blocks in one round, by gain. If a straggler loses its time in computing and
//             shares do not make up for it, the costliest blocks that were measured to gain go
//             after half the patience. These blocks go back once no such straggler is left.
//   rested    A block that has rested from trouble goes back to its first format.
//
// Apart from trouble, rules and requests a block keeps its format for dwell_rounds. Timings never
// count against a format. A round without reports teaches nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/precision_format.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/state_codec.h"
#include "coordinator/decide/policy.h"

namespace cox {

// --- remembered state -------------------------------------------------------------------------

// FormatCause is the reason to change a block's format. States keep the values: never renumber.
enum class FormatCause : std::uint8_t {
  none = 0,
  // To a safer format, at once. The amount of an overflow is the number of values that were not
  // finite. The amount of saturation and underflow is a ratio of the sampled values.
  overflow_forward = 1,
  overflow_backward = 2,
  saturated = 3,
  underflow = 4,
  noise = 5,  // amount: noise over signal
  // To a faster format.
  signals_good = 6,
  rested = 7,  // from trouble
  // To either.
  memory = 8,           // amount: peak over limit
  rule = 9,             // settings or requests leave no other format
  straggler_gone = 10,  // the straggler for which the block got a faster format is gone
};

template <>
inline constexpr FormatCause kLargestOf<FormatCause> = FormatCause::straggler_gone;
template <>
inline constexpr PrecisionRequest::What kLargestOf<PrecisionRequest::What> =
    PrecisionRequest::What::release;

// FormatTrouble is the trouble of a block with the safer format that the trouble calls for, or
// another cause to change.
struct FormatTrouble {
  Precision to = Precision::fp32;
  FormatCause cause = FormatCause::none;
  double amount = 0;  // see FormatCause
  RankId rank{-1};    // source of the evidence; -1 = no single rank

  static auto fields(auto& self) {
    return message("FormatTrouble", field(1, "to", self.to), field(2, "cause", self.cause),
                   field(3, "amount", self.amount), field(4, "rank", self.rank));
  }
};

struct BlockPrecisionState {
  std::optional<Precision> seen{};         // format in the newest plan
  std::uint64_t changed_in = 0;            // number of the plan that brought the format
  std::optional<RoundId> changed_round{};  // first round in the format; empty: the first format
  RoundId rest_until{};                    // no lower format before this round
  std::uint32_t failures = 0;              // times in trouble
  std::optional<RoundId> good_since{};     // round in which good signals began
  std::uint32_t good_samples = 0;          // since good_since
  double noise = 0;                        // newest noise over signal
  std::optional<FormatTrouble> trouble{};  // until the plan shows the safer format
  bool is_guest = false;                   // settings or requests brought the format
  bool for_straggler = false;              // a straggler brought the format before its time
  bool told = false;  // the reason for no lower format was reported since the last change

  static auto fields(auto& self) {
    return message(
        "BlockPrecisionState", field(1, "seen", self.seen), field(2, "changed_in", self.changed_in),
        field(3, "changed_round", self.changed_round), field(4, "rest_until", self.rest_until),
        field(5, "failures", self.failures), field(6, "good_since", self.good_since),
        field(7, "good_samples", self.good_samples), field(8, "noise", self.noise),
        field(9, "trouble", self.trouble), field(10, "is_guest", self.is_guest),
        field(11, "for_straggler", self.for_straggler), field(12, "told", self.told));
  }
};

// StandingRequest is a request of the program that is in force.
struct StandingRequest {
  PrecisionRequest what{};
  RoundId until{};  // 0 = until released
  RankId asked_by{-1};

  static auto fields(auto& self) {
    return message("StandingRequest", field(1, "block", self.what.block),
                   field(2, "what", self.what.what), field(3, "format", self.what.format),
                   field(4, "until", self.until), field(5, "asked_by", self.asked_by));
  }
};

struct PrecisionState {
  static constexpr std::uint32_t kVersion = 4;
  std::uint64_t applied_before = 0;         // oldest plan in force on a rank in the last round
  std::uint32_t silent_rounds = 0;          // in a row without evidence of gradients
  bool short_of_memory = false;             // some rank was short of memory in the last round
  std::vector<StandingRequest> requests{};  // the last one for a block counts
  std::vector<BlockPrecisionState> blocks{};

  static auto fields(auto& self) {
    return message("PrecisionState", field(1, "applied_before", self.applied_before),
                   field(2, "silent_rounds", self.silent_rounds),
                   field(3, "short_of_memory", self.short_of_memory),
                   field(4, "requests", self.requests), field(5, "blocks", self.blocks));
  }
};

inline constexpr std::size_t kMostRequests = 4096;  // in force

// --- the formats of a block -------------------------------------------------------------------

// Held names the source that fixes a block's format.
enum class Held : std::uint8_t { free, by_request, by_rule, by_format };

struct Leeway {
  PrecisionSet allowed = only(Precision::fp32);
  Held held = Held::free;
  Precision wanted = Precision::fp32;  // by the holder, before any clamp
};

// Returns the formats that the block may have, and the source that decides. REQUIRES: `block` is
// below job.blocks.size().
Leeway leeway_of(const JobFacts& job, const PrecisionConfig& config,
                 std::span<const StandingRequest> requests, std::size_t block);

// Returns the nearest format that is no less safe: fp8 and fp16 fall to bf16, all to fp32.
Precision nearest_safe(Precision wanted, PrecisionSet allowed);

// FormatVeto is the reason for which the policy does not choose a format by itself.
enum class FormatVeto : std::uint8_t {
  none,
  not_allowed,
  not_capable,
  imitated,
  not_measured,
  not_faster,
  resting  // from trouble before the restart
};

// BaseFormat is the format of a block before any signal is known.
struct BaseFormat {
  Precision format = Precision::fp32;
  FormatVeto bf16 = FormatVeto::none;  // why not
  FormatVeto fp16 = FormatVeto::none;
};
BaseFormat base_format(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                       std::size_t block);

// Returns why a block does not go to 8 bits, apart from its signals. A block in 8 bits needs bf16
// around its products.
FormatVeto fp8_veto(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                    std::size_t block, Precision base);

// Returns the microseconds of forward and backward; 0 = not measured.
std::int64_t step_us(const JobFacts& job, std::size_t block, Precision format);

// --- a round ----------------------------------------------------------------------------------

struct BlockMove {
  std::size_t block = 0;
  Precision from = Precision::fp32;
  Precision to = Precision::fp32;
  FormatCause cause = FormatCause::none;
  double amount = 0;  // see FormatCause
  RankId rank{-1};    // source of the evidence
  bool for_straggler = false;
  Leeway leeway;
};

// RequestEvent is a request of this round, or a request that ended.
struct RequestEvent {
  enum class What : std::uint8_t { taken, over, unknown_block, not_capable, forbidden, too_many };
  What what = What::taken;
  StandingRequest request;
};

// BlockWaits is a block whose signals allow 8 bits while another condition forbids them.
struct BlockWaits {
  std::size_t block = 0;
  FormatVeto veto = FormatVeto::none;  // none: the block dwells or rests ...
  RoundId until{};                     // ... until this round
};

// PrecisionRound is the policy's reading of one round: the new state and the changes to propose.
// precision.cc puts the changes into sentences.
struct PrecisionRound {
  PrecisionState state;
  std::vector<BlockMove> moves;  // most important first
  std::vector<BlockMove> held;   // trouble in a block that settings or requests hold
  std::vector<RequestEvent> requests;
  std::vector<BlockWaits> waits;
  // The rank that is slow in computing and has no other remedy, or null. The estimates own the
  // object.
  const SlowRank* straggler = nullptr;
};

// Applies requests, reads the evidence of every block and chooses the blocks that should change.
PrecisionRound look_at_round(const PolicyInput& input, PrecisionState state);

}  // namespace cox
