#include "sdk/src/training/adopted_models.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {

void AdoptedModel::note_gradients() {
  versions.clear();
  for (const at::Tensor& parameter : parameters) {
    const at::Tensor& gradient = parameter.grad();
    versions.push_back({gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr,
                        gradient.defined() ? version_of(gradient) : 0});
  }
}

bool AdoptedModel::is_new_gradient(std::size_t parameter) const {
  const at::Tensor& gradient = parameters[parameter].grad();
  if (!gradient.defined()) return false;
  return gradient.unsafeGetTensorImpl() != versions[parameter].gradient ||
         version_of(gradient) != versions[parameter].version;
}

bool AdoptedModel::has_new_gradient() const {
  for (std::size_t i = 0; i < versions.size(); ++i) {
    if (is_new_gradient(i)) return true;
  }
  return false;
}

void AdoptedModel::note_forms() {
  forms = forms_of(parameters);
  required = required_of(parameters);
  strides.clear();
  for (const at::Tensor& parameter : parameters) strides.push_back(parameter.strides().vec());
}

bool AdoptedModel::is_as_noted() const {
  if (forms.size() != parameters.size()) return false;  // adopted since
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& now = parameters[i];
    if (now.requires_grad() != required[i] || !forms[i].fits(now) || now.strides() != strides[i])
      return false;
  }
  return true;
}

bool AdoptedModels::has(const torch::nn::Module& model) const {
  return std::ranges::find(models_, &model, &AdoptedModel::module) != models_.end();
}

bool AdoptedModels::has(const torch::jit::Module& script) const {
  return std::ranges::any_of(models_, [&](const AdoptedModel& model) {
    return model.script != nullptr && model.script->mirrors(script);
  });
}

AdoptedModel* AdoptedModels::owner_of(const c10::StorageImpl* storage) {
  for (AdoptedModel& model : models_) {
    if (model.map.owner(storage)) return &model;
  }
  return nullptr;
}

bool AdoptedModels::has_parameter(const at::Tensor& tensor) const {
  return std::ranges::any_of(models_, [&](const AdoptedModel& model) {
    return model.map.owner(storage_impl(tensor)).has_value();
  });
}

std::vector<at::Tensor> AdoptedModels::parameters() const {
  std::vector<at::Tensor> all;
  for (const AdoptedModel& model : models_)
    all.insert(all.end(), model.parameters.begin(), model.parameters.end());
  return all;
}

torch::nn::Module& AdoptedModels::together() {
  if (models_.size() == 1) return *models_.front().module;
  if (together_ != nullptr) return *together_;
  together_ = std::make_unique<torch::nn::Module>("models");
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const std::string name = models_[m].name.empty() ? "model" : models_[m].name;
    const std::shared_ptr<torch::nn::Module> borrowed(std::shared_ptr<void>(), models_[m].module);
    together_->register_module(concat(name, "-", m), borrowed);
  }
  return *together_;
}

AdoptedModel* AdoptedModels::find_again(const at::Tensor& leaf) {
  std::erase_if(strangers_, [](const WeakTensor& each) { return each.expired(); });
  const auto is_leaf = [&](const WeakTensor& each) {
    return each._unsafe_get_target() == leaf.unsafeGetTensorImpl();
  };
  if (std::ranges::any_of(strangers_, is_leaf)) return nullptr;
  is_replaced_ = follow_replaced();
  AdoptedModel* model = owner_of(storage_impl(leaf));
  if (model == nullptr) strangers_.emplace_back(leaf.getIntrusivePtr());
  return model;
}

std::string AdoptedModels::name_now(const at::Tensor& parameter) const {
  for (const AdoptedModel& model : models_) {
    for (const auto& named : model.module->named_parameters()) {
      if (named.value().is_same(parameter))
        return model.name.empty() ? named.key() : model.name + "." + named.key();
    }
  }
  return {};
}

bool AdoptedModels::refresh() {
  return follow_replaced() || version() != noted_version_;
}

bool AdoptedModels::follow_replaced() {
  bool is_replaced = std::exchange(is_replaced_, false);
  for (AdoptedModel& model : models_) is_replaced = model.map.refresh() || is_replaced;
  return is_replaced;
}

std::int64_t AdoptedModels::version() const {
  std::int64_t sum = 0;
  for (const AdoptedModel& model : models_) {
    for (const at::Tensor& parameter : model.parameters) sum += version_of(parameter);
  }
  return sum;
}

std::vector<bool> AdoptedModels::trained() const {
  std::vector<bool> trained;
  for (const AdoptedModel& model : models_) trained.push_back(model.has_new_gradient());
  return trained;
}

void WaitingGradients::came(const AdoptedModels& models) {
  came_in_step_ = true;
  for (const AdoptedModel& model : models.all()) {
    for (std::size_t p = 0; p < model.versions.size(); ++p) {
      if (model.is_new_gradient(p)) parameters_.insert(storage_impl(model.parameters[p]));
    }
  }
}

bool WaitingGradients::has(const at::Tensor& parameter) const {
  return parameter.grad().defined() && parameters_.contains(storage_impl(parameter));
}

}  // namespace cox::detail
