#include "sdk/src/stream/tape.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/enum_tag.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/stream/replay.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

// The tapes of this thread that may hold tensors from outside of their regions.
std::vector<std::weak_ptr<Tape>>& tapes_alive() {
  thread_local std::vector<std::weak_ptr<Tape>> tapes;
  return tapes;
}

// Whether LibTorch did not allocate the memory (from_blob), so that others may write to it.
bool is_foreign_memory(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_impl(tensor);
  return storage != nullptr && storage->allocator() == nullptr;
}

bool is_strided_and_plain(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && !tensor.is_conj() && !tensor.is_neg();
}

bool is_tensor_list(const c10::IValue& value) {
  if (!value.isList() || value.isTensorList()) return false;
  const auto elements = value.toListRef();
  return std::ranges::any_of(elements, [](const c10::IValue& e) { return e.isTensor(); });
}

at::Tensor without_graph(const at::Tensor& tensor) {
  return is_parameter(tensor) ? tensor : tensor.detach();
}

}  // namespace

// Counts its lifetime as time of the tape, not of the operator that runs.
class Tape::Unmeasured {
 public:
  explicit Unmeasured(Tape& tape)
      : tape_(tape), started_ns_(tape.now_ns_ ? tape.now_ns_() : std::int64_t{0}) {}
  ~Unmeasured() {
    if (tape_.now_ns_) tape_.own_ns_ += tape_.now_ns_() - started_ns_;
  }
  Unmeasured(const Unmeasured&) = delete;
  Unmeasured& operator=(const Unmeasured&) = delete;

 private:
  Tape& tape_;
  const std::int64_t started_ns_;
};

// What autograd holds in place of one saved tensor.
class Tape::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<Tape> tape) : tape_(std::move(tape)) {}
  ~Hooks() override {
    if (!kept_) tape_->forget(key_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    const StreamPause unseen;
    const Unmeasured own(*tape_);
    key_ = {tape_->current_, tape_->saved_++};
    const bool forced = tape_->must_keep(tensor);
    if (tape_->now_ns_) tape_->note_saved(key_, tensor, forced);
    if (!forced && tape_->choose(key_, tensor) == Hold::drop) return tape_->want(key_, tensor);
    const bool copies = !tape_->records_.rules.after_operator;
    auto kept = std::make_shared<Kept>();
    kept->tensor =
        copies && !is_parameter(tensor) ? tensor.detach().clone() : without_graph(tensor);
    kept->version = version_of(kept->tensor);
    kept_ = std::move(kept);
    tape_->keep(key_, forced ? nullptr : kept_, storage_impl(tensor));
  }

  at::Tensor call_unpack_hook() override {
    if (!kept_) return tape_->fetch(key_);
    if (version_of(kept_->tensor) == kept_->version) return kept_->tensor;
    tape_->records_.fail(
        changed_in_place(kept_->tensor.sizes(), kept_->version, version_of(kept_->tensor)));
  }

 private:
  const std::shared_ptr<Tape> tape_;
  SavedKey key_;
  std::shared_ptr<const Kept> kept_;  // null for a dropped tensor
};

Tape::Tape(std::string name, HoldChoice choice, TapeRules rules) : choice_(std::move(choice)) {
  records_.name = std::move(name);
  records_.rules = rules;
}
Tape::~Tape() = default;

std::shared_ptr<Tape> Tape::make(std::string name, HoldChoice choice, TapeRules rules) {
  std::shared_ptr<Tape> tape(new Tape(std::move(name), std::move(choice), rules));
  auto& alive = tapes_alive();
  std::erase_if(alive, [](const std::weak_ptr<Tape>& each) { return each.expired(); });
  alive.push_back(tape);
  return tape;
}

void Tape::close() {
  is_open_ = false;
  made_.clear();
  storage_indices_.clear();
  current_ = kNone;
  for (Storage& storage : records_.storages) storage.alive.reset();
  if (now_ns_) end_measuring();
}

void Tape::stop_copying() {
  std::erase_if(tapes_alive(),
                [this](const std::weak_ptr<Tape>& each) { return each.lock().get() == this; });
}

TapeCounts Tape::counts() const {
  const std::lock_guard lock(mutex_);
  return records_.counts;
}

