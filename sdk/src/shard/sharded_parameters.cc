#include "sdk/src/shard/sharded_parameters.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "sdk/src/parallel/agreement.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

// Compares strides, except those of dimensions of size 1, which have no effect.
bool have_same_order(const at::Tensor& a, const at::Tensor& b) {
  for (std::int64_t d = 0; d < a.dim(); ++d) {
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

// Returns memory that keeps `owner` alive for as long as the storage exists.
template <class Owner>
c10::DataPtr owned_memory(const std::byte* memory, Owner owner) {
  auto* kept = new Owner(std::move(owner));
  const auto release = [](void* p) { delete static_cast<Owner*>(p); };
  return {const_cast<std::byte*>(memory), kept, release, c10::Device(c10::DeviceType::CPU)};
}

Status refuse(const NamedParameter& parameter, const char* expected) {
  return invalid_argument("shard.mode: parameter ", parameter.name, ": expected ", expected,
                          "; adopt the model without shard.mode");
}

// Returns a writable 1-D tensor of all elements of the storage, in the parameter's type.
at::Tensor writable_tensor(const ShardedStorage& storage, std::size_t bytes,
                           const at::Tensor& parameter) {
  auto memory = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      owned_memory(storage.writable(), storage.copy.segment()), nullptr, /*resizable=*/false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(memory)),
                                                       parameter.key_set(), parameter.dtype());
  made.unsafeGetTensorImpl()->set_sizes_contiguous(
      {static_cast<std::int64_t>(bytes) / storage.element_bytes});
  return made;
}

c10::Storage readable_storage(const ShardedStorage& storage, std::size_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes,
      owned_memory(storage.readable(), storage.copy.reading_owner()), nullptr, /*resizable=*/false);
}

// Returns a read-only gradient in the node's memory, with the parameter's form.
at::Tensor readable_tensor(const c10::Storage& storage, const at::Tensor& parameter) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), parameter.key_set(),
                                                       parameter.dtype());
  made.unsafeGetTensorImpl()->set_sizes_contiguous(parameter.sizes());
  return made;
}

// Gives the storage memory of this rank's own, with the given values.
void give_own_memory(c10::StorageImpl& storage, const std::byte* values) {
  c10::DataPtr own = c10::GetCPUAllocator()->allocate(storage.nbytes());
  std::memcpy(own.get(), values, storage.nbytes());
  storage.set_data_ptr_noswap(std::move(own));
}

// The node holds only gradients in fp32 and in row-major order, as buckets are summed.
bool has_shared_gradient(const at::Tensor& parameter) {
  return parameter.requires_grad() && parameter.scalar_type() == at::kFloat &&
         parameter.is_contiguous();
}

Status check_form(const NamedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  if (!tensor.is_cpu()) return refuse(parameter, "memory on the CPU, found a device's");
  if (!is_strided_and_plain(tensor) || !tensor.has_storage())
    return refuse(parameter, "a strided tensor, found a sparse or lazily conjugated one");
  if (!tensor.is_non_overlapping_and_dense())
    return refuse(parameter, "dense memory, found a tensor with gaps");
  return ok_status();
}

}  // namespace

at::Tensor elements_of(const at::Tensor& dense, const ElementRange& range) {
  auto part = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(dense.storage()),
                                                       dense.key_set(), dense.dtype());
  part.unsafeGetTensorImpl()->set_storage_offset(dense.storage_offset() + range.begin);
  part.unsafeGetTensorImpl()->set_sizes_contiguous({range.size()});
  return part;
}

MovedForm form_of(const at::Tensor& tensor) {
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
          tensor.scalar_type()};
}

bool ShardedParameter::is_seen_whole_by(const at::Tensor& other) const {
  return other.storage_offset() == tensor.storage_offset() && other.dtype() == tensor.dtype() &&
         has_layout_of(other);
}

