// StepRow is one rank's record of one step in its run directory. A row has a fixed size and is
// trivially copyable, so that handing over a row is a copy. Plain value.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "coordinator/core/phase.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/units.h"

namespace cox::metrics {

// A block's name, cut at 39 bytes.
using BlockName = std::array<char, 40>;  // NUL-terminated; empty = none

// `parameters`: the parameters were not finite when the step began, so no pass is to blame.
enum class OverflowPass : std::uint8_t { none = 0, forward = 1, backward = 2, parameters = 3 };

// NamedScalar is a value that the training program logged. Names are cut at 15 bytes.
struct NamedScalar {
  std::array<char, 16> name{};  // NUL-terminated; empty = unused
  double value = 0;
};

inline constexpr double kNotMeasured = std::numeric_limits<double>::max();
inline constexpr float kNotMeasuredFloat = std::numeric_limits<float>::max();

struct StepRow {
  static constexpr std::size_t kScalars = 8;

  StepId step{};
  RoundId round{};
  double timestamp = 0;  // Unix time at the end of the step, by this rank's clock
  PhaseSeconds phase_seconds{};
  float waiting_seconds = kNotMeasuredFloat;  // communication until the last rank arrived
  float recompute_seconds = 0;                // the part of backward that memory actions cost
  // All gradient buckets together: from launch to result, and the part after backward.
  float reduction_seconds = 0;
  float reduction_exposed_seconds = 0;
  float save_seconds = 0;  // before the step, if this rank saved

  // kNotMeasured leaves a field out. NaN and infinities are kept, because they are findings.
  double loss = kNotMeasured;
  double gradient_norm = kNotMeasured;
  double learning_rate = kNotMeasured;
  double loss_scale = kNotMeasured;

  // All zero = not measured; both reserved fields zero = unknown.
  std::uint64_t memory_alloc_bytes = 0;
  std::uint64_t memory_reserved_bytes = 0;
  std::uint64_t memory_peak_alloc_bytes = 0;
  std::uint64_t memory_peak_reserved_bytes = 0;
  std::int64_t predicted_peak_bytes = 0;  // under the plan in force; 0 = unknown
  AllocatorEvidence allocator{};          // for the rank's device; reserved 0 = unknown

  std::int64_t headroom_bytes = -1;                 // limit minus peak; -1 = no known limit
  std::uint64_t plan = 0;                           // number of the plan in force
  std::array<std::uint16_t, 4> precision_blocks{};  // index = Precision
  std::uint16_t recomputed_blocks = 0;
  std::uint16_t offloaded_blocks = 0;
  std::uint16_t tiled_blocks = 0;
  std::uint32_t overflow = 0;  // non-finite gradient values on this rank
  bool was_skipped = false;    // the optimizer step, on all ranks
  OverflowPass overflow_pass = OverflowPass::none;
  BlockName
      overflow_block{};  // their origin on this rank; a pass without a name: outside all blocks

  // Samples of this rank in this step; 0 and kNotMeasured = none.
  std::uint32_t sampled_values = 0;
  std::uint32_t underflow_values = 0;        // sampled values flushed to zero
  std::uint32_t saturated_values = 0;        // sampled values clipped
  float gradient_noise = kNotMeasuredFloat;  // noise over signal, mean over the sampled blocks

  std::array<NamedScalar, kScalars> scalars{};

  // Adds or replaces a scalar. Returns false if all places are taken.
  bool add_scalar(std::string_view name, double value);
  // Names the block in which `overflow` arose; an empty name = outside all blocks. Keeps the end of
  // a name that is too long.
  void set_overflow(std::string_view block, OverflowPass pass);
};
static_assert(sizeof(StepRow) <= 512);
static_assert(std::is_trivially_copyable_v<StepRow>);

// StepBuckets records when one rank's gradient buckets of one step were summed. Plain value.
//
// A step may have hundreds of buckets, so only every kEveryRounds-th round keeps them. The number
// is odd, so that steps which sample gradients, each eighth by default, get no more than their
// part.
struct StepBuckets {
  static constexpr std::uint64_t kEveryRounds = 9;
  static constexpr std::size_t kSpans = 32;

  // A bucket, from when this rank's part was complete until the rank had the sum. Seconds count
  // from the end of the step's last backward pass; moments within backward are negative.
  struct Span {
    std::uint32_t buckets = 1;  // more if neighbours share a span
    std::int64_t bytes = 0;
    float begin_seconds = 0;
    float end_seconds = 0;
  };

  RoundId round{};
  std::uint32_t count = 0;  // number of spans
  std::array<Span, kSpans> spans{};

  // Adds the next bucket of `all`. Neighbours share a span if `all` exceeds kSpans.
  void add(const Span& bucket, std::size_t all);
};
static_assert(std::is_trivially_copyable_v<StepBuckets>);

}  // namespace cox::metrics
