// AdoptedModels holds the models of an adopted loop: their modules, their division into blocks, and
// whether a backward pass added to their gradients. Owned by Adoption; training thread only; does
// not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
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

// GradientVersion detects whether backward() added to a gradient.
struct GradientVersion {
  const void* gradient = nullptr;
  std::int64_t version = 0;
};

struct AdoptedModel {
  torch::nn::Module* module;
  std::shared_ptr<ScriptMirror> script;  // the mirrored script if the module is one, else null
  std::string name;
  BlockMap map;
  BlockId::rep first_block;
  std::vector<at::Tensor> parameters;
  // True if the model was adopted before the first step. Later models have no blocks in the
  // session.
  bool has_blocks = true;
  bool is_kept_whole = false;  // a script that was called with TorchScript's optimiser on
  std::vector<GradientVersion> versions = {};
  std::vector<ParameterForm> forms = {};
  std::vector<std::vector<std::int64_t>> strides = {};
  std::vector<bool> required = {};

  bool has(BlockId block) const {
    return has_blocks && block.value() >= first_block && block.value() < first_block + map.size();
  }

  // Records the gradients' versions. has_new_gradient() then tells whether a gradient was added to
  // since.
  void note_gradients();
  bool has_new_gradient() const;
  bool is_new_gradient(std::size_t parameter) const;
  // Records the parameters' forms and strides, and whether each requires gradients. is_as_noted()
  // then tells whether all are unchanged.
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
  std::vector<at::Tensor> parameters() const;  // parameters of all models, one after another
  // Returns one module with all models. The module lives as long as this object.
  torch::nn::Module& together();
  // Returns the model of a graph leaf whose storage is unknown, because the program gave a
  // parameter another storage (torch::load, Module::to, set_data). Returns null for a leaf of no
  // model. Each such leaf is searched for once.
  AdoptedModel* find_again(const at::Tensor& leaf);
  // Returns a parameter's present name in its module, also for one registered after adopt().
  // Returns an empty name if no model has the parameter.
  std::string name_now(const at::Tensor& parameter) const;
  // Follows parameters that the program replaced. Returns whether any were replaced since the last
  // call, or written since note_gradients(). Another thread may have written them, whose operators
  // the stream does not show.
  bool refresh();

  void note_gradients() {
    for (AdoptedModel& model : models_) model.note_gradients();
    noted_version_ = version();
  }
  std::vector<bool> trained() const;  // for each model, whether it has a new gradient
  void note_forms() {
    for (AdoptedModel& model : models_) model.note_forms();
  }
  bool are_as_noted() const { return std::ranges::all_of(models_, &AdoptedModel::is_as_noted); }

 private:
  bool follow_replaced();
  std::int64_t version() const;  // changes with every write to a parameter

  std::vector<AdoptedModel> models_;
  std::int64_t noted_version_ = 0;
  std::unique_ptr<torch::nn::Module> together_;
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  std::vector<WeakTensor> strangers_;  // leaves of no model
  bool is_replaced_ = false;           // found by find_again()
};

// WaitingGradients follows gradients that no update has used yet.
class WaitingGradients {
 public:
  // Records the gradients that are new since AdoptedModels::note_gradients().
  void came(const AdoptedModels& models);
  // Returns whether a backward pass of the open step added to gradients.
  bool came_in_step() const { return came_in_step_; }
  void step_ended() { came_in_step_ = false; }
  // Records a write to a parameter.
  void was_written(const c10::StorageImpl* parameter) { parameters_.erase(parameter); }
  // Returns whether the parameter has a gradient, and no write has followed it.
  bool has(const at::Tensor& parameter) const;

 private:
  std::unordered_set<const c10::StorageImpl*> parameters_;
  bool came_in_step_ = false;
};

}  // namespace cox::detail