bool ShardedParameter::has_layout_of(const at::Tensor& other) const {
  return other.sizes() == tensor.sizes() && have_same_order(other, tensor);
}

// The storages of a model that move to the node's memory, each listed once.
struct ShardedParameters::Move {
  std::vector<NamedParameter> parameters;
  std::vector<c10::Storage> storages;
  std::vector<StorageShape> shapes;
};

ShardedParameters::Move ShardedParameters::collect(
    const std::vector<NamedParameter>& parameters) const {
  Move move;
  for (const NamedParameter& each : parameters) {
    if (storage_of(each.tensor) != nullptr || each.tensor.numel() < kLeastElements) continue;
    move.parameters.push_back(each);
    const auto is_same = [&](const c10::Storage& storage) {
      return storage.unsafeGetStorageImpl() == storage_impl(each.tensor);
    };
    if (!each.tensor.has_storage() || std::ranges::any_of(move.storages, is_same)) continue;
    const auto element_bytes = static_cast<std::int64_t>(each.tensor.element_size());
    const auto bytes = static_cast<std::int64_t>(each.tensor.storage().nbytes());
    move.storages.push_back(each.tensor.storage());
    move.shapes.push_back({bytes / element_bytes, element_bytes});
  }
  return move;
}

Status ShardedParameters::check(const Move& move) {
  for (const NamedParameter& each : move.parameters) {
    if (Status wrong = check_form(each); !wrong.ok()) return wrong;
    for (const NamedParameter& other : move.parameters) {
      const bool shares = storage_impl(other.tensor) == storage_impl(each.tensor);
      if (shares && other.tensor.dtype() != each.tensor.dtype())
        return refuse(each, "one type of numbers in its memory, found two");
    }
  }
  return ok_status();
}

// Copies this rank's slices to the node's memory. Returns the storages for attach().
Result<std::vector<ShardedStorage>> ShardedParameters::fill(const Move& move, NodeCopy copy,
                                                            const SliceLayout& layout,
                                                            std::size_t rank) {
  std::vector<ShardedStorage> made;
  std::int64_t first_byte = static_cast<std::int64_t>(copy.bytes());
  std::int64_t last_byte = 0;
  for (std::size_t s = 0; s < move.storages.size(); ++s) {
    const StoragePlace& place = layout.storages[s];
    made.push_back({move.storages[s], copy, place.offset_bytes, move.shapes[s].element_bytes,
                    place.slices[rank]});
    const ShardedStorage& storage = made.back();
    if (storage.own.is_empty()) continue;
    std::memcpy(storage.writable() + storage.own_begin_bytes(),
                static_cast<const std::byte*>(move.storages[s].data()) + storage.own_begin_bytes(),
                static_cast<std::size_t>(storage.own_bytes()));
    first_byte = std::min(first_byte, storage.offset_bytes + storage.own_begin_bytes());
    last_byte = storage.offset_bytes + storage.own_begin_bytes() + storage.own_bytes();
  }
  const Status kept = copy.keep_writable(static_cast<std::size_t>(std::min(first_byte, last_byte)),
                                         static_cast<std::size_t>(last_byte));
  if (!kept.ok()) return kept;
  return made;
}

// Divides trained and frozen parameters apart: frozen ones have no optimizer's state, and must not
// shift the slices of the trained ones.
Status ShardedParameters::add(transport::Communicator& node,
                              const std::vector<NamedParameter>& parameters,
                              const std::vector<double>& weights) {
  std::vector<NamedParameter> trained;
  std::vector<NamedParameter> frozen;
  for (const NamedParameter& each : parameters)
    (each.tensor.requires_grad() ? trained : frozen).push_back(each);
  const Move all = collect(parameters);
  if (Status agreed = agree_on_status(node, check(all)); !agreed.ok()) return agreed;
  if (Status moved = move(node, collect(trained), weights); !moved.ok()) return moved;
  return move(node, collect(frozen), weights);
}

