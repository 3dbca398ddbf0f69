#include "coordinator/core/parallel_config.h"

#include <string>

#include "coordinator/core/units.h"

namespace cox {
namespace {

Status out_of_range(const std::string& what, const std::string& expected,
                    const std::string& found) {
  return invalid_argument(what + ": expected " + expected + ", found " + found);
}

Status check_rank(const std::string& key, std::int32_t rank) {
  if (rank >= 0 && rank < kMaxRanks) return ok_status();
  return out_of_range(key, "ranks from 0 to " + std::to_string(kMaxRanks - 1),
                      std::to_string(rank));
}

// True for NaN as well.
bool is_outside(double value, double least, double most) {
  return !(value >= least && value <= most);
}

}  // namespace

Status validate(const ReductionConfig& config) {
  if (config.bucket_bytes == 0 || config.bucket_bytes >= 1024) return ok_status();
  return out_of_range("reduction.bucket_bytes", "0 or at least 1024",
                      std::to_string(config.bucket_bytes));
}

Status validate(const SharesConfig& config) {
  for (const auto& [rank, speed] : config.hint) {
    if (Status status = check_rank("shares.hint", rank); !status.ok()) return status;
    if (is_outside(speed, 0.001, 1000)) {
      return out_of_range("shares.hint of rank " + std::to_string(rank),
                          "a speed from 0.001 to 1000", std::to_string(speed));
    }
  }
  for (const auto& [rank, most] : config.max_samples) {
    if (Status status = check_rank("shares.max_samples", rank); !status.ok()) return status;
    if (most < config.min_samples) {
      return out_of_range(
          "shares.max_samples of rank " + std::to_string(rank),
          "at least shares.min_samples (" + std::to_string(config.min_samples) + ")",
          std::to_string(most));
    }
  }
  if (is_outside(config.smallest_gain_ratio, 0, 1)) {
    return out_of_range("shares.smallest_gain_ratio", "0 to 1",
                        std::to_string(config.smallest_gain_ratio));
  }
  return ok_status();
}

Status validate(const AccumulationConfig& config) {
  if (is_outside(config.target_ratio, 0.001, 0.9)) {
    return out_of_range("accumulation.target_ratio", "0.001 to 0.9",
                        std::to_string(config.target_ratio));
  }
  if (config.min_anchor < 1 || config.min_anchor > config.max_anchor) {
    return out_of_range("accumulation.min_anchor",
                        "1 to accumulation.max_anchor (" + std::to_string(config.max_anchor) + ")",
                        std::to_string(config.min_anchor));
  }
  return ok_status();
}

}  // namespace cox
