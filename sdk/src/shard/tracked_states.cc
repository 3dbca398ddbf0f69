#include "sdk/src/shard/tracked_states.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

// Returns a 1-D tensor of the type of `like`, allocated apart from the heap's other blocks, because
// states live as long as the job.
at::Tensor empty_apart(std::int64_t elements, const at::Tensor& like) {
  const auto bytes = static_cast<std::size_t>(elements) * like.element_size();
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                       allocate_apart(bytes), nullptr,
                                                       /*resizable=*/false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                       like.key_set(), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_contiguous({elements});
  return made;
}

}  // namespace

void TrackedStates::note_candidate(const at::Tensor& made, std::size_t parameter) {
  if (!parameters_.all()[parameter].has_layout_of(made)) return;
  Tracked candidate{Kind::candidate, parameter};
  candidate.sources.emplace_back(made.getIntrusivePtr());
  tracked_.note(made, std::move(candidate));
}

void TrackedStates::add_sources(const at::Tensor& operand, Tracked& to) {
  const Tracked* found = tracked_.find(operand);
  if (found == nullptr || found == &to || found->kind == Kind::shard) return;
  for (const auto& source : found->sources) {
    const auto is_same = [&](const auto& other) {
      return other._unsafe_get_target() == source._unsafe_get_target();
    };
    if (!source.expired() && std::ranges::none_of(to.sources, is_same))
      to.sources.push_back(source);
  }
}

void TrackedStates::note_derived(const at::Tensor& result, std::size_t parameter,
                                 std::span<const at::Tensor> operands) {
  if (!parameters_.all()[parameter].has_layout_of(result)) return;
  Tracked* known = tracked_.find(result);
  if (known != nullptr && (known->kind == Kind::shard || known->kind == Kind::copy)) return;
  Tracked noted = known != nullptr ? *known : Tracked{Kind::derived, parameter};
  // An alias of a candidate may be the tensor that the program keeps.
  if (noted.kind == Kind::candidate) noted.sources.emplace_back(result.getIntrusivePtr());
  for (const at::Tensor& operand : operands) add_sources(operand, noted);
  tracked_.note(result, std::move(noted));
}

void TrackedStates::note_shard(const at::Tensor& result, std::size_t parameter) {
  tracked_.note(result, {Kind::shard, parameter});
}

void TrackedStates::note_copy(const at::Tensor& whole, std::size_t parameter) {
  tracked_.note(whole, {Kind::copy, parameter});
}

void TrackedStates::flows_into(const at::Tensor& operand, std::size_t parameter) {
  Tracked* found = tracked_.find(operand);
  if (found == nullptr || found->kind == Kind::shard || found->parameter != parameter) return;
  const auto sources = std::exchange(found->sources, {});
  for (const auto& source : sources) {
    const auto candidate = source.lock();
    if (!candidate) continue;
    const at::Tensor tensor(candidate);
    Tracked* noted = tracked_.find(tensor);
    if (noted == nullptr || noted->kind == Kind::shard || noted->parameter != parameter) continue;
    flows_into(tensor, parameter);
    noted = tracked_.find(tensor);
    if (noted != nullptr && noted->kind == Kind::candidate) make_shard(tensor, parameter);
  }
}

// Leaves a storage with other users (an alias, a graph) as it is.
void TrackedStates::make_shard(const at::Tensor& candidate, std::size_t parameter) {
  if (candidate.storage().use_count() == 1 && candidate.storage_offset() == 0)
    divide(candidate, parameter);
}

void TrackedStates::divide(const at::Tensor& state, std::size_t parameter) {
  const ShardedParameter& of = parameters_.all()[parameter];
  if (!of.has_layout_of(state) || state.requires_grad()) return;
  const at::Tensor part = empty_apart(of.own.size(), state);
  const auto skipped = static_cast<std::size_t>(of.own.begin) * state.element_size();
  if (!of.own.is_empty())
    std::memcpy(part.mutable_data_ptr(),
                static_cast<const std::byte*>(state.const_data_ptr()) + skipped, part.nbytes());
  c10::TensorImpl* impl = state.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(part.storage());
  impl->set_storage_offset(0);
  impl->set_sizes_and_strides(part.sizes(), part.strides());
  note_shard(state, parameter);
  ++shards_made_;
}

}  // namespace cox::detail
