// RankSignal: the report of one rank about itself since its last report; the first stage of the
// flow. Fixed size and trivially copyable, so a plain gather or a copy into a mailbox moves a
// signal. Written by the training thread of one rank, read by the coordinator. Values, no
// ownership.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "coordinator/core/fields.h"
#include "coordinator/core/memory_front.h"
#include "coordinator/core/phase.h"
#include "coordinator/core/precision_format.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"

namespace cox {

// Flag bits of a signal. Part of the wire format: never renumber.
enum class SignalFlag : std::uint16_t {
  nonfinite_loss = 1 << 0,
  nonfinite_gradient = 1 << 1,
  step_skipped = 1 << 2,
  finished = 1 << 3,          // no steps left; joins rounds with weight zero
  watching = 1 << 4,          // the rank only watches: no reduction of ours, no plans
  full_plan_wanted = 1 << 5,  // a mask was damaged, or its base is unknown to the rank
  rolled_back = 1 << 6,
  step_repeated = 1 << 7,     // all ranks repeat the step: memory, or exact sums
  out_of_memory = 1 << 8,     // a pass ran out of memory; it or its step was run again
  waiting_measured = 1 << 9,  // communication is split into work and `waiting_seconds`
  // Ranks outnumber the cores of their node. Phases leave out the time for which the thread was
  // ready to run and had no core; that time counts as communication and as waiting.
  without_queueing = 1 << 10,
};

// Part of the wire format: never renumber. If only one of two fragments can travel on, the more
// urgent one does. The order of urgency: requests, which are sent once; failures, which every
// report repeats; profiles; evidence of hosts and allocators.
enum class FragmentKind : std::uint16_t {
  none = 0,
  block_profile = 1,
  block_failed = 2,
  precision_request = 3,
  host_evidence = 4,
  allocator_evidence = 5,
};
inline constexpr std::size_t kFragmentKinds = 6;

// Fragment is 64 bytes of slow-changing data that travel with a signal.
struct Fragment {
  FragmentKind kind = FragmentKind::none;
  std::uint16_t size = 0;  // bytes of payload in use, <= 60
  std::array<std::byte, 60> payload{};
};

struct RankSignal {
  static constexpr std::uint32_t kMagic = 0x31584F43;  // "COX1"
  static constexpr std::uint16_t kVersion = 1;

  std::uint32_t magic = kMagic;
  std::uint16_t version = kVersion;
  std::uint16_t flags = 0;  // SignalFlag bits
  RankId rank{};
  std::uint32_t incarnation = 0;  // of the job; signals of other incarnations are foreign
  RoundId round{};                // the newest round that the report covers
  StepId step{};
  std::uint64_t plan_held = 0;         // number of the newest plan held whole
  std::uint64_t plan_applied = 0;      // number of the plan in force during `round`
  double loss = 0;                     // the rank's weighted mean over the covered rounds
  double weight = 0;                   // sum of the weights behind `loss` (samples or tokens)
  double gradient_norm = 0;            // L2 norm of the averaged gradient; NaN = not measured
  double wall_seconds = 0;             // since the last report
  PhaseSeconds phase_seconds{};        // since the last report
  std::uint32_t rounds = 0;            // rounds covered since the last report
  std::uint32_t samples = 0;           // trained on since the last report
  std::uint32_t nonfinite_values = 0;  // in the rank's gradients before reduction
  std::uint32_t control_errors = 0;    // damaged frames and similar errors, since the start
  std::uint64_t tokens = 0;
  std::uint64_t memory_used_bytes = 0;
  std::uint64_t memory_peak_bytes = 0;   // high water since the last report
  std::uint64_t memory_limit_bytes = 0;  // 0 = unknown
  Fragment fragment{};
  float loss_scale = 0;  // of the newest covered round; 0 = no active scaler
  // Seconds that gradient buckets took from launch to result since the last report, summed over
  // buckets; and the part after the end of backward, which no computation hides.
  float reduction_seconds = 0;
  float reduction_exposed_seconds = 0;
  // FLOPs of the rank's model since the last report, forward and backward, from the newest step
  // with counted operators (operator_flops.h); 0 = not known.
  float flops = 0;
  // The part of the communication phase before the last rank arrived, since the last report. The
  // rest of the phase is the rank's own. 0 without the flag waiting_measured.
  float waiting_seconds = 0;
  // The part of the backward phase in which the rank made dropped activations again or waited for
  // offloaded ones, since the last report: the cost of its memory actions.
  float recompute_seconds = 0;
  // Seconds for which the rank saved between its steps while others waited, since the last report.
  float save_seconds = 0;
  std::uint32_t checksum = 0;  // set by seal()

