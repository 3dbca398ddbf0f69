// Faults: what is to go wrong in a run, so that a person sees what Coxswain says of it. A slow rank
// is slowdown.h. Plain value, pure functions; what makes it go wrong is in planted_faults.h.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/core/status.h"

namespace gpt2 {

struct Faults {
  double slow_data_seconds = 0;  // that loading the batch of a step takes longer, on every rank
  double slow_save_seconds = 0;  // that a save takes longer
  std::int64_t leak_mib = 0;     // kept for good in each step, on every rank
  // Steps in which gradients are not finite: both ends included, from 0; none where the first is
  // behind the last.
  std::uint64_t overflow_from = 1;
  std::uint64_t overflow_to = 0;

  bool overflows(std::uint64_t step) const { return overflow_from <= step && step <= overflow_to; }
};

// Takes "30-49" as the steps of the overflow. invalid_argument for anything else.
cox::Status parse_overflow(const std::string& text, Faults& faults);

}  // namespace gpt2
