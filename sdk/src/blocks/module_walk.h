// Visits a model's modules in the order of their registration, parents first, each module once: the
// order that gives blocks their numbers, the same on every rank that built the same model.
#pragma once

#include <functional>
#include <string>

namespace torch::nn {
class Module;
}

namespace cox::detail {

// path: names of the children on the way, joined by dots; empty for the model itself.
using ModuleVisit = std::function<void(const std::string& path, torch::nn::Module& module)>;

void for_each_module(torch::nn::Module& model, const ModuleVisit& visit);

}  // namespace cox::detail