Status ShardedParameters::move(transport::Communicator& node, const Move& move,
                               const std::vector<double>& weights) {
  if (move.storages.empty()) return ok_status();
  const SliceLayout layout = divide_storages(move.shapes, weights, grain_);
  Result<std::vector<ShardedStorage>> filled = resource_exhausted("shared memory: none");
  auto copy = NodeCopy::create(node, static_cast<std::size_t>(layout.bytes));
  auto gradients = NodeCopy::create(node, static_cast<std::size_t>(gradient_bytes(move)));
  if (copy.ok()) {
    const auto rank = static_cast<std::size_t>(node.rank().value());
    filled = fill(move, *std::move(copy), layout, rank);
  }
  Status made = copy.ok() ? filled.status() : copy.status();
  if (made.ok()) made = gradients.status();
  // Gradients stay writable as a whole, because ranks add in turns.
  if (made.ok()) made = gradients->keep_writable(0, gradients->bytes());
  // After this agreement all slices are written.
  if (Status agreed = agree_on_status(node, made); !agreed.ok()) return agreed;
  attach(move, *std::move(filled));
  attach_gradients(move, *gradients);
  return ok_status();
}

std::int64_t ShardedParameters::gradient_bytes(const Move& move) {
  std::int64_t bytes = 0;
  for (const NamedParameter& each : move.parameters) {
    if (has_shared_gradient(each.tensor))
      bytes = to_line(bytes + static_cast<std::int64_t>(each.tensor.nbytes()));
  }
  return bytes;
}

void ShardedParameters::attach_gradients(const Move& move, const NodeCopy& copy) {
  std::int64_t offset = 0;
  const std::size_t first = parameters_.size() - move.parameters.size();
  for (std::size_t p = first; p < first + move.parameters.size(); ++p) {
    const at::Tensor parameter = parameters_[p].tensor;
    if (!has_shared_gradient(parameter)) continue;
    const std::size_t bytes = parameter.nbytes();
    ShardedStorage storage{{}, copy, offset, 4, parameters_[p].own};
    storage.storage = readable_storage(storage, bytes);
    storage.parameters = {parameters_.size()};
    const at::Tensor slice =
        elements_of(writable_tensor(storage, bytes, parameter), parameters_[p].own);
    storages_.push_back(storage);
    by_storage_[storage.storage.unsafeGetStorageImpl()] =
        static_cast<std::uint32_t>(storages_.size());
    parameters_[p].gradient = parameters_.size();
    parameters_.push_back({"the gradient of " + parameters_[p].name,
                           readable_tensor(storage.storage, parameter),
                           storages_.size() - 1,
                           parameters_[p].own,
                           slice,
                           {},
                           {},
                           p});
    offset = to_line(offset + static_cast<std::int64_t>(bytes));
  }
}

std::optional<std::size_t> ShardedParameters::gradient_of(const at::Tensor& parameter) const {
  const ShardedParameter* found = whole(parameter);
  return found == nullptr ? std::nullopt : found->gradient;
}

at::Tensor ShardedParameters::writable_gradient(std::size_t index) const {
  const ShardedParameter& gradient = parameters_[index];
  const ShardedStorage& storage = storages_[gradient.storage];
  return writable_tensor(storage, gradient.tensor.nbytes(), gradient.tensor);
}

void ShardedParameters::attach(const Move& move, std::vector<ShardedStorage> filled) {
  for (ShardedStorage& storage : filled) {
    c10::StorageImpl* impl = storage.storage.unsafeGetStorageImpl();
    impl->set_data_ptr_noswap(owned_memory(storage.readable(), storage.copy.reading_owner()));
    storages_.push_back(std::move(storage));
    by_storage_[impl] = static_cast<std::uint32_t>(storages_.size());
  }
  for (const NamedParameter& each : move.parameters) {
    const std::size_t index = *by_storage_.find(storage_impl(each.tensor)) - 1;
    ShardedStorage& storage = storages_[index];
    const std::int64_t first = each.tensor.storage_offset();
    ElementRange own = common_part(storage.own, {first, first + each.tensor.numel()});
    const at::Tensor all = writable_tensor(storage, storage.storage.nbytes(), each.tensor);
    ShardedParameter& made = parameters_.emplace_back(
        ShardedParameter{each.name, each.tensor, index, {own.begin - first, own.end - first}, {}});
    made.slice = elements_of(all, own);
    made.form = form_of(each.tensor);
    storage.parameters.push_back(parameters_.size() - 1);
  }
}

