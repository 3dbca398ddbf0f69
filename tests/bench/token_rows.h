// Rows of tokens as a data set, for benchmarks that accept any data.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <span>

#include "coxswain/dataset.h"

namespace cox::bench {

class TokenRows final : public Dataset {
 public:
  // Fills the rows with random bytes, the same in every process.
  TokenRows(std::int64_t samples, std::int64_t length);
  std::int64_t size() const override { return tokens_.size(0); }
  Batch get(std::span<const std::int64_t> indices) const override;

 private:
  at::Tensor tokens_;  // int64 [samples, length + 1]
};

}  // namespace cox::bench
