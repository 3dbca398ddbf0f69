#include "coxswain/loss_scaler.h"

#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/safetensors.h"
#include "coxswain/session.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/optimizer_port.h"

namespace cox {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw Error(failed_precondition("LossScaler: " + message));
}

void check_rules(const ScalerRules& rules, ScalerSync sync) {
  detail::require(validate(rules), "LossScaler");
  if (sync == ScalerSync::host) return;
  const auto longest = static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max());
  const bool can_follow = rules.hysteresis == 1 && rules.growth_interval <= longest &&
                          std::isfinite(rules.max_scale * rules.growth_factor);
  if (can_follow) return;
  throw Error(invalid_argument(
      "LossScaler: expected rules that ScalerSync::device can follow (hysteresis 1, a finite "
      "max_scale x growth_factor, growth_interval below 2^31); use those or ScalerSync::host"));
}

Error refused(std::size_t index, const at::Tensor& parameter, const std::string& found,
              const std::string& advice) {
  return Error(invalid_argument("LossScaler: expected dense gradients in fp32, found a " + found +
                                " gradient (parameter " + std::to_string(index) + ", shape " +
                                c10::str(parameter.sizes()) + "); " + advice));
}

// One float32 element for each device, on the device: 1 if a gradient there is not finite, else 0.
using FoundInf = std::vector<at::Tensor>;

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (!gradient.defined()) continue;
    if (gradient.layout() != at::kStrided) {
      throw refused(i, parameters[i], "sparse", "use a dense embedding");
    }
    if (gradient.scalar_type() == at::kHalf) {
      throw refused(i, parameters[i], "fp16",
                    "keep parameters in fp32 and compute under cox::PrecisionScope, or use "
                    "cox::MasterWeights");
    }
    gradients.push_back(gradient);
  }
  return gradients;
}

// `inverse_on` returns 1 / scale, on the device of the given options.
FoundInf unscaled(const std::vector<at::Tensor>& gradients,
                  const std::function<at::Tensor(const at::TensorOptions&)>& inverse_on) {
  const at::NoGradGuard no_grad;
  using Place = std::pair<at::DeviceType, at::DeviceIndex>;
  std::map<Place, std::map<at::ScalarType, std::vector<at::Tensor>>> lists;
  for (const at::Tensor& gradient : gradients) {
    const at::Device device = gradient.device();
    lists[{device.type(), device.index()}][gradient.scalar_type()].push_back(gradient);
  }
  FoundInf found;
  for (auto& [place, by_type] : lists) {
    const auto options = at::TensorOptions(at::Device(place.first, place.second)).dtype(at::kFloat);
    at::Tensor found_here = at::zeros({}, options);
    const at::Tensor inverse = inverse_on(options);
    for (auto& [type, list] : by_type) {
      at::_amp_foreach_non_finite_check_and_unscale_(list, found_here, inverse);
    }
    found.push_back(found_here);
  }
  return found;
}

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
  return invalid_argument(kScale, ": expected ", general(rules.min_scale, 6), " to ",
                          general(rules.max_scale, 6), ", found ", general(scale, 6),
                          "; widen min_scale and max_scale, or start with a new scaler");
}

}  // namespace

// Unit is the result for the gradients of one optimizer since the last update().
struct LossScaler::Unit {
  enum class Stage { scaled, unscaled, stepped };
  const void* owner;  // null: parameters of an unknown optimizer
  Stage stage = Stage::scaled;
  FoundInf found;
  bool overflow = false;  // on any rank; from settle() on
};

// OnDevice is the scaler's state on the device of the gradients.
struct LossScaler::OnDevice {
  at::Tensor scale;    // float32, one element
  at::Tensor tracker;  // int32, one element: clean steps
};

LossScaler::LossScaler(ScalerRules rules, ScalerSync sync)
    : rules_(rules), state_(initial_state(rules)), sync_(sync) {
  check_rules(rules, sync);
}

