// Reads the counts of FP8 products. Waits for the device if the counts are there.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "sdk/src/precision/fp8_watch.h"

namespace fp8_test {

inline cox::detail::QuantizeCounts counts_of(const cox::detail::Fp8Seen& seen) {
  if (!seen.pending.defined()) return seen.counts;
  const at::Tensor here = seen.pending.cpu();
  return completed(seen, here.const_data_ptr<double>());
}

inline cox::detail::Fp8Counts take_counts(const std::shared_ptr<cox::detail::Fp8Block>& block) {
  cox::detail::Fp8Reading reading({block});
  reading.wait();
  while (!reading.finish()) {
  }
  return block->take_counts();
}

}  // namespace fp8_test
