#include "sdk/src/shard/operands.h"

#include <ATen/core/enum_tag.h>

#include <array>
#include <string_view>
#include <unordered_map>

#include "coordinator/core/hash.h"

namespace cox::detail {
namespace {

template <std::size_t count>
bool is_one_of(std::string_view name, const std::array<std::string_view, count>& names) {
  return std::ranges::find(names, name) != names.end();
}

constexpr std::array<std::string_view, 5> kMakers = {
    "aten::zeros_like", "aten::ones_like", "aten::empty_like", "aten::full_like", "aten::clone"};
// The schemas of these operators declare a write, but no element changes.
constexpr std::array<std::string_view, 4> kOfNoValue = {"aten::detach_", "aten::requires_grad_",
                                                        "aten::set_data", "aten::set_"};
// Elementwise operators without LibTorch's tag `pointwise`.
constexpr std::array<std::string_view, 9> kElementwise = {
    "aten::detach", "aten::alias",    "aten::zero_",      "aten::fill_",          "aten::copy_",
    "aten::zero",   "aten::_to_copy", "aten::lift_fresh", "aten::_conj_physical",
};

// Excludes list operators that return one number per tensor, which are not elementwise.
bool is_foreach(std::string_view name) {
  return name.starts_with("aten::_foreach_") && name.find("norm") == name.npos &&
         name.find("_max") == name.npos;
}

OperatorTraits find_traits(const c10::OperatorHandle& handle) {
  const std::string_view name = handle.operator_name().name;
  OperatorTraits traits;
  traits.makes_alike = is_one_of(name, kMakers);
  traits.is_fused_update = name.starts_with("aten::_fused_ada") || name == "aten::_fused_sgd_";
  traits.changes_no_value = is_one_of(name, kOfNoValue);
  const bool is_random = handle.hasTag(at::Tag::nondeterministic_seeded);
  traits.is_elementwise =
      !is_random && (handle.hasTag(at::Tag::pointwise) || traits.makes_alike ||
                     traits.is_fused_update || is_foreach(name) || is_one_of(name, kElementwise));
  Fnv1a64 hash;
  hash.add(name);
  hash.add(std::string_view(handle.operator_name().overload_name));
  traits.hash = hash.value();
  return traits;
}

}  // namespace

const OperatorTraits& traits_of(const c10::OperatorHandle& handle) {
  thread_local std::unordered_map<const void*, OperatorTraits> known;
  const void* key = &handle.operator_name();
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, find_traits(handle)).first->second;
}

bool Operands::any(OperandKind kind) const {
  return std::ranges::any_of(all, [kind](const Operand& each) { return each.kind == kind; });
}

bool Operands::writes(OperandKind kind) const {
  return std::ranges::any_of(
      all, [kind](const Operand& each) { return each.is_written && each.kind == kind; });
}

void Operands::find_subjects() {
  for (const Operand& each : all) {
    if (each.place >= places_.size()) places_.resize(each.place + 1);
    Place& place = places_[each.place];
    const bool is_parameter = each.kind == OperandKind::parameter && each.is_written;
    const bool is_shard = each.kind == OperandKind::shard;
    place.keeps = place.keeps || is_parameter || (is_shard && each.is_written);
    if (is_parameter && !place.is_written) {
      place = {each.parameter, true, true};
    } else if (is_shard && !place.subject) {
      place.subject = each.parameter;
    }
  }
}

std::optional<std::size_t> Operands::first_written() const {
  for (const Operand& each : all) {
    if (each.is_written && each.kind == OperandKind::parameter) return each.parameter;
  }
  return std::nullopt;
}

at::Tensor ChangedOperands::note(const at::Tensor& own, at::Tensor stand_in) {
  if (!stand_in.is_same(own)) changes_.push_back({own, stand_in});
  return stand_in;
}

bool ChangedOperands::has_memory_of(const at::Tensor& result) const {
  return std::ranges::any_of(changes_, [&](const Change& each) {
    return storage_impl(each.stand_in) == storage_impl(result);
  });
}

bool ChangedOperands::have_same_form() const {
  return std::ranges::all_of(changes_, [](const Change& each) {
    return each.own.sizes() == each.stand_in.sizes() &&
           each.own.strides() == each.stand_in.strides();
  });
}

void ChangedOperands::restore(std::span<c10::IValue> results) const {
  for (c10::IValue& result : results) {
    change_tensors(result, [this](const at::Tensor& tensor, std::size_t) {
      for (const Change& each : changes_) {
        if (each.stand_in.is_same(tensor)) return each.own;
      }
      return tensor;
    });
  }
}

}  // namespace cox::detail