std::size_t Tape::bytes() const {
  return records_.operators.size() * sizeof(Operator) +
         records_.arguments.size() * sizeof(Argument) +
         records_.references.size() * sizeof(Reference) +
         records_.geometry.size() * sizeof(std::int64_t) +
         records_.outsides.size() * sizeof(TapeRecords::Outside) +
         records_.storages.size() * sizeof(Storage);
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Tape::make_hooks() {
  return std::make_unique<Hooks>(shared_from_this());
}

void Tape::begin(const OperatorCall& call) {
  Operator recorded{call.handle};
  recorded.first_argument = static_cast<std::uint32_t>(records_.arguments.size());
  recorded.modes = current_modes(call.excluded);
  recorded.generator = random_state(call);
  const auto& schema = call.handle.schema().arguments();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    if (schema[i].alias_info() == nullptr || !schema[i].alias_info()->isWrite()) continue;
    for_each_tensor_in(call.arguments[i], [&](const at::Tensor& tensor) {
      before_write(tensor);
      const StorageIndex index = storage_index(storage_impl(tensor));
      if (index == kNone) recorded.writes_outside = true;
      if (index != kNone) recorded.writes.push_back(index);
    });
  }
  record_arguments(call, recorded);
  current_arguments_.assign(call.arguments.begin(), call.arguments.end());
  current_ = static_cast<OperatorIndex>(records_.operators.size());
  saved_ = 0;
  records_.operators.push_back(std::move(recorded));
  ++records_.counts.operators;
  own_ns_ = 0;
  if (now_ns_) started_ns_ = now_ns_();
}

void Tape::record_arguments(const OperatorCall& call, Operator& recorded) {
  bool has_tensor = false;
  for (const c10::IValue& value : call.arguments) {
    records_.arguments.push_back(argument(value));
    for_each_tensor_in(value, [&](const at::Tensor& tensor) {
      has_tensor = true;
      if (records_.rules.factories && is_foreign_memory(tensor)) recorded.keeps_results = true;
    });
  }
  if (records_.rules.factories && !has_tensor) recorded.keeps_results = true;
}

Tape::Argument Tape::argument(const c10::IValue& value) {
  Argument made;
  made.first = static_cast<std::uint32_t>(records_.references.size());
  if (value.isTensor()) {
    made.kind = TapeRecords::ArgumentKind::tensor;
    records_.references.push_back(reference(value.toTensor()));
  } else if (value.isTensorList()) {
    made.kind = TapeRecords::ArgumentKind::tensors;
    for (const at::Tensor& tensor : value.toTensorVector())
      records_.references.push_back(reference(tensor));
  } else if (is_tensor_list(value)) {
    made.kind = TapeRecords::ArgumentKind::optional_tensors;
    for (const c10::IValue& element : value.toListRef()) {
      records_.references.push_back(element.isTensor() ? reference(element.toTensor())
                                                       : Reference{});
    }
  } else {
    made.value = value;
  }
  made.count = static_cast<std::uint32_t>(records_.references.size()) - made.first;
  return made;
}

Tape::Reference Tape::reference(const at::Tensor& tensor) {
  Reference made;
  if (!tensor.defined()) return made;
  made.requires_grad = tensor.requires_grad();
  if (const auto known = made_.find(tensor.unsafeGetTensorImpl()); known != made_.end()) {
    made.source = TapeRecords::Source::result;
    made.index = known->second.maker;
    made.output = known->second.output;
    made.element = known->second.element;
    locate(made, tensor);
    return made;
  }
  const StorageIndex index = records_.rules.storages ? storage_index(storage_impl(tensor)) : kNone;
  if (index == kNone) return outside(tensor);
  const Storage& storage = records_.storages[static_cast<std::size_t>(index)];
  if (storage.type != tensor.scalar_type() || !is_strided_and_plain(tensor)) return outside(tensor);
  made.source = TapeRecords::Source::result;
  made.is_view = true;
  made.index = storage.maker;
  made.output = storage.output;
  made.element = storage.element;
  locate(made, tensor);
  return made;
}

// The tensor's history must not be kept: through a tensor made elsewhere it would be a cycle.
Tape::Reference Tape::outside(const at::Tensor& tensor) {
  Reference made;
  made.source = TapeRecords::Source::outside;
  made.requires_grad = tensor.requires_grad();
  made.type = tensor.scalar_type();
  made.index = static_cast<std::int32_t>(records_.outsides.size());
  const c10::StorageImpl* storage = storage_impl(tensor);
  records_.outsides.push_back(
      {records_.rules.detached ? without_graph(tensor) : tensor, version_of(tensor), storage});
  if (storage != nullptr) outside_storages_.insert(storage);
  return made;
}

