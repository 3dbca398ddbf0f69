#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>

#include "coxswain/loss_scaler.h"
#include "coxswain/safetensors.h"

namespace cox {
namespace {

constexpr const char* kScale = "loss_scaler.scale";
constexpr const char* kClean = "loss_scaler.clean_steps";
constexpr const char* kStreak = "loss_scaler.overflow_streak";

std::vector<NamedTensor> to_tensors(const ScalerState& state) {
  const auto count = [](std::uint32_t value) {
    return at::full({}, static_cast<std::int64_t>(value), at::TensorOptions(at::kLong));
  };
  return {{kScale, at::full({}, state.scale, at::TensorOptions(at::kFloat))},
          {kClean, count(state.clean_steps)},
          {kStreak, count(state.overflow_streak)}};
}

Status check_count(const NamedTensor& named) {
  const auto value = named.tensor.item<std::int64_t>();
  const std::int64_t most = std::numeric_limits<std::uint32_t>::max();
  if (value >= 0 && value <= most) return ok_status();
  return invalid_argument(named.name + ": expected 0 to " + std::to_string(most) + ", found " +
                          std::to_string(value));
}

Status check_scale(float scale, const ScalerRules& rules) {
  if (std::isfinite(scale) && scale >= rules.min_scale && scale <= rules.max_scale) {
    return ok_status();
  }
  std::ostringstream message;
  message << kScale << ": expected " << rules.min_scale << " to " << rules.max_scale << ", found "
          << scale << "; widen min_scale and max_scale, or start with a new scaler";
  return invalid_argument(message.str());
}

}  // namespace

std::vector<NamedTensor> LossScaler::state() const {
  return to_tensors(value());
}

Status LossScaler::load_state(std::span<const NamedTensor> state) {
  if (!units_.empty()) {
    return failed_precondition(
        "LossScaler state: expected to be loaded between steps, found gradients that were unscaled "
        "and no update() yet; call update() first");
  }
  std::vector<NamedTensor> loaded = to_tensors({});
  Status status = load_into(loaded, state);
  const float scale = loaded[0].tensor.item<float>();
  if (status.ok()) status = check_scale(scale, rules_);
  if (status.ok()) status = check_count(loaded[1]);
  if (status.ok()) status = check_count(loaded[2]);
  if (!status.ok()) return status.with_context("LossScaler state");
  state_ = {.scale = scale,
            .clean_steps = static_cast<std::uint32_t>(loaded[1].tensor.item<std::int64_t>()),
            .overflow_streak = static_cast<std::uint32_t>(loaded[2].tensor.item<std::int64_t>())};
  forget_device();
  return status;
}

}  // namespace cox
