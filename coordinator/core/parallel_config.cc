#include "coordinator/core/parallel_config.h"

#include <string>

namespace cox {

Status validate(const ReductionConfig& config) {
  if (config.bucket_bytes != 0 && config.bucket_bytes < 1024) {
    return invalid_argument("reduction.bucket_bytes: expected 0 or at least 1024, found " +
                            std::to_string(config.bucket_bytes));
  }
  return ok_status();
}

Status validate(const SharesConfig& config) {
  for (const auto& [rank, most] : config.max_samples) {
    if (most >= config.min_samples) continue;
    return invalid_argument("shares.max_samples of rank " + std::to_string(rank) +
                            ": expected at least shares.min_samples (" +
                            std::to_string(config.min_samples) + "), found " +
                            std::to_string(most));
  }
  return ok_status();
}

Status validate(const AccumulationConfig& config) {
  if (config.min_anchor <= config.max_anchor) return ok_status();
  return invalid_argument("accumulation.min_anchor (" + std::to_string(config.min_anchor) +
                          "): expected at most accumulation.max_anchor (" +
                          std::to_string(config.max_anchor) + ")");
}

}  // namespace cox