void Tape::locate(Reference& made, const at::Tensor& tensor) {
  made.type = tensor.scalar_type();
  made.is_plain = is_strided_and_plain(tensor);
  made.storage = records_.rules.storages ? storage_index(storage_impl(tensor)) : kNone;
  if (made.storage == kNone) return;
  made.writes = static_cast<std::int32_t>(
      records_.storages[static_cast<std::size_t>(made.storage)].writers.size());
  if (!made.is_plain) return;
  made.geometry = static_cast<std::uint32_t>(records_.geometry.size());
  records_.geometry.push_back(tensor.dim());
  records_.geometry.insert(records_.geometry.end(), tensor.sizes().begin(), tensor.sizes().end());
  records_.geometry.insert(records_.geometry.end(), tensor.strides().begin(),
                           tensor.strides().end());
  records_.geometry.push_back(tensor.storage_offset());
}

std::uint32_t Tape::current_modes(c10::DispatchKeySet excluded) {
  TapeRecords::Modes now;
  now.has_gradients = c10::GradMode::is_enabled();
  for (std::size_t i = 0; i < TapeRecords::kAutocastDevices.size(); ++i) {
    now.autocast[i] = {at::autocast::is_autocast_enabled(TapeRecords::kAutocastDevices[i]),
                       at::autocast::get_autocast_dtype(TapeRecords::kAutocastDevices[i])};
  }
  now.excluded = excluded & (c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset);
  if (records_.modes.empty() || records_.modes.back() != now) records_.modes.push_back(now);
  return static_cast<std::uint32_t>(records_.modes.size()) - 1;
}

std::int32_t Tape::random_state(const OperatorCall& call) {
  if (!call.handle.hasTag(at::Tag::nondeterministic_seeded)) return kNone;
  at::Generator generator;
  at::Device device = at::kCPU;
  for (const c10::IValue& value : call.arguments) {
    if (value.isGenerator()) generator = value.toGenerator();
    for_each_tensor_in(value, [&](const at::Tensor& tensor) { device = tensor.device(); });
  }
  if (!generator.defined()) generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  records_.randoms.push_back({generator, generator.get_state()});
  return static_cast<std::int32_t>(records_.randoms.size()) - 1;
}

void Tape::before_write(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_impl(tensor);
  if (storage == nullptr) return;
  const bool is_own = storage_indices_.contains(storage);
  if (!is_own && records_.rules.copies && records_.rules.outside_views) {
    std::erase_if(made_, [&](const auto& item) { return item.second.storage == storage; });
  }
  if (!records_.rules.copies) return;
  for (const std::weak_ptr<Tape>& each : tapes_alive()) {
    const std::shared_ptr<Tape> tape = each.lock();
    if (tape == nullptr || (tape.get() != this && !records_.rules.copies_everywhere)) continue;
    if (tape.get() != this || !is_own) tape->copy_outside(storage);
  }
}

void Tape::copy_outside(const c10::StorageImpl* storage) {
  const std::lock_guard lock(mutex_);
  if (outside_storages_.erase(storage) == 0) return;
  const c10::AutoGradMode no_gradients(false);
  std::vector<at::Tensor> copies;  // one of each type
  for (TapeRecords::Outside& it : records_.outsides) {
    if (it.storage != storage || it.is_copy) continue;
    auto copy = std::ranges::find(copies, it.tensor.scalar_type(), &at::Tensor::scalar_type);
    if (copy == copies.end()) {
      const auto elements = static_cast<std::int64_t>(storage->nbytes() / it.tensor.element_size());
      copies.push_back(it.tensor.detach().as_strided({elements}, {1}, 0).clone());
      records_.counts.copied_bytes += storage->nbytes();
      copy = copies.end() - 1;
    }
    it.tensor =
        copy->as_strided(it.tensor.sizes(), it.tensor.strides(), it.tensor.storage_offset());
    it.version = version_of(it.tensor);
    it.is_copy = true;
  }
}

void Tape::end(std::span<const c10::IValue> results) {
  if (now_ns_) records_.measured->operator_ns.push_back(now_ns_() - started_ns_ - own_ns_);
  Operator& recorded = records_.operators[static_cast<std::size_t>(current_)];
  note_writes(recorded);
  if (!recorded.keeps_results && !recorded.writes_outside) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto output = static_cast<std::int16_t>(i);
      if (results[i].isTensor()) {
        note_result(results[i].toTensor(), output, kNone);
      } else if (results[i].isTensorList()) {
        std::int16_t element = 0;
        for (const at::Tensor& each : results[i].toTensorVector())
          note_result(each, output, element++);
      }
    }
  }
  resolve_pending();
  current_ = kNone;
  current_arguments_.clear();
}

