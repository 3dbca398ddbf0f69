#include "coxswain/master_weights.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_copy.h>

#include <set>
#include <string>
#include <utility>

#include "coxswain/error.h"
#include "coxswain/safetensors.h"

namespace cox {
namespace {

void check(const NamedTensor& named) {
  const auto require = [&](bool condition, const std::string& message) {
    if (!condition) {
      throw Error(invalid_argument("MasterWeights: parameter " + named.name + ": " + message));
    }
  };
  require(named.tensor.defined(), "expected a tensor, found an undefined one");
  const at::ScalarType type = named.tensor.scalar_type();
  require(type == at::kBFloat16 || type == at::kHalf || type == at::kFloat || type == at::kDouble,
          std::string("expected bf16, fp16, fp32 or fp64, found ") + c10::toString(type));
  require(named.tensor.layout() == at::kStrided && named.tensor.is_non_overlapping_and_dense(),
          "expected a dense tensor without gaps, found another layout; pass a contiguous one");
}

at::Tensor master_of(const at::Tensor& parameter) {
  if (parameter.scalar_type() == at::kFloat || parameter.scalar_type() == at::kDouble) {
    return parameter;
  }
  return parameter.detach().to(at::kFloat).set_requires_grad(parameter.requires_grad());
}

}  // namespace

MasterWeights::MasterWeights(const std::vector<at::Tensor>& parameters)
    : MasterWeights(detail::without_names(parameters)) {}

MasterWeights::MasterWeights(std::vector<NamedTensor> parameters) {
  std::set<const void*> tensors;
  std::set<std::string> names;
  for (NamedTensor& named : parameters) {
    if (named.name.empty()) named.name = std::to_string(slots_.size());
    check(named);
    if (!tensors.insert(named.tensor.unsafeGetTensorImpl()).second ||
        !names.insert(named.name).second) {
      throw Error(
          invalid_argument("MasterWeights: expected each parameter and each name once, found " +
                           named.name + " given twice"));
    }
    at::Tensor master = master_of(named.tensor);
    slots_.push_back({std::move(named), std::move(master)});
  }
}

std::vector<at::Tensor> MasterWeights::tensors() const {
  std::vector<at::Tensor> out;
  for (const Slot& slot : slots_) out.push_back(slot.master);
  return out;
}

std::vector<NamedTensor> MasterWeights::named() const {
  std::vector<NamedTensor> out;
  for (const Slot& slot : slots_) out.push_back({slot.parameter.name, slot.master});
  return out;
}

MasterWeights::Lists MasterWeights::copies() const {
  Lists lists;
  for (const Slot& slot : slots_) {
    if (!slot.is_copy()) continue;
    lists.parameters.push_back(slot.parameter.tensor);
    lists.masters.push_back(slot.master);
  }
  return lists;
}

void MasterWeights::take_gradients() {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  std::vector<at::Tensor> added;
  for (Slot& slot : slots_) {
    if (!slot.is_copy() || !slot.parameter.tensor.grad().defined()) continue;
    at::Tensor wide = slot.parameter.tensor.grad().to(at::kFloat);
    slot.parameter.tensor.mutable_grad().reset();
    at::Tensor& sum = slot.master.mutable_grad();
    if (sum.defined()) {
      sums.push_back(sum);
      added.push_back(std::move(wide));
    } else {
      sum = std::move(wide);
    }
  }
  if (!sums.empty()) at::_foreach_add_(sums, added);
}

void MasterWeights::give_weights() {
  const at::NoGradGuard no_grad;
  const Lists lists = copies();
  if (!lists.parameters.empty()) at::_foreach_copy_(lists.parameters, lists.masters);
}

void MasterWeights::take_weights() {
  const at::NoGradGuard no_grad;
  const Lists lists = copies();
  if (!lists.parameters.empty()) at::_foreach_copy_(lists.masters, lists.parameters);
}

std::vector<NamedTensor> MasterWeights::state() const {
  std::vector<NamedTensor> out;
  for (const Slot& slot : slots_) {
    if (slot.is_copy()) out.push_back({"master." + slot.parameter.name, slot.master});
  }
  return out;
}

Status MasterWeights::load_state(std::span<const NamedTensor> state) {
  if (Status status = load_into(this->state(), state); !status.ok()) {
    return status.with_context("MasterWeights state");
  }
  give_weights();
  return ok_status();
}

}  // namespace cox
