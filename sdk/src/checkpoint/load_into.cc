#include <ATen/core/grad_mode.h>

#include <map>
#include <sstream>
#include <string_view>

#include "coxswain/safetensors.h"

namespace cox {
namespace {

constexpr std::size_t kNamesListed = 8;

using ByName = std::map<std::string_view, const NamedTensor*>;

Status index_names(std::span<const NamedTensor> tensors, const char* side, ByName& out) {
  for (const NamedTensor& named : tensors) {
    if (!named.tensor.defined()) {
      return invalid_argument(std::string(side) + " \"" + named.name + "\" is undefined");
    }
    if (!out.emplace(named.name, &named).second) {
      return invalid_argument(std::string(side) + " \"" + named.name + "\" occurs twice");
    }
  }
  return ok_status();
}

std::string list_names(const ByName& names, const ByName& without) {
  std::string out;
  std::size_t count = 0;
  for (const auto& [name, named] : names) {
    if (without.contains(name)) continue;
    if (++count <= kNamesListed) out += (count == 1 ? "" : ", ") + std::string(name);
  }
  if (count > kNamesListed) out += " and " + std::to_string(count - kNamesListed) + " more";
  return out;
}

std::string describe(const at::Tensor& tensor) {
  std::ostringstream out;
  out << c10::toString(tensor.scalar_type()) << tensor.sizes();
  return out.str();
}

std::string differences(const ByName& targets, const ByName& source) {
  std::string out;
  std::size_t count = 0;
  for (const auto& [name, target] : targets) {
    const auto found = source.find(name);
    if (found == source.end()) continue;
    const at::Tensor& want = target->tensor;
    const at::Tensor& have = found->second->tensor;
    if (want.sizes() == have.sizes() && want.scalar_type() == have.scalar_type()) continue;
    if (++count > kNamesListed) continue;
    out += (count == 1 ? "" : ", ") + std::string(name) + " (expected " + describe(want) +
           ", found " + describe(have) + ")";
  }
  if (count > kNamesListed) out += " and " + std::to_string(count - kNamesListed) + " more";
  return out;
}

Status compare(const ByName& targets, const ByName& source) {
  std::string message;
  const auto add = [&](const char* label, const std::string& names) {
    if (!names.empty()) message += (message.empty() ? "" : "; ") + (label + (": " + names));
  };
  add("missing", list_names(targets, source));
  add("unexpected", list_names(source, targets));
  add("different", differences(targets, source));
  if (message.empty()) return ok_status();
  return invalid_argument("the tensors do not fit the model: " + message);
}

}  // namespace

Status load_into(std::span<const NamedTensor> targets, std::span<const NamedTensor> source) {
  ByName to;
  ByName from;
  Status status = index_names(targets, "target", to);
  if (status.ok()) status = index_names(source, "source", from);
  if (status.ok()) status = compare(to, from);
  if (!status.ok()) return status;
  const at::NoGradGuard no_grad;
  for (const auto& [name, target] : to) target->tensor.copy_(from.at(name)->tensor);
  return status;
}

}  // namespace cox