void ShardedParameters::give_back() {
  for (const ShardedStorage& storage : storages_) {
    give_own_memory(*storage.storage.unsafeGetStorageImpl(), storage.readable());
  }
  storages_.clear();
  parameters_.clear();
  by_storage_.clear();
}

void ShardedParameters::let_go_of_gradients() {
  bool has_let_go = false;
  for (ShardedParameter& gradient : parameters_) {
    if (!gradient.gradient_of) continue;
    ShardedStorage& storage = storages_[gradient.storage];
    constexpr std::size_t kOurs = 2;  // references of ShardedStorage and of the tensor
    if (gradient.tensor.use_count() == 1 && storage.storage.use_count() == kOurs) continue;
    give_own_memory(*storage.storage.unsafeGetStorageImpl(), storage.readable());
    storage.storage = readable_storage(storage, gradient.tensor.nbytes());
    gradient.tensor = readable_tensor(storage.storage, parameters_[*gradient.gradient_of].tensor);
    has_let_go = true;
  }
  if (has_let_go) note_storages();
}

void ShardedParameters::note_storages() {
  by_storage_.clear();
  for (std::size_t s = 0; s < storages_.size(); ++s)
    by_storage_[storages_[s].storage.unsafeGetStorageImpl()] = static_cast<std::uint32_t>(s + 1);
}

const ShardedStorage* ShardedParameters::storage_of(const at::Tensor& tensor) const {
  const std::uint32_t* index = by_storage_.find(storage_impl(tensor));
  return index == nullptr ? nullptr : &storages_[*index - 1];
}

const ShardedParameter* ShardedParameters::whole(const at::Tensor& tensor) const {
  const ShardedStorage* storage = storage_of(tensor);
  if (storage == nullptr) return nullptr;
  for (const std::size_t index : storage->parameters) {
    if (parameters_[index].is_seen_whole_by(tensor)) return &parameters_[index];
  }
  return nullptr;
}

const ShardedParameter* ShardedParameters::replaced() const {
  const auto found = std::ranges::find_if(parameters_, [this](const ShardedParameter& each) {
    return storage_impl(each.tensor) != storages_[each.storage].storage.unsafeGetStorageImpl();
  });
  return found == parameters_.end() ? nullptr : &*found;
}

bool ShardedParameters::fits_again(std::size_t index) const {
  const ShardedParameter& parameter = parameters_[index];
  const ShardedStorage& storage = storages_[parameter.storage];
  const at::Tensor& now = parameter.tensor;
  const bool is_plain = now.is_cpu() && is_strided_and_plain(now) && now.has_storage();
  return is_plain && storage.parameters.size() == 1 && storage_of(now) == nullptr &&
         parameter.form == form_of(now) && now.storage().nbytes() == storage.storage.nbytes();
}

void ShardedParameters::move_again(std::size_t index,
                                   const std::function<void(const at::Tensor&)>& write) {
  ShardedStorage& storage = storages_[parameters_[index].storage];
  if (storage.storage.use_count() > 1)
    give_own_memory(*storage.storage.unsafeGetStorageImpl(), storage.readable());
  write(parameters_[index].tensor.detach());
  storage.storage = parameters_[index].tensor.storage();
  storage.storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
      owned_memory(storage.readable(), storage.copy.reading_owner()));
  note_storages();
}

}  // namespace cox::detail
