#include "coxswain/loss_scaler.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>

#include "coordinator/transport/wait.h"
#include "coxswain/adamw.h"
#include "coxswain/error.h"
#include "coxswain/session.h"
#include "sdk/src/precision/unscale.h"
#include "sdk/src/session/session_state.h"

namespace cox {
namespace {

void require(bool condition, const std::string& message) {
  if (!condition) throw Error(failed_precondition("LossScaler: " + message));
}

std::vector<at::Tensor> parameters_of(const AdamW& optimizer) {
  std::vector<at::Tensor> out;
  for (const NamedTensor& named : optimizer.parameters()) out.push_back(named.tensor);
  return out;
}

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> out;
  for (const auto& group : optimizer.param_groups()) {
    out.insert(out.end(), group.params().begin(), group.params().end());
  }
  return out;
}

void check_rules(const ScalerRules& rules, ScalerSync sync) {
  if (Status status = validate(rules); !status.ok()) {
    throw Error(status.with_context("LossScaler"));
  }
  if (sync == ScalerSync::host) return;
  const auto longest = static_cast<std::uint32_t>(std::numeric_limits<std::int32_t>::max());
  const bool can_follow = rules.hysteresis == 1 && rules.growth_interval <= longest &&
                          std::isfinite(rules.max_scale * rules.growth_factor);
  if (can_follow) return;
  throw Error(invalid_argument(
      "LossScaler: expected rules that ScalerSync::device can follow (hysteresis 1, a finite "
      "max_scale x growth_factor, growth_interval below 2^31); use those or ScalerSync::host"));
}

}  // namespace

// What was found in the gradients of one optimizer since the last update().
struct LossScaler::Unit {
  enum class Stage { scaled, unscaled, stepped };
  const void* owner;  // null: parameters of an optimizer that we do not know
  Stage stage = Stage::scaled;
  detail::FoundInf found;
  bool overflow = false;  // on any rank; from settle() on
};

// The state where the gradients are.
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

// With ScalerSync::device the state moves to the first device that is seen.
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

void LossScaler::forget_device() {
  on_device_.reset();
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
  unscale_unit(unit_of(&optimizer), parameters_of(optimizer));
}

void LossScaler::unscale(torch::optim::Optimizer& optimizer) {
  unscale_unit(unit_of(&optimizer), parameters_of(optimizer));
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
  const std::vector<at::Tensor> gradients = detail::gradients_of(parameters);
  require(!gradients.empty() || (session_ != nullptr && session_->world_size() > 1),
          "expected gradients, found none on any parameter; call scale(loss).backward() first");
  if (sync_ == ScalerSync::device) {
    const at::NoGradGuard no_grad;
    const at::Tensor& scale = on_device(gradients.front().device()).scale;
    unit.found = detail::unscale(gradients, scale.to(at::kDouble).reciprocal().to(at::kFloat));
    require(unit.found.size() == 1, "expected parameters on one device with ScalerSync::device");
  } else {
    const auto inverse = static_cast<float>(1.0 / static_cast<double>(state_.scale));
    unit.found = detail::unscale(gradients, at::full({}, inverse, at::kFloat));
  }
  unit.stage = Unit::Stage::unscaled;
}

bool LossScaler::agree(bool found) {
  if (session_ == nullptr || session_->world_size() == 1) return found;
  auto& state = session_->state();
  std::uint64_t any = found ? 1 : 0;
  const Status status = transport::finish(
      state.data(),
      state.data().start_all_reduce(std::as_writable_bytes(std::span<std::uint64_t>(&any, 1)),
                                    transport::max_u64()),
      state.wait_policy());
  if (!status.ok()) throw Error(status.with_context("LossScaler: found inf of all ranks"));
  return any != 0;
}

// Whether the optimizer may step, on this and all other ranks.
bool LossScaler::settle(Unit& unit) {
  unit.overflow = agree(detail::any_found(unit.found));
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
  prepare(unit, parameters_of(optimizer));
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
  prepare(unit, parameters_of(optimizer));
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
  bool overflow = false;
  bool any = false;
  for (const Unit& unit : units_) {
    if (unit.stage != Unit::Stage::stepped) continue;
    any = true;
    overflow = overflow || unit.overflow;
  }
  require(any, "expected a step() or is_finite() before update(), found none since the last one");
  if (sync_ == ScalerSync::device) {
    update_on_device();
  } else {
    state_ = advance(state_, rules_, {.overflow = overflow, .amax = 0});
  }
  units_.clear();
}

void LossScaler::update_on_device() {
  const at::NoGradGuard no_grad;
  at::Tensor found;
  for (const Unit& unit : units_) {
    if (unit.stage != Unit::Stage::stepped) continue;
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

}  // namespace cox
