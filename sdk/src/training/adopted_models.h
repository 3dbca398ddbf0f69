// AdoptedModels are the models of an adopted loop: their modules, the blocks that they were divided
// into, and whether a backward pass added to their gradients. Owned by Adoption; training thread
// only; does not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/units.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/stream/block_map.h"
#include "sdk/src/stream/script_mirror.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

// GradientVersion tells whether backward() added to a gradient.
struct GradientVersion {
  const void* gradient = nullptr;
  std::int64_t version = 0;
};

struct AdoptedModel {
  torch::nn::Module* module;
  std::shared_ptr<ScriptMirror> script;  // the module, where that is a script's; else null
  std::string name;
  BlockMap map;
  BlockId::rep first_block;
  std::vector<at::Tensor> parameters;
  // A model that was adopted before the first step; blocks of later ones are not the session's.
  bool has_blocks = true;
  bool is_kept_whole = false;  // a script that was called with TorchScript's optimiser on
  std::vector<GradientVersion> versions = {};
  std::vector<ParameterForm> forms = {};
  std::vector<bool> required = {};

  bool has(BlockId block) const {
    return has_blocks && block.value() >= first_block && block.value() < first_block + map.size();
  }

  // Notes the gradients as they are; has_new_gradient() then tells whether something was added to
  // one of them since.
  void note_gradients();
  bool has_new_gradient() const;
  // Notes the parameters' forms, and which of them require gradients; is_as_noted() then tells
  // whether all are as they were.
  void note_forms();
  bool is_as_noted() const;
};

class AdoptedModels {
 public:
  void add(AdoptedModel model) { models_.push_back(std::move(model)); }
  bool has(const torch::nn::Module& model) const;
  bool has(const torch::jit::Module& script) const;

  const std::vector<AdoptedModel>& all() const { return models_; }

  // Returns the model that has a parameter in this storage, or null.
  AdoptedModel* owner_of(const c10::StorageImpl* storage);
  bool has_parameter(const at::Tensor& tensor) const;
  std::vector<at::Tensor> parameters() const;  // of all, one after another
  // Returns one module with all models; it lives as long as this does.
  torch::nn::Module& together();
  // Returns the model that a leaf of the graph belongs to, whose storage is not known: the program
  // gave a parameter another one (torch::load, Module::to, set_data). Null for a leaf that is none
  // of a model's. A stranger is looked for once.
  AdoptedModel* find_again(const at::Tensor& leaf);
  // Returns the name of a parameter as its module has it now, also of one that was registered after
  // adopt(); nothing where no model has it.
  std::string name_now(const at::Tensor& parameter) const;
  // Follows parameters that the program replaced. Returns whether there were some since the last
  // call.
  bool refresh();

  void note_gradients() {
    for (AdoptedModel& model : models_) model.note_gradients();
  }
  std::vector<bool> trained() const;  // for each model, whether it has a new gradient
  void note_forms() {
    for (AdoptedModel& model : models_) model.note_forms();
  }
  bool are_as_noted() const { return std::ranges::all_of(models_, &AdoptedModel::is_as_noted); }

 private:
  std::vector<AdoptedModel> models_;
  std::unique_ptr<torch::nn::Module> together_;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<WeakTensor> strangers_;  // leaves that no model has
  bool is_replaced_ = false;           // found by find_again()
};

}  // namespace cox::detail
