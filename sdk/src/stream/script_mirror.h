// ScriptMirror shows a TorchScript module as a torch::nn::Module, with the same submodules,
// parameters and buffers under the same names. So blocks, trials and averages handle one kind of
// model only. The mirror owns its modules, shares the tensors, and keeps the script alive. Later
// changes of the script are not mirrored. One thread makes and uses a mirror.
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
  // Mirrors a submodule held in several places as one module.
  static std::shared_ptr<ScriptMirror> of(const torch::jit::Module& script);

  // Returns whether the mirror shows this very module, not a copy.
  bool mirrors(const torch::jit::Module& script) const;
  // Returns the class name of the scripted module, without the number that serialisation gives to
  // every submodule's class.
  const std::string& type() const { return type_; }

 private:
  class Maker;
  explicit ScriptMirror(const torch::jit::Module& script);

  const std::shared_ptr<const torch::jit::Module> script_;
  const std::string type_;
};

// Returns a text equal for modules of one type, such as the layers of a container.
std::string type_of(const torch::nn::Module& module);

// Returns whether TorchScript's graph optimiser is on for calls of this thread.
bool is_script_optimised();
// Returns whether the shown operator was called by a script, or by TorchScript for a script.
bool is_in_script();

}  // namespace cox::detail
