#include "sdk/src/blocks/module_walk.h"

#include <torch/nn/module.h>

#include <unordered_set>

namespace cox::detail {
namespace {

using Visited = std::unordered_set<const torch::nn::Module*>;

void walk(const std::string& path, torch::nn::Module& module, Visited& visited,
          const ModuleVisit& visit) {
  if (!visited.insert(&module).second) return;
  visit(path, module);
  for (const auto& child : module.named_children()) {
    walk(path.empty() ? child.key() : path + "." + child.key(), *child.value(), visited, visit);
  }
}

}  // namespace

void for_each_module(torch::nn::Module& model, const ModuleVisit& visit) {
  Visited visited;
  walk("", model, visited, visit);
}

}  // namespace cox::detail
