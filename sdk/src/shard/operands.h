// Operands are the tensors among an operator's arguments, each with its relation to shared memory:
// parameter, part of one, gradient, state. ChangedOperands records the stand-ins that replace
// tensors while the operator runs. OperatorTraits tells how an operator treats elements.
//
// A ShardRewriter uses these values during one call. Training thread only.
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
  // Each element of the result depends only on the elements at the same place in the arguments. So
  // the operator gives slices for slices.
  bool is_elementwise = false;
  bool makes_alike = false;       // the result has the form of the first tensor: zeros_like, clone
  bool is_fused_update = false;   // updates lists of parameters, gradients and states in one call
  bool changes_no_value = false;  // changes history or memory, no element: detach_, set_data
  std::uint64_t hash = 0;         // hash of the name, equal in all processes
};

// Returns the traits of an operator. The reference is valid until the thread ends.
const OperatorTraits& traits_of(const c10::OperatorHandle& handle);

enum class OperandKind : std::uint8_t {
  other,
  parameter,  // a whole parameter, or a whole gradient in the node's memory
  part,       // another view of such memory
  gradient,   // a whole gradient in this rank's own memory
  candidate,  // candidate, derived, shard, copy: see tracked_states.h
  derived,
  shard,
  copy,
};

struct Operand {
  at::Tensor tensor;
  std::size_t place = 0;  // index in the argument's list; 0 for a lone tensor
  bool is_written = false;
  OperandKind kind = OperandKind::other;
  std::size_t parameter = 0;  // index; unused for `other` and `part`
  std::size_t owner = 0;  // the same index; for a gradient in the node's memory, the parameter's
};

// Returns whether the operand is a gradient, or may be computed from gradients or states.
inline bool flows(const Operand& operand) {
  const bool is_shared_gradient =
      operand.kind == OperandKind::parameter && operand.owner != operand.parameter;
  return is_shared_gradient || operand.kind == OperandKind::gradient ||
         operand.kind == OperandKind::candidate || operand.kind == OperandKind::derived;
}

struct Operands {
  c10::SmallVector<Operand, 8> all;

  // Finds the subjects of all places. Call it once, after `all` is complete.
  void find_subjects();

  bool any(OperandKind kind) const;
  bool writes(OperandKind kind) const;
  bool writes_parameters() const {
    return writes(OperandKind::parameter) || writes(OperandKind::part);
  }
  // Returns the subject of a place: the first parameter that is written there, else the parameter
  // of the first shard. The operator on slices uses this rank's elements of the subject.
  std::optional<std::size_t> subject(std::size_t place) const {
    return place < places_.size() ? places_[place].subject : std::nullopt;
  }
  // Returns whether a parameter or shard at this place is written.
  bool keeps(std::size_t place) const { return places_[place].keeps; }
  std::optional<std::size_t> first_written() const;

 private:
  struct Place {
    std::optional<std::size_t> subject = {};
    bool is_written = false;  // the subject is written
    bool keeps = false;
  };
  c10::SmallVector<Place, 2> places_;
};

class ChangedOperands {
 public:
  // Records that `stand_in` replaces `own`, and returns `stand_in`. Records nothing if the two are
  // the same tensor.
  at::Tensor note(const at::Tensor& own, at::Tensor stand_in);
  bool has_memory_of(const at::Tensor& result) const;
  // Returns whether each stand-in still has the sizes and strides of the program's own tensor.
  bool have_same_form() const;
  // Replaces stand-ins among the results by the program's own tensors.
  void restore(std::span<c10::IValue> results) const;

 private:
  struct Change {
    at::Tensor own;
    at::Tensor stand_in;
  };
  c10::SmallVector<Change, 8> changes_;
};

// Calls `use(tensor, place)` for each defined tensor of a value. `place` is the index in the list,
// 0 for a lone tensor.
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

// Replaces each defined tensor of the value by `change(tensor, place)`.
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