LossScaler::LossScaler(Session& session, ScalerRules rules) : LossScaler(rules) {
  session_ = &session;
}

LossScaler::LossScaler(LossScaler&&) noexcept = default;
LossScaler& LossScaler::operator=(LossScaler&&) noexcept = default;
LossScaler::~LossScaler() = default;

LossScaler::Unit& LossScaler::unit_of(const void* owner) {
  for (Unit& unit : units_) {
    if (unit.owner == owner) return unit;
  }
  return units_.emplace_back(Unit{.owner = owner, .found = {}});
}

// With ScalerSync::device the state moves to the first device in use.
LossScaler::OnDevice& LossScaler::on_device(const at::Device& device) {
  const at::NoGradGuard no_grad;
  if (!on_device_) {
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    const auto longest = static_cast<std::int64_t>(rules_.growth_interval) - 1;
    const auto clean = std::min<std::int64_t>(state_.clean_steps, longest);
    on_device_ = std::make_unique<OnDevice>(OnDevice{at::full({}, state_.scale, options),
                                                     at::full({}, clean, options.dtype(at::kInt))});
  }
  require(on_device_->scale.device() == device,
          "expected everything on " + on_device_->scale.device().str() + ", found a tensor on " +
              device.str() + "; ScalerSync::host works with several devices");
  return *on_device_;
}

at::Tensor LossScaler::scale(const at::Tensor& loss) {
  if (!loss.defined() || !loss.is_floating_point()) {
    throw Error(invalid_argument("LossScaler: expected a loss of floating type, found " +
                                 (loss.defined() ? std::string(c10::toString(loss.scalar_type()))
                                                 : std::string("an undefined tensor"))));
  }
  const bool is_wide = loss.scalar_type() == at::kFloat || loss.scalar_type() == at::kDouble;
  const at::Tensor wide = is_wide ? loss : loss.to(at::kFloat);
  if (sync_ == ScalerSync::device) return wide * on_device(loss.device()).scale;
  return wide * static_cast<double>(state_.scale);
}

void LossScaler::unscale(AdamW& optimizer) {
  unscale_unit(unit_of(&optimizer), detail::parameters_of(optimizer));
}

void LossScaler::unscale(torch::optim::Optimizer& optimizer) {
  unscale_unit(unit_of(&optimizer), detail::parameters_of(optimizer));
}

void LossScaler::unscale(std::span<const at::Tensor> parameters) {
  unscale_unit(unit_of(nullptr), {parameters.begin(), parameters.end()});
}

void LossScaler::unscale_unit(Unit& unit, const std::vector<at::Tensor>& parameters) {
  require(unit.stage != Unit::Stage::unscaled,
          "expected one unscale() between two update(), found a second one; the gradients were "
          "divided by the scale already");
  require(unit.stage != Unit::Stage::stepped,
          "expected unscale() before step(), found it after; call update() first");
  const std::vector<at::Tensor> gradients = gradients_of(parameters);
  require(!gradients.empty() || sync_ == ScalerSync::host,
          "expected gradients with ScalerSync::device, found none on any parameter; call "
          "scale(loss).backward() first, or use ScalerSync::host");
  if (sync_ == ScalerSync::device) {
    const at::NoGradGuard no_grad;
    const at::Tensor& scale = on_device(gradients.front().device()).scale;
    const at::Tensor inverse = scale.to(at::kDouble).reciprocal().to(at::kFloat);
    unit.found = unscaled(gradients, [&](const at::TensorOptions& options) {
      return inverse.to(options.device(), /*non_blocking=*/true);
    });
    require(unit.found.size() == 1, "expected parameters on one device with ScalerSync::device");
  } else {
    const auto inverse = static_cast<float>(1.0 / static_cast<double>(state_.scale));
    unit.found = unscaled(gradients, [inverse](const at::TensorOptions& options) {
      return at::full({}, inverse, options);  // a kernel on the device; a copy would wait
    });
  }
  unit.stage = Unit::Stage::unscaled;
}

