// ScriptMirror shows a TorchScript module as the torch::nn::Module that it is not: the same
// submodules, parameters and buffers under the same names. It owns its modules and shares the
// tensors, so blocks, trials and averages need to know one kind of model only. It mirrors the
// script as it is when the mirror is made, and keeps it alive. Made and used by one thread.
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace torch::jit {
struct Module;
}

namespace cox::detail {

class ScriptMirror final : public torch::nn::Module {
 public:
  // A submodule that the script holds in several places is one module in the mirror, too.
  static std::shared_ptr<ScriptMirror> of(const torch::jit::Module& script);

  // Whether it mirrors this very module, not a copy of it.
  bool mirrors(const torch::jit::Module& script) const;
  // The class that the module was scripted from. Serialisation gives every class of a submodule a
  // number of its own, which is left out here.
  const std::string& type() const { return type_; }

 private:
  class Maker;
  explicit ScriptMirror(const torch::jit::Module& script);

  const std::shared_ptr<const torch::jit::Module> script_;
  const std::string type_;
};

// Returns a text that is equal for modules of one type, as the layers of a container are.
std::string type_of(const torch::nn::Module& module);

// Whether TorchScript's graph optimiser is on for what this thread calls.
bool is_script_optimised();
// Whether the operator that is shown was called by a script, or by TorchScript on its behalf.
bool is_in_script();

}  // namespace cox::detail
