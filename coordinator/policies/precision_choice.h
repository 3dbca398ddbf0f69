// Which formats a block may have, and which of them is worth having before any signal is known.
// From settings, standing requests, capabilities and measured times alone. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/precision_format.h"
#include "coordinator/policies/precision_notes.h"

namespace cox {

// Who left a block no choice.
enum class Held : std::uint8_t { free, by_request, by_rule, by_format };

struct Leeway {
  PrecisionSet allowed = only(Precision::fp32);
  Held held = Held::free;
  Precision wanted = Precision::fp32;  // what holds it, before anything clamped that
  std::size_t request = 0;             // by_request: which one
};

// Requires: block < job.blocks.size().
Leeway leeway_of(const JobFacts& job, const PrecisionConfig& config,
                 std::span<const StandingRequest> requests, std::size_t block);

// The nearest format that is no less safe: fp8 and fp16 fall to bf16, all to fp32.
Precision nearest_safe(Precision wanted, PrecisionSet allowed);
// The next safer one than `now`; `now` itself when there is none.
Precision safer_than(Precision now, PrecisionSet allowed);

// Why a format is not taken by itself.
enum class FormatVeto : std::uint8_t {
  none,
  not_allowed,
  not_capable,
  imitated,
  not_measured,
  not_faster,
  resting  // from trouble of before the restart
};

// Whether `format` is worth it instead of `other` on the devices of this job.
FormatVeto veto_of(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                   std::size_t block, Precision format, Precision other);

// What a block has while nothing is known of its numbers.
struct BaseFormat {
  Precision format = Precision::fp32;
  FormatVeto bf16 = FormatVeto::none;  // why not
  FormatVeto fp16 = FormatVeto::none;
};
BaseFormat base_format(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                       std::size_t block);

// Why a block does not go to 8 bits, its signals aside. It needs bf16 around its products.
FormatVeto fp8_veto(const JobFacts& job, const PrecisionConfig& config, PrecisionSet allowed,
                    std::size_t block, Precision base);

// Microseconds of forward and backward; 0 = not measured.
std::int64_t step_us(const JobFacts& job, std::size_t block, Precision format);

}  // namespace cox
