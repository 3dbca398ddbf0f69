#include "tests/bench/token_rows.h"

namespace cox::bench {

TokenRows::TokenRows(std::int64_t samples, std::int64_t length) {
  torch::manual_seed(5);
  tokens_ = torch::randint(256, {samples, length + 1}, at::kLong);
}

Batch TokenRows::get(std::span<const std::int64_t> indices) const {
  const auto rows = torch::tensor(at::ArrayRef<std::int64_t>(indices.data(), indices.size()));
  const at::Tensor picked = tokens_.index_select(0, rows);
  const std::int64_t length = picked.size(1) - 1;
  return {picked.narrow(1, 0, length), picked.narrow(1, 1, length),
          static_cast<std::int64_t>(indices.size())};
}

}  // namespace cox::bench