void Tape::note_writes(const Operator& recorded) {
  for (const StorageIndex index : recorded.writes) {
    records_.storages[static_cast<std::size_t>(index)].writers.push_back(current_);
  }
}

void Tape::note_result(const at::Tensor& tensor, std::int16_t output, std::int16_t element) {
  if (!tensor.defined()) return;
  const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  bool is_argument = false;
  for (const c10::IValue& value : current_arguments_) {
    for_each_tensor_in(
        value, [&](const at::Tensor& t) { is_argument |= t.unsafeGetTensorImpl() == impl; });
  }
  if (is_argument && !made_.contains(impl)) return;  // it gave back a tensor from outside
  const c10::StorageImpl* storage = storage_impl(tensor);
  MadeTensor made{current_, output, element, storage, {}};
  if (records_.rules.weak_references) made.alive.emplace(tensor.getIntrusivePtr());
  made_.insert_or_assign(impl, std::move(made));
  if (storage == nullptr || outside_storages_.contains(storage)) return;
  const auto index = static_cast<StorageIndex>(records_.storages.size());
  if (const auto [known, is_new] = storage_indices_.emplace(storage, index); !is_new) {
    const auto& operation = records_.operators[static_cast<std::size_t>(current_)].handle.schema();
    if (element != kNone &&
        operation.returns()[static_cast<std::size_t>(output)].alias_info() == nullptr)
      records_.storages[static_cast<std::size_t>(known->second)].counts_apart = true;
    return;
  }
  Storage known;
  known.maker = current_;
  known.output = output;
  known.element = element;
  known.type = tensor.scalar_type();
  if (records_.rules.weak_references) {
    known.alive = tensor.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl();
  }
  records_.storages.push_back(std::move(known));
  if (now_ns_)
    records_.measured->storage_bytes.push_back(static_cast<std::int64_t>(storage->nbytes()));
}

// Only now it is known to which storage a tensor belongs that the operator made and saved.
void Tape::resolve_pending() {
  if (now_ns_) {
    for (TapeRecords::SavedNote& note : records_.measured->saved) {
      if (note.key.saver == current_ && note.storage == kNone)
        note.storage = storage_index(note.address);
    }
  }
  const std::lock_guard lock(mutex_);
  for (Pending& pending : pending_) {
    const StorageIndex index = storage_index(pending.storage);
    if (index == kNone) continue;
    Storage& storage = records_.storages[static_cast<std::size_t>(index)];
    if (pending.is_kept) {
      storage.kept.push_back(std::move(pending.kept));
    } else if (const auto wanted = records_.wanted.find(pending.key);
               wanted != records_.wanted.end()) {
      wanted->second.storage = index;
    }
  }
  pending_.clear();
}

void Tape::measure(std::function<std::int64_t()> now_ns) {
  now_ns_ = std::move(now_ns);
  records_.measured.emplace();
}

void Tape::note_saved(SavedKey key, const at::Tensor& tensor, bool is_forced) {
  TapeRecords::SavedNote note;
  note.key = key;
  note.address = storage_impl(tensor);
  note.storage = storage_index(note.address);
  note.bytes = static_cast<std::int64_t>(storage_bytes(tensor));
  note.is_forced = is_forced;
  note.can_serve = is_strided_and_plain(tensor) && !tensor.is_inference();
  note.version = tensor.unsafeGetTensorImpl()->version_counter();
  note.saved_version = version_of(tensor);
  if (!is_forced && note.storage != kNone && !is_written_by_current(note.storage) &&
      has_value(tensor, note.storage)) {
    note.value = reference(tensor);
    note.is_by_value = note.value.source == TapeRecords::Source::result && note.value.is_plain;
  }
  note.value.type = tensor.scalar_type();
  records_.measured->saved.push_back(std::move(note));
}

// Whether reference() finds it without holding it as a tensor from outside.
bool Tape::has_value(const at::Tensor& tensor, StorageIndex storage) const {
  if (made_.contains(tensor.unsafeGetTensorImpl())) return true;
  return is_strided_and_plain(tensor) &&
         records_.storages[static_cast<std::size_t>(storage)].type == tensor.scalar_type();
}

// Later writes count no more, and the counters must not be held on to.
void Tape::end_measuring() {
  now_ns_ = nullptr;
  for (TapeRecords::SavedNote& note : records_.measured->saved) {
    if (note.version.enabled() && note.version.current_version() != note.saved_version)
      note.can_serve = false;
    if (note.storage == kNone) continue;
    const Storage& storage = records_.storages[static_cast<std::size_t>(note.storage)];
    if (storage.counts_apart || storage.is_lost || storage.type != note.value.type)
      note.can_serve = false;
  }
}

