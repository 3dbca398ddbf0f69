#include "sdk/src/checkpoint/partial_load.h"

#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "sdk/src/checkpoint/tensor_file.h"

namespace cox::detail {
namespace {

using ByName = std::map<std::string_view, const NamedTensor*>;

ByName by_name(std::span<const NamedTensor> tensors) {
  ByName named;
  for (const NamedTensor& each : tensors) named.emplace(each.name, &each);
  return named;
}

bool is_alike(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes();
}

// Returns the present tensors, with the save's values for those that match.
std::vector<NamedTensor> matched(std::span<const NamedTensor> present, const ByName& saved,
                                 std::set<std::string_view>& names) {
  std::vector<NamedTensor> out;
  for (const NamedTensor& each : present) {
    const auto found = saved.find(each.name);
    const bool matches = found != saved.end() && is_alike(each.tensor, found->second->tensor);
    out.push_back({each.name, matches ? found->second->tensor : each.tensor});
    if (matches) names.insert(each.name);
  }
  return out;
}

// "exp_avg.layers.0.weight" is state of a parameter; "1/..." is of the second optimizer.
std::string_view parameter_of(std::string_view name) {
  const std::size_t dot = name.find('.');
  return dot == name.npos ? std::string_view() : name.substr(dot + 1);
}

std::string_view without_number(std::string_view name) {
  const std::size_t slash = name.find('/');
  const bool is_number = slash != name.npos && slash > 0 &&
                         name.substr(0, slash).find_first_not_of("0123456789") == name.npos;
  return is_number ? name.substr(slash + 1) : name;
}

bool is_of_program(std::string_view name) {
  name = without_number(name);
  return name == "kind" || name.starts_with("options.") || name.starts_with("group.");
}

// An optimizer of another kind has other fields.
bool is_same_kind(const ByName& saved, const ByName& present) {
  return std::ranges::all_of(present, [&](const auto& each) {
    if (without_number(each.first) != "kind") return true;
    const auto found = saved.find(each.first);
    return found != saved.end() && at::equal(found->second->tensor, each.second->tensor);
  });
}

std::vector<NamedTensor> optimizer_for(const Checkpoint& saved, const Checkpoint& present,
                                       const std::set<std::string_view>& parameters) {
  const ByName known = by_name(present.optimizer);
  std::vector<NamedTensor> out;
  std::set<std::string_view> taken;
  const bool is_same = is_same_kind(by_name(saved.optimizer), known);
  for (const NamedTensor& each : saved.optimizer) {
    const bool is_wanted = is_same && !is_of_program(each.name) &&
                           parameters.contains(parameter_of(without_number(each.name)));
    if (!is_wanted) continue;
    out.push_back(each);
    taken.insert(each.name);
  }
  for (const NamedTensor& each : present.optimizer) {
    if (!taken.contains(each.name)) out.push_back(each);
  }
  return out;
}

}  // namespace

PartialLoad fit_to(Checkpoint saved, const Checkpoint& present) {
  std::string left = describe_unmatched(present.model, saved.model);
  if (left.empty()) return {std::move(saved), {}};
  Checkpoint fitted;
  std::set<std::string_view> names;
  fitted.position = saved.position;
  fitted.model = matched(present.model, by_name(saved.model), names);
  fitted.optimizer = optimizer_for(saved, present, names);
  fitted.parts = std::move(saved.parts);
  return {std::move(fitted), std::move(left)};
}

}  // namespace cox::detail
