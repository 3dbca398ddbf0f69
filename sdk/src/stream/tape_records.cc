#include "sdk/src/stream/tape_records.h"

#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

void locate(TapeRecords& records, TapeRecords::Reference& made, const at::Tensor& tensor,
            TapeRecords::StorageIndex storage) {
  made.type = tensor.scalar_type();
  made.is_plain = is_strided_and_plain(tensor);
  made.storage = storage;
  if (storage == TapeRecords::kNone) return;
  const auto& writers = records.storages[static_cast<std::size_t>(storage)].writers;
  made.writes = static_cast<std::int32_t>(writers.size());
  if (!made.is_plain) return;
  auto& numbers = records.numbers;
  made.geometry = static_cast<std::uint32_t>(numbers.size());
  const at::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  numbers.push_back(static_cast<std::int64_t>(sizes.size()));
  numbers.insert(numbers.end(), sizes.begin(), sizes.end());
  numbers.insert(numbers.end(), strides.begin(), strides.end());
  numbers.push_back(tensor.storage_offset());
}

}  // namespace

TapeValues::Place TapeValues::place_of(const c10::StorageImpl* storage) const {
  const Place* const found = places_.find(storage);
  return found == nullptr ? Place{} : *found;
}

const TapeValues::MadeTensor* TapeValues::made_of(const at::Tensor& tensor) const {
  const MadeIndex* const found = made_indices_.find(tensor.unsafeGetTensorImpl());
  return found == nullptr || found->index == kNone ? nullptr : &made_[at(found->index)];
}

const TapeValues::MadeTensor* TapeValues::made_with_history_of(const at::Tensor& tensor) const {
  if (!tensor.requires_grad() || tensor.is_leaf()) return nullptr;
  const torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(tensor);
  const auto [first, last] = histories_.equal_range(edge.function.get());
  for (auto it = first; it != last; ++it) {
    const bool is_it =
        it->second.output == edge.input_nr && it->second.node.lock() == edge.function;
    if (is_it) return &it->second.made;
  }
  return nullptr;
}

bool TapeValues::has_value(const TapeRecords& records, const at::Tensor& tensor) const {
  if (knows(tensor)) return true;
  const TapeRecords::StorageIndex storage = place_of(storage_impl(tensor)).storage;
  return is_strided_and_plain(tensor) && records.storages[at(storage)].type == tensor.scalar_type();
}

TapeRecords::Reference TapeValues::reference(TapeRecords& records, const at::Tensor& tensor) {
  TapeRecords::Reference made;
  if (!tensor.defined()) return made;
  made.requires_grad = tensor.requires_grad();
  const TapeRecords::StorageIndex index =
      records.rules.storages ? place_of(storage_impl(tensor)).storage : kNone;
  const MadeTensor* known = made_of(tensor);
  if (known == nullptr && records.rules.histories) known = made_with_history_of(tensor);
  if (known != nullptr) {
    made.source = TapeRecords::Source::result;
    made.index = known->maker;
    made.output = known->output;
    made.element = known->element;
    locate(records, made, tensor, index);
    return made;
  }
  if (index == kNone) return outside(records, tensor);
  const TapeRecords::Storage& storage = records.storages[at(index)];
  if (storage.type != tensor.scalar_type() || !is_strided_and_plain(tensor))
    return outside(records, tensor);
  made.source = TapeRecords::Source::result;
  made.is_view = true;
  made.index = storage.maker;
  made.output = storage.output;
  made.element = storage.element;
  locate(records, made, tensor, index);
  return made;
}

// Keeps no history: through a tensor made elsewhere it would be a cycle.
TapeRecords::Reference TapeValues::outside(TapeRecords& records, const at::Tensor& tensor) {
  TapeRecords::Reference made;
  made.source = TapeRecords::Source::outside;
  made.requires_grad = tensor.requires_grad();
  made.type = tensor.scalar_type();
  made.index = static_cast<std::int32_t>(records.outsides.size());
  const c10::StorageImpl* storage = storage_impl(tensor);
  records.outsides.push_back(
      {records.rules.detached ? without_graph(tensor) : tensor, version_of(tensor), storage});
  if (storage != nullptr) places_[storage].is_outside = true;
  return made;
}

void TapeValues::note_result(TapeRecords& records, const Result& result) {
  MadeIndex& known = made_indices_[result.tensor.unsafeGetTensorImpl()];
  if (known.index == kNone) {
    known.index = static_cast<std::int32_t>(made_.size());
    made_.emplace_back();
  }
  MadeTensor& made = made_[at(known.index)];
  made.maker = result.maker;
  made.output = result.output;
  made.element = result.element;
  made.storage = storage_impl(result.tensor);
  made.alive.reset();
  if (records.rules.weak_references) made.alive.emplace(result.tensor.getIntrusivePtr());
  if (made.storage != nullptr) note_storage(records, result);
  if (!records.rules.histories || !result.tensor.requires_grad() || result.tensor.is_leaf()) return;
  const torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(result.tensor);
  histories_.emplace(edge.function.get(),
                     History{WeakNode(edge.function),
                             edge.input_nr,
                             {result.maker, result.output, result.element, made.storage, {}}});
}

void TapeValues::note_storage(TapeRecords& records, const Result& result) {
  const c10::StorageImpl* storage = storage_impl(result.tensor);
  Place& place = places_[storage];
  if (place.is_outside) return;
  if (place.storage != kNone) {
    const auto& returns = records.operators[at(result.maker)].handle.schema().returns();
    if (result.element != kNone && returns[at(result.output)].alias_info() == nullptr)
      records.storages[at(place.storage)].counts_apart = true;
    return;
  }
  place.storage = static_cast<TapeRecords::StorageIndex>(records.storages.size());
  TapeRecords::Storage& known = records.storages.emplace_back();
  known.maker = result.maker;
  known.output = result.output;
  known.element = result.element;
  known.type = result.tensor.scalar_type();
  known.may_be_mask = result.is_random || known.type == at::kBool;
  if (records.rules.weak_references)
    known.alive = result.tensor.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl();
  if (records.measured)
    records.measured->storage_bytes.push_back(static_cast<std::int64_t>(storage->nbytes()));
}

void TapeValues::forget_views_of(const c10::StorageImpl* storage) {
  made_indices_.for_each([&](const void*, MadeIndex& made) {
    if (made.index != kNone && made_[at(made.index)].storage == storage) made.index = kNone;
  });
}

bool TapeValues::stop_holding(const c10::StorageImpl* storage) {
  Place* const place = places_.find(storage);
  return place != nullptr && std::exchange(place->is_outside, false);
}

void TapeValues::clear() {
  made_.clear();
  made_indices_.clear();
  places_.clear();
  histories_.clear();
}

}  // namespace cox::detail