  bool has(SignalFlag flag) const { return (flags & static_cast<std::uint16_t>(flag)) != 0; }
  // Returns whether the rank takes part in the steps and so applies plans.
  bool applies_plans() const { return !has(SignalFlag::watching) && !has(SignalFlag::finished); }
  void set(SignalFlag flag) { flags |= static_cast<std::uint16_t>(flag); }
};

static_assert(sizeof(RankSignal) == 256);
static_assert(std::is_trivially_copyable_v<RankSignal>);

// Writes the checksum; the last step before a signal leaves its rank.
void seal(RankSignal& signal);

// Returns data_loss unless magic, version and checksum are those of a sealed signal, the rank lies
// in [0, kMaxRanks), and the fragment's size fits.
Status check(const RankSignal& signal);

// Merges `earlier` into `later`, for a rank whose report cannot leave yet. Adds seconds, samples
// and rounds, keeps the larger peak, and averages losses by weight. Ids and present state are the
// later report's; events of either report stay. Keeps the more urgent fragment (FragmentKind); of
// two equally urgent ones the later.
RankSignal merge_reports(const RankSignal& earlier, const RankSignal& later);

// BlockProfile has the costs of a block on a rank, one block per fragment. Sent after the first
// measurement, after a change of shapes, and after each new measurement of times.
struct BlockProfile {
  static constexpr FragmentKind kKind = FragmentKind::block_profile;
  BlockId block{};
  std::uint16_t blocks = 0;       // in the model
  std::array<char, 24> name{};    // NUL-padded, cut at 24 bytes (its end is kept)
  std::uint32_t parameters = 0;   // elements, saturating
  std::uint64_t saved_bytes = 0;  // bytes that autograd keeps for backward
  float forward_seconds = 0;
  float backward_seconds = 0;
  float boundary_kib = 0;  // inputs and outputs
  float flops = 0;         // of a step, forward and backward; 0 = not known
};

// BlockFailure reports a block that could not run under the action of the plan. The rank keeps the
// block at once. The rank repeats the failure in every report until it applies a plan without that
// action.
struct BlockFailure {
  static constexpr FragmentKind kKind = FragmentKind::block_failed;
  BlockId block{};
  std::uint16_t blocks = 0;  // in the model
  MemoryAction action = MemoryAction::recompute;
  std::array<char, 47> what{};  // NUL-padded, cut
};

// PrecisionRequest is a request of the program at run time. The signal of the asking rank carries
// the request.
struct PrecisionRequest {
  static constexpr FragmentKind kKind = FragmentKind::precision_request;
  static constexpr std::uint16_t kEveryBlock = 0xFFFF;
  enum class What : std::uint8_t { force = 0, forbid = 1, release = 2 };  // release ends both
  std::uint16_t block = kEveryBlock;
  What what = What::force;
  Precision format = Precision::fp32;
  std::uint32_t rounds = 0;  // duration; 0 = until released
};

// HostEvidence has the facts about a rank's machine that may slow its ranks down. Sent after a
// noticeable change, and every half minute. Ratios are over the seconds since the sample before.
struct HostEvidence {
  static constexpr FragmentKind kKind = FragmentKind::host_evidence;
  static constexpr float kNotKnown = -1;  // of any field: the machine does not report the value

  std::array<char, 24> host{};            // NUL-padded, cut at 24 bytes (its beginning is kept)
  float steal_ratio = kNotKnown;          // of the cores' time, used by other virtual machines
  float load_per_core = kNotKnown;        // threads that run or want to run, mean of a minute
  float clock_ratio = kNotKnown;          // present over largest clock of the cores
  float throttled_ratio = kNotKnown;      // of the control group's periods without CPU quota left
  float cpu_pressure = kNotKnown;         // of the time (PSI some, 10 s): threads waited for a core
  float memory_pressure = kNotKnown;      // of the time (PSI some, 10 s): for memory
  float io_pressure = kNotKnown;          // of the time (PSI some, 10 s): for disks
  float clock_error_seconds = kNotKnown;  // of the node's clock against rank 0's
  friend bool operator==(const HostEvidence&, const HostEvidence&) = default;
  static auto fields(auto& self) {
    return message(
        "HostEvidence", field(1, "host", self.host), field(2, "steal_ratio", self.steal_ratio),
        field(3, "load_per_core", self.load_per_core), field(4, "clock_ratio", self.clock_ratio),
        field(5, "throttled_ratio", self.throttled_ratio),
        field(6, "cpu_pressure", self.cpu_pressure),
        field(7, "memory_pressure", self.memory_pressure),
        field(8, "io_pressure", self.io_pressure),
        field(9, "clock_error_seconds", self.clock_error_seconds));
  }
};
static_assert(sizeof(HostEvidence) <= 60);

// Returns the host's name in the evidence, without padding. A view into `evidence`.
std::string_view host_name(const HostEvidence& evidence);

// AllocatorEvidence shows how the caching allocator of a rank's device uses its memory. Sent after
// a noticeable change, and every half minute. A rank on the CPU sends none.
struct AllocatorEvidence {
  static constexpr FragmentKind kKind = FragmentKind::allocator_evidence;

  std::uint64_t reserved_bytes = 0;        // held of the device's memory; never 0 when sent
  std::uint64_t active_bytes = 0;          // of these: in tensors, or freed and still in use
  std::uint64_t inactive_split_bytes = 0;  // unused pieces of segments that are partly in use
  std::uint64_t free_bytes = 0;            // left on the device, for all processes
  friend bool operator==(const AllocatorEvidence&, const AllocatorEvidence&) = default;
};
static_assert(sizeof(AllocatorEvidence) == 32);

// Returns whether the change is worth a report: any change of the held bytes, or of a sixteenth of
// them among their uses. Free bytes depend on other processes and never count.
bool differs_noticeably(const AllocatorEvidence& a, const AllocatorEvidence& b);

// Returns a fragment with one of the five contents above.
template <class Content>
Fragment make_fragment(const Content& content) {
  static_assert(sizeof(Content) <= sizeof(Fragment::payload));
  static_assert(std::is_trivially_copyable_v<Content>);
  Fragment fragment{Content::kKind, sizeof(Content), {}};
  std::memcpy(fragment.payload.data(), &content, sizeof content);
  return fragment;
}

// Read the content of a fragment. Return data_loss if the fragment is of another kind or size, or
// its fields are out of range.
Result<BlockProfile> read_block_profile(const Fragment& fragment);
Result<BlockFailure> read_block_failure(const Fragment& fragment);
Result<PrecisionRequest> read_precision_request(const Fragment& fragment);
Result<HostEvidence> read_host_evidence(const Fragment& fragment);
Result<AllocatorEvidence> read_allocator_evidence(const Fragment& fragment);

}  // namespace cox
