#include "sdk/src/stream/script_mirror.h"

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <typeinfo>
#include <unordered_map>

namespace cox::detail {
namespace {

std::string type_name(const torch::jit::Module& script) {
  std::string name;
  for (const std::string& atom : script.type()->name()->atoms()) {
    if (atom.starts_with("___torch_mangle_")) continue;
    name += (name.empty() ? "" : ".") + atom;
  }
  return name;
}

}  // namespace

class ScriptMirror::Maker {
 public:
  std::shared_ptr<ScriptMirror> make(const torch::jit::Module& script) {
    std::shared_ptr<ScriptMirror>& made = made_[script._ivalue().get()];
    if (made == nullptr) {
      made.reset(new ScriptMirror(script));
      fill(*made, script);
    }
    return made;
  }

 private:
  void fill(ScriptMirror& mirror, const torch::jit::Module& script) {
    for (const auto& parameter : script.named_parameters(/*recurse=*/false))
      mirror.register_parameter(parameter.name, parameter.value, parameter.value.requires_grad());
    for (const auto& buffer : script.named_buffers(/*recurse=*/false))
      mirror.register_buffer(buffer.name, buffer.value);
    for (const auto& child : script.named_children())
      mirror.register_module(child.name, make(child.value));
  }

  std::unordered_map<const void*, std::shared_ptr<ScriptMirror>> made_;
};

ScriptMirror::ScriptMirror(const torch::jit::Module& script)
    : script_(std::make_shared<const torch::jit::Module>(script)), type_(type_name(script)) {}

std::shared_ptr<ScriptMirror> ScriptMirror::of(const torch::jit::Module& script) {
  return Maker().make(script);
}

bool ScriptMirror::mirrors(const torch::jit::Module& script) const {
  return script_->_ivalue() == script._ivalue();
}

std::string type_of(const torch::nn::Module& module) {
  const auto* script = dynamic_cast<const ScriptMirror*>(&module);
  return script == nullptr ? typeid(module).name() : script->type();
}

bool is_script_optimised() {
  return torch::jit::getGraphExecutorOptimize();
}

bool is_in_script() {
  return !torch::jit::currentCallstack().empty();
}

}  // namespace cox::detail
