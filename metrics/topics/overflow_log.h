// Overflow: values that are not finite, with the block, pass and rank in which they arose, as the
// evidence of a round says. The newest few are kept for the status page and the API. Plain values;
// pure functions.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/record.h"

namespace cox::metrics {

enum class Pass : std::uint8_t { forward = 0, backward = 1 };
inline constexpr std::array<std::string_view, 2> kPassNames = {"forward", "backward"};
constexpr std::string_view to_string(Pass pass) {
  return kPassNames[static_cast<std::size_t>(pass)];
}

struct Overflow {
  RoundId round{};
  StepId step{};
  UnixTime time{};
  std::int32_t block = -1;  // -1 = outside of all blocks
  Pass pass = Pass::forward;
  RankId rank{-1};           // the lowest one that saw it; -1 = not known
  std::uint64_t values = 0;  // not finite, over all ranks; 0 = not counted
  float loss_scale = 0;      // in that round; 0 = no scaler at work
  bool was_skipped = false;  // the step was
  friend bool operator==(const Overflow&, const Overflow&) = default;
};

// The overflows of one round, in the order in which blocks run: forward ascending, backward
// descending. One outside of all blocks is only claimed where somebody looked inside them, or a
// policy said so.
std::vector<Overflow> overflows_of(const StepRecord& record, float loss_scale);

inline constexpr std::size_t kOverflowsKept = 16;
// `kept`, oldest first, with those of a newer round; the first of a round, which is to blame, comes
// out last.
std::vector<Overflow> with_overflows(const std::vector<Overflow>& kept,
                                     const std::vector<Overflow>& round);

// "step 123, round 125: block h.2, backward, rank 3: 41 values not finite at loss scale 65536; the
// step was skipped"
std::string overflow_text(const JobFacts& job, const Overflow& overflow);

// "65536", "0.5": in full.
std::string scale_text(double scale);

}  // namespace cox::metrics