bool LossScaler::agree(bool found) {
  if (session_ == nullptr || session_->world_size() == 1) return found;
  std::uint64_t any = found ? 1 : 0;
  const detail::Membership& job = session_->state().job();
  const auto named = job.world().name_calls("a step of a LossScaler");
  detail::require(detail::reduce_values(job.data(), std::span(&any, 1), transport::max_u64(),
                                        job.world().between_polls()),
                  "LossScaler: found inf of all ranks");
  return any != 0;
}

// Returns whether the optimizer may step, on this and all other ranks.
bool LossScaler::settle(Unit& unit) {
  unit.overflow = agree(std::ranges::any_of(
      unit.found, [](const at::Tensor& found) { return found.item<float>() != 0; }));
  unit.stage = Unit::Stage::stepped;
  return !unit.overflow;
}

void LossScaler::prepare(Unit& unit, const std::vector<at::Tensor>& parameters) {
  require(unit.stage != Unit::Stage::stepped,
          "expected one step() of an optimizer between two update(), found a second one");
  if (unit.stage == Unit::Stage::scaled) unscale_unit(unit, parameters);
}

bool LossScaler::step(AdamW& optimizer) {
  Unit& unit = unit_of(&optimizer);
  prepare(unit, detail::parameters_of(optimizer));
  if (sync_ == ScalerSync::device) {
    optimizer.step({.grad_scale = {}, .found_inf = unit.found.front()});
    unit.stage = Unit::Stage::stepped;
    return true;
  }
  const bool updates = settle(unit);
  if (updates) optimizer.step();
  return updates;
}

bool LossScaler::step(torch::optim::Optimizer& optimizer) {
  require(sync_ == ScalerSync::host,
          "expected cox::AdamW with ScalerSync::device, found an optimizer of torch, which cannot "
          "skip without the host; use ScalerSync::host");
  Unit& unit = unit_of(&optimizer);
  prepare(unit, detail::parameters_of(optimizer));
  const bool updates = settle(unit);
  if (updates) optimizer.step();
  return updates;
}

bool LossScaler::is_finite() {
  Unit& unit = unit_of(nullptr);
  require(unit.stage != Unit::Stage::scaled, "expected unscale(parameters) before is_finite()");
  return unit.stage == Unit::Stage::stepped ? !unit.overflow : settle(unit);
}

void LossScaler::update() {
  std::erase_if(units_, [](const Unit& unit) { return unit.stage == Unit::Stage::scaled; });
  require(!units_.empty(),
          "expected unscale(), step() or is_finite() before update(), found none since the last "
          "one");
  if (sync_ == ScalerSync::device) {
    update_on_device();
  } else {
    bool overflow = false;
    for (Unit& unit : units_) {
      if (unit.stage == Unit::Stage::unscaled) settle(unit);  // unscaled, and not stepped
      overflow = overflow || unit.overflow;
    }
    state_ = advance(state_, rules_, {.overflow = overflow, .amax = 0});
  }
  units_.clear();
}

void LossScaler::update_on_device() {
  const at::NoGradGuard no_grad;
  at::Tensor found;
  for (const Unit& unit : units_) {
    found = found.defined() ? at::maximum(found, unit.found.front()) : unit.found.front();
  }
  at::_amp_update_scale_(on_device_->scale, on_device_->tracker, found,
                         static_cast<double>(rules_.growth_factor),
                         static_cast<double>(rules_.backoff_factor), rules_.growth_interval);
  on_device_->scale.clamp_(rules_.min_scale, rules_.max_scale);
}

ScalerState LossScaler::value() const {
  if (!on_device_) return state_;
  ScalerState state = state_;
  state.scale = on_device_->scale.item<float>();
  state.clean_steps = static_cast<std::uint32_t>(on_device_->tracker.item<std::int32_t>());
  return state;
}

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
  on_device_.reset();
  return status;
}

}  // namespace cox
