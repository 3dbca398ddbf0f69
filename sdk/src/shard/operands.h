// Operands are the tensors of one operator, and how each belongs to what the ranks of a node
// divide: whole parameters, parts of them, gradients, states. ChangedOperands are tensors that
// others stand in for while the operator runs. OperatorTraits tell how an operator treats elements.
// Values of a ShardRewriter, during one call; training thread only.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "sdk/src/stream/storage.h"

namespace cox::detail {

struct OperatorTraits {
  // Each element of the result depends on the elements of the arguments at its place only, so the
  // operator on slices gives slices.
  bool is_elementwise = false;
  bool makes_alike = false;       // its result has the form of its first tensor: zeros_like, clone
  bool is_fused_update = false;   // updates lists of parameters, gradients and states in one call
  bool changes_no_value = false;  // detach_, set_data: the tensor's history, or which memory it has
  std::uint64_t hash = 0;         // of the name; equal in all processes
};

// Returns the traits of an operator; the reference stays valid.
const OperatorTraits& traits_of(const c10::OperatorHandle& handle);

enum class OperandKind : std::uint8_t {
  other,
  parameter,  // the whole of one
  part,       // other elements of a parameter's memory: a view
  gradient,   // a whole one
  candidate,  // tracked_states.h
  derived,
  shard,
};

struct Operand {
  at::Tensor tensor;
  std::size_t place = 0;  // in its list, 0 for a lone tensor
  bool is_written = false;
  OperandKind kind = OperandKind::other;
  std::size_t parameter = 0;  // index, unless `other` or `part`
  std::size_t owner = 0;      // the same; for a gradient that the node holds, its parameter's
};

// Returns whether the values may come from states or gradients.
inline bool flows(const Operand& operand) {
  const bool is_shared_gradient =
      operand.kind == OperandKind::parameter && operand.owner != operand.parameter;
  return is_shared_gradient || operand.kind == OperandKind::gradient ||
         operand.kind == OperandKind::candidate || operand.kind == OperandKind::derived;
}

struct Operands {
  c10::SmallVector<Operand, 8> all;

  // Finds the subjects of all places. Called once, when `all` is complete.
  void find_subjects();

  bool any(OperandKind kind) const;
  bool writes(OperandKind kind) const;
  bool writes_parameters() const {
    return writes(OperandKind::parameter) || writes(OperandKind::part);
  }
  // Returns the parameter whose elements the tensors at this place are: the one that is written,
  // else that of a shard.
  std::optional<std::size_t> subject(std::size_t place) const {
    return place < places_.size() ? places_[place].subject : std::nullopt;
  }
  // Returns whether a parameter or shard at this place is written.
  bool keeps(std::size_t place) const { return places_[place].keeps; }
  std::optional<std::size_t> first_written() const;

 private:
  struct Place {
    std::optional<std::size_t> subject = {};
    bool is_written = false;  // the subject
    bool keeps = false;
  };
  c10::SmallVector<Place, 2> places_;
};

class ChangedOperands {
 public:
  // Notes and returns the tensor that stands in for the program's own; they may be the same.
  at::Tensor note(const at::Tensor& own, at::Tensor stand_in);
  bool has_memory_of(const at::Tensor& result) const;
  // Returns whether each stand-in still has the form of the program's own tensor.
  bool have_same_form() const;
  // Puts the program's own tensors in the places of stand-ins among the results.
  void restore(std::span<c10::IValue> results) const;

 private:
  struct Change {
    at::Tensor own;
    at::Tensor stand_in;
  };
  c10::SmallVector<Change, 8> changes_;
};

// Calls `use` with each defined tensor of a value and its place in a list, 0 for a lone tensor.
template <class Use>
void for_each_place(const c10::IValue& value, const Use& use) {
  if (value.isTensor() && value.toTensor().defined()) return use(value.toTensor(), std::size_t{0});
  if (!value.isList()) return;
  std::size_t place = 0;
  for (const c10::IValue& element : value.toListRef()) {
    if (element.isTensor() && element.toTensor().defined()) use(element.toTensor(), place);
    ++place;
  }
}

// Puts `change(tensor, place)` in the place of each defined tensor of the value.
template <class Change>
void change_tensors(c10::IValue& value, const Change& change) {
  if (value.isTensor() && value.toTensor().defined()) {
    value = change(value.toTensor(), std::size_t{0});
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    std::size_t place = 0;
    for (const c10::IValue& element : value.toListRef()) {
      const at::Tensor& tensor = element.toTensor();
      changed.push_back(tensor.defined() ? change(tensor, place) : tensor);
      ++place;
    }
    value = std::move(changed);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    std::size_t place = 0;
    for (const c10::IValue& element : value.toListRef()) {
      const bool is_there = element.isTensor() && element.toTensor().defined();
      changed.push_back(is_there ? std::optional(change(element.toTensor(), place)) : std::nullopt);
      ++place;
    }
    value = std::move(changed);
  }
}

}  // namespace cox::detail