void Tape::failed() noexcept {
  if (current_ == kNone) return;
  const std::lock_guard lock(mutex_);
  for (const StorageIndex index : records_.operators[static_cast<std::size_t>(current_)].writes) {
    records_.storages[static_cast<std::size_t>(index)].is_lost = true;
  }
  std::erase_if(records_.wanted, [&](const auto& item) { return item.first.saver == current_; });
  if (records_.measured) {
    std::erase_if(records_.measured->saved,
                  [&](const TapeRecords::SavedNote& note) { return note.key.saver == current_; });
  }
  records_.operators.pop_back();
  pending_.clear();
  current_arguments_.clear();
  current_ = kNone;
}

Tape::StorageIndex Tape::storage_index(const c10::StorageImpl* storage) const {
  const auto found = storage_indices_.find(storage);
  return found == storage_indices_.end() ? kNone : found->second;
}

bool Tape::is_written_by_current(StorageIndex storage) const {
  const auto& writes = records_.operators[static_cast<std::size_t>(current_)].writes;
  return std::ranges::find(writes, storage) != writes.end();
}

bool Tape::must_keep(const at::Tensor& tensor) const {
  if (is_parameter(tensor)) return true;
  if (current_ == kNone) return true;
  const Operator& saver = records_.operators[static_cast<std::size_t>(current_)];
  if (saver.keeps_results || saver.writes_outside) return true;
  return outside_storages_.contains(storage_impl(tensor));
}

Hold Tape::choose(SavedKey key, const at::Tensor& tensor) const {
  if (!choice_) return Hold::drop;
  const StorageIndex index = storage_index(storage_impl(tensor));
  const auto handle = [this](OperatorIndex at) {
    return &records_.operators[static_cast<std::size_t>(at)].handle;
  };
  const c10::OperatorHandle* maker =
      index == kNone ? nullptr : handle(records_.storages[static_cast<std::size_t>(index)].maker);
  return choice_({*handle(current_), maker, tensor, key});
}

void Tape::keep(SavedKey key, const std::shared_ptr<const Kept>& kept,
                const c10::StorageImpl* storage) {
  ++records_.counts.kept;
  if (kept != nullptr && storage != nullptr) pending_.push_back({key, true, kept, storage});
}

void Tape::want(SavedKey key, const at::Tensor& tensor) {
  const std::lock_guard lock(mutex_);
  ++records_.counts.dropped;
  TapeRecords::Wanted wanted;
  wanted.sizes = tensor.sizes();
  wanted.version = tensor.unsafeGetTensorImpl()->version_counter();
  wanted.saved_version = version_of(tensor);
  const c10::StorageImpl* storage = storage_impl(tensor);
  const StorageIndex index = storage_index(storage);
  if (index != kNone && !is_written_by_current(index)) {
    wanted.value = reference(tensor);
    wanted.value.requires_grad = false;
    wanted.by_value = wanted.value.source == TapeRecords::Source::result && wanted.value.is_plain;
    wanted.storage = index;
  } else if (storage != nullptr) {
    pending_.push_back({key, false, {}, storage});
  }
  records_.wanted.emplace(key, std::move(wanted));
}

at::Tensor Tape::fetch(SavedKey key) {
  const std::lock_guard lock(mutex_);
  TapeRecords::Wanted& wanted = records_.wanted.at(key);
  // Autograd's rule, which counts no writes to a neighbour within the storage (unsafe_chunk).
  if (wanted.version.enabled() && wanted.version.current_version() != wanted.saved_version) {
    records_.fail(
        changed_in_place(wanted.sizes, wanted.saved_version, wanted.version.current_version()));
  }
  if (!wanted.found.defined()) replay(records_, key);
  if (!wanted.found.defined() || wanted.found.sizes() != at::IntArrayRef(wanted.sizes)) {
    records_.fail(
        "running " +
        toString(records_.operators[static_cast<std::size_t>(key.saver)].handle.operator_name()) +
        " again saved other tensors than the first time; expected the same, so keep this block");
  }
  return std::exchange(wanted.found, at::Tensor());
}

void Tape::forget(SavedKey key) noexcept {
  const std::lock_guard lock(mutex_);
  records_.wanted.erase(key);
}

void TapeRecords::fail(const std::string& what) const {
  throw Error(failed_precondition(name + ": " + what));
}

TapeScope::TapeScope(Tape& tape, std::vector<OperatorListener*> before)
    : saving_(tape), stream_([&] {
        before.push_back(&tape);
        return std::move(before);
      }()) {}

}  // namespace cox::detail
