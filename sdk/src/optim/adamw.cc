#include "coxswain/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/checkpoint/tensor_file.h"

namespace cox {
namespace {

void require_option(bool condition, const std::string& message) {
  if (!condition) throw Error(invalid_argument("AdamW: " + message));
}

void check_lr(double lr) {
  require_option(std::isfinite(lr) && lr >= 0, concat("expected lr >= 0, found ", lr));
}

void check_options(const AdamWOptions& o) {
  const auto in_unit = [](double beta) { return beta >= 0 && beta < 1; };
  check_lr(o.lr);
  require_option(in_unit(o.beta1), concat("expected beta1 in [0, 1), found ", o.beta1));
  require_option(in_unit(o.beta2), concat("expected beta2 in [0, 1), found ", o.beta2));
  require_option(std::isfinite(o.eps) && o.eps >= 0, "expected eps >= 0");
  require_option(std::isfinite(o.weight_decay) && o.weight_decay >= 0,
                 "expected weight_decay >= 0");
}

void check_parameter(const std::string& name, const at::Tensor& parameter) {
  const std::string who = "parameter " + name + ": expected a ";
  require_option(parameter.defined(), who + "tensor, found an undefined one");
  require_option(
      parameter.is_floating_point(),
      who + "floating dtype, found " + std::string(c10::toString(parameter.scalar_type())));
  require_option(parameter.layout() == c10::kStrided && parameter.is_non_overlapping_and_dense(),
                 who + "dense tensor without gaps; pass a contiguous one");
}

constexpr std::string_view kFirst = "exp_avg.";
constexpr std::string_view kSecond = "exp_avg_sq.";
constexpr std::string_view kStep = "step.";
constexpr std::array kFields = {kFirst, kSecond, kStep};

template <class Slot>
void add_state(const Slot& slot, std::vector<NamedTensor>& out) {
  out.push_back({std::string(kFirst) + slot.name, slot.exp_avg});
  out.push_back({std::string(kSecond) + slot.name, slot.exp_avg_sq});
  out.push_back({std::string(kStep) + slot.name, slot.step});
}

// Returns the tensor if laid out like `form`, else a copy in the layout of `form`.
at::Tensor laid_out_as(const at::Tensor& form, const at::Tensor& tensor) {
  const bool is_alike = tensor.device() == form.device() && tensor.strides() == form.strides();
  return is_alike ? tensor.detach() : at::empty_like(form).copy_(tensor);
}

}  // namespace

// Lists are the arguments of one call of the kernel: parameters of one device and dtype, with their
// state.
struct AdamW::Lists {
  std::vector<at::Tensor> parameters, gradients, exp_avgs, exp_avg_sqs, steps;
};

AdamW::AdamW(const std::vector<at::Tensor>& parameters, AdamWOptions options)
    : AdamW(std::vector<AdamWGroup>{{detail::without_names(parameters), options}}) {}

AdamW::AdamW(std::vector<AdamWGroup> groups) {
  for (AdamWGroup& group : groups) add_group(std::move(group));
  std::set<const void*> tensors;
  std::set<std::string> names;
  for (const NamedTensor& named : this->parameters()) {
    require_option(tensors.insert(named.tensor.unsafeGetTensorImpl()).second,
                   "expected each parameter once, found " + named.name + " given twice");
    require_option(names.insert(named.name).second,
                   "expected a name of its own for each parameter, found two " + named.name);
  }
}

void AdamW::add_group(AdamWGroup group) {
  check_options(group.options);
  std::size_t index = 0;
  for (const Group& earlier : groups_) index += earlier.slots.size();
  Group out{.slots = {}, .options = group.options};
  for (NamedTensor& named : group.parameters) {
    if (named.name.empty()) named.name = std::to_string(index);
    ++index;
    check_parameter(named.name, named.tensor);
    out.slots.push_back({.name = std::move(named.name),
                         .parameter = std::move(named.tensor),
                         .exp_avg = {},
                         .exp_avg_sq = {},
                         .step = {}});
  }
  groups_.push_back(std::move(out));
}

// The kernel walks raw memory, so a gradient needs its parameter's layout.
at::Tensor AdamW::gradient_of(const Slot& slot) {
  const at::Tensor& grad = slot.parameter.grad();
  if (!grad.defined()) return grad;
  require_option(grad.layout() == c10::kStrided,
                 "parameter " + slot.name + " has a sparse gradient");
  require_option(
      grad.sizes() == slot.parameter.sizes() && grad.scalar_type() == slot.parameter.scalar_type(),
      "parameter " + slot.name + " and its gradient differ in shape or dtype");
  if (grad.strides() == slot.parameter.strides()) return grad;
  return at::empty_like(slot.parameter).copy_(grad);
}

void AdamW::start(Slot& slot) {
  slot.exp_avg = at::zeros_like(slot.parameter);
  slot.exp_avg_sq = at::zeros_like(slot.parameter);
  slot.step = at::zeros({}, slot.parameter.options().dtype(at::kFloat));
}

void AdamW::step(const GradientScaling& scaling) {
  const at::NoGradGuard no_grad;
  for (Group& group : groups_) {
    std::map<std::tuple<int, int, int>, Lists> calls;
    for (Slot& slot : group.slots) {
      at::Tensor gradient = gradient_of(slot);
      if (!gradient.defined()) continue;
      if (!slot.exp_avg.defined()) start(slot);
      const c10::Device device = slot.parameter.device();
      Lists& lists = calls[{static_cast<int>(device.type()), device.index(),
                            static_cast<int>(slot.parameter.scalar_type())}];
      lists.parameters.push_back(slot.parameter);
      lists.gradients.push_back(std::move(gradient));
      lists.exp_avgs.push_back(slot.exp_avg);
      lists.exp_avg_sqs.push_back(slot.exp_avg_sq);
      lists.steps.push_back(slot.step);
    }
    for (const auto& [where, lists] : calls) update(lists, group.options, scaling);
  }
}

void AdamW::update(const Lists& lists, const AdamWOptions& options,
                   const GradientScaling& scaling) {
  at::_foreach_add_(lists.steps, 1);
  at::_fused_adamw_(lists.parameters, lists.gradients, lists.exp_avgs, lists.exp_avg_sqs,
                    /*max_exp_avg_sqs=*/{}, lists.steps, options.lr, options.beta1, options.beta2,
                    options.weight_decay, options.eps, /*amsgrad=*/false, /*maximize=*/false,
                    scaling.grad_scale, scaling.found_inf);
  if (scaling.found_inf) {
    const at::Tensor skipped = scaling.found_inf->reshape({});
    at::_foreach_sub_(lists.steps, std::vector<at::Tensor>(lists.steps.size(), skipped));
  }
}

void AdamW::zero_grad(ZeroGrad how) {
  const at::NoGradGuard no_grad;
  for (Group& group : groups_) {
    for (Slot& slot : group.slots) {
      at::Tensor& grad = slot.parameter.mutable_grad();
      if (!grad.defined()) continue;
      if (how == ZeroGrad::undefined) {
        grad.reset();
      } else {
        if (grad.requires_grad()) grad = grad.detach();
        grad.zero_();
      }
    }
  }
}

void AdamW::set_lr(double lr) {
  for (std::size_t i = 0; i < groups_.size(); ++i) set_lr(i, lr);
}

void AdamW::set_lr(std::size_t group, double lr) {
  check_lr(lr);
  groups_.at(group).options.lr = lr;
}

std::vector<NamedTensor> AdamW::parameters() const {
  std::vector<NamedTensor> out;
  for (const Group& group : groups_) {
    for (const Slot& slot : group.slots) out.push_back({slot.name, slot.parameter});
  }
  return out;
}

std::vector<NamedTensor> AdamW::state() const {
  std::vector<NamedTensor> out;
  for (const Group& group : groups_) {
    for (const Slot& slot : group.slots) {
      if (slot.exp_avg.defined()) add_state(slot, out);
    }
  }
  return out;
}

Status AdamW::load_state(std::span<const NamedTensor> state) {
  std::vector<NamedTensor> copies(state.begin(), state.end());
  for (NamedTensor& each : copies) {
    if (each.tensor.defined()) each.tensor = each.tensor.detach().clone();
  }
  return take_state(copies);
}

// Returns the slot with tensors in the form of its state. Nothing reads their values.
AdamW::Slot AdamW::forms_of(Slot slot) {
  slot.exp_avg = slot.exp_avg_sq = at::empty_like(slot.parameter);
  slot.step = at::empty({}, slot.parameter.options().dtype(at::kFloat));
  return slot;
}

Status AdamW::take_state(std::span<const NamedTensor> state) {
  std::map<std::string_view, at::Tensor> given;
  for (const NamedTensor& named : state) given.emplace(named.name, named.tensor);
  const auto take = [&](std::string_view prefix, const std::string& name, at::Tensor& field) {
    const auto found = given.find(concat(prefix, name));
    if (found != given.end()) field = laid_out_as(field, found->second);
  };
  std::vector<Group> loaded = groups_;
  std::vector<NamedTensor> targets;
  std::vector<Slot*> saved;
  for (Group& group : loaded) {
    for (Slot& slot : group.slots) {
      slot.exp_avg = slot.exp_avg_sq = slot.step = at::Tensor();
      const bool any = std::ranges::any_of(kFields, [&](std::string_view field) {
        return given.contains(concat(field, slot.name));
      });
      if (!any) continue;
      slot = forms_of(std::move(slot));
      saved.push_back(&slot);
      add_state(slot, targets);
    }
  }
  if (Status fits = detail::check_match(targets, state); !fits.ok())
    return fits.with_context("AdamW state");
  const at::NoGradGuard no_grad;
  for (Slot* slot : saved) {
    take(kFirst, slot->name, slot->exp_avg);
    take(kSecond, slot->name, slot->exp_avg_sq);
    take(kStep, slot->name, slot->step);
  }
  groups_ = std::move(loaded);
  return ok_status();
}

}  // namespace cox
