#include "sdk/src/stream/tape.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <new>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/stream/inner_gradients.h"
#include "sdk/src/stream/packed_mask.h"
#include "sdk/src/stream/replay.h"

namespace cox::detail {
namespace {

// This thread's tapes that may hold tensors from outside of their regions.
std::vector<std::weak_ptr<Tape>>& tapes_alive() {
  thread_local std::vector<std::weak_ptr<Tape>> tapes;
  return tapes;
}

bool is_tensor_list(const c10::IValue& value) {
  if (!value.isList() || value.isTensorList()) return false;
  const auto elements = value.toListRef();
  return std::ranges::any_of(elements, [](const c10::IValue& e) { return e.isTensor(); });
}

}  // namespace

// Autograd holds Hooks in place of one saved tensor.
class Tape::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<Tape> tape) : tape_(std::move(tape)) {}
  ~Hooks() override { let_go(); }
  // The memory is the tape's; these hooks may be the tape's last owner.
  static void* operator new(std::size_t bytes, BlockArena& arena) { return arena.take(bytes); }
  static void operator delete(void*, BlockArena&) {}
  static void operator delete(Hooks* hooks, std::destroying_delete_t) {
    hooks->let_go();
    const std::shared_ptr<Tape> tape = std::move(hooks->tape_);
    hooks->~Hooks();
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    const StreamPause unseen;
    const RegionMeter::Pause own(tape_->is_measuring() ? tape_->meter_.get() : nullptr);
    saver_ = tape_->newest_operator();
    saved_ = tape_->save(tensor, kept_);
  }

  at::Tensor call_unpack_hook() override {
    if (tape_->meter_ == nullptr) return unpacked();
    tape_->meter_->asks(saver_);
    at::Tensor found = unpacked();
    tape_->meter_->has(saver_);
    return found;
  }

 private:
  at::Tensor unpacked() {
    const bool is_packed = kept_.packed != nullptr;
    if (!is_packed && !kept_.tensor.defined()) return tape_->fetch(saved_);
    if (!kept_.is_changed()) return is_packed ? kept_.packed->tensor() : kept_.tensor;
    tape_->records_.fail(changed_in_place(is_packed ? kept_.packed->sizes() : kept_.tensor.sizes(),
                                          kept_.version, kept_.counter().current_version()));
  }

  void let_go() noexcept {
    if (tape_ != nullptr && tape_->meter_ != nullptr) tape_->meter_->lets_go(saver_);
    if (saved_ != kNone) tape_->forget(std::exchange(saved_, kNone));
  }

  std::shared_ptr<Tape> tape_;
  std::int32_t saver_ = kNone;  // the operator
  std::int32_t saved_ = kNone;  // index in the records; none for a tensor that must be kept
  Kept kept_;                   // empty for a dropped tensor
};

class Tape::Spares {
 public:
  Spares() {
    records_.reserve(kMost);
    hooks_.reserve(kMost);
  }
  static std::shared_ptr<Spares> of_this_thread() {
    thread_local const auto spares = std::make_shared<Spares>();
    return spares;
  }

  std::unique_ptr<Recording> take_recording() {
    const std::lock_guard lock(mutex_);
    if (recording_ != nullptr) return std::move(recording_);
    return std::make_unique<Recording>();
  }
  void give_back(std::unique_ptr<Recording> recording) {
    recording->clear();
    const std::lock_guard lock(mutex_);
    if (recording->values.size() <= kMostOperators) recording_ = std::move(recording);
  }

  void take(TapeRecords& records, BlockArena& hooks) {
    const std::lock_guard lock(mutex_);
    if (records_.empty()) return;
    records = std::move(records_.back());
    hooks = std::move(hooks_.back());
    records_.pop_back();
    hooks_.pop_back();
  }
  void give_back(TapeRecords& records, BlockArena& hooks) noexcept {
    if (records.operators.size() > kMostOperators) return;
    records.clear();
    hooks.clear();
    const std::lock_guard lock(mutex_);
    if (records_.size() == kMost) return;
    records_.push_back(std::move(records));
    hooks_.push_back(std::move(hooks));
  }

 private:
  static constexpr std::size_t kMostOperators = 4096;  // largest tape with memory worth keeping
  static constexpr std::size_t kMost = 64;             // most tapes

  std::mutex mutex_;  // tapes end on any thread that runs backward
  std::unique_ptr<Recording> recording_;
  std::vector<TapeRecords> records_;
  std::vector<BlockArena> hooks_;
};

void Tape::Recording::clear() {
  values.clear();
  current_tensors.clear();
  pending.clear();
  mask_notes.clear();
  foreign.clear();
}

Tape::Tape(std::string name, HoldChoice choice, TapeRules rules)
    : choice_(std::move(choice)),
      spares_(Spares::of_this_thread()),
      recording_(spares_->take_recording()) {
  spares_->take(records_, hooks_);
  records_.name = std::move(name);
  records_.rules = rules;
}
Tape::~Tape() {
  spares_->give_back(records_, hooks_);
}

std::shared_ptr<Tape> Tape::make(std::string name, HoldChoice choice, TapeRules rules) {
  std::shared_ptr<Tape> tape(new Tape(std::move(name), std::move(choice), rules));
  auto& alive = tapes_alive();
  std::erase_if(alive, [](const std::weak_ptr<Tape>& each) { return each.expired(); });
  alive.push_back(tape);
  return tape;
}

void Tape::close() {
  is_open_ = false;
  current_ = kNone;
  if (recording_ != nullptr) spares_->give_back(std::move(recording_));
  for (Storage& storage : records_.storages) storage.alive.reset();
  if (meter_ != nullptr) end_measuring();
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
         records_.references.size() * sizeof(TapeRecords::Reference) +
         records_.numbers.size() * sizeof(std::int64_t) +
         records_.outsides.size() * sizeof(TapeRecords::Outside) +
         records_.storages.size() * sizeof(Storage) + records_.saved.size() * sizeof(Saved);
}

std::unique_ptr<torch::autograd::SavedVariableHooks> Tape::make_hooks() {
  return std::unique_ptr<Hooks>(new (hooks_) Hooks(shared_from_this()));
}

void Tape::begin(const OperatorCall& call) {
  current_ = static_cast<OperatorIndex>(records_.operators.size());
  Operator& recorded = records_.operators.emplace_back(Operator{call.handle});
  recorded.first_argument = static_cast<std::uint32_t>(records_.arguments.size());
  recorded.first_saved = static_cast<std::uint32_t>(records_.saved.size());
  recorded.modes = current_modes(call.excluded);
  recorded.arguments = static_cast<std::uint16_t>(call.arguments.size());
  recorded.has_statistics = !call.facts.statistics.empty();
  if (call.facts.is_random) recorded.generator = random_state(call);
  record_writes(call, recorded);
  record_arguments(call, recorded);
  current_is_random_ = call.facts.is_random;
  saved_ = 0;
  ++records_.counts.operators;
  if (is_measuring()) meter_->begin_operator();
}

void Tape::record_writes(const OperatorCall& call, Operator& recorded) {
  recorded.first_write = static_cast<std::uint32_t>(records_.writes.size());
  for (const std::uint16_t argument : call.facts.written) {
    for_each_tensor_in(call.arguments[argument], [&](const at::Tensor& tensor) {
      before_write(tensor);
      const StorageIndex index = place_of(storage_impl(tensor)).storage;
      if (index == kNone) {
        recorded.writes_outside = true;
        return;
      }
      records_.writes.push_back(index);
      ++recorded.writes;
    });
  }
}

void Tape::record_arguments(const OperatorCall& call, Operator& recorded) {
  auto list = call.integers.begin();
  for (std::size_t i = 0; i < call.arguments.size(); ++i) {
    Argument& made = records_.arguments.emplace_back();
    if (list != call.integers.end() && list->argument == i) {
      record_integers(list++->values, made);
    } else {
      record_argument(call.arguments[i], made);
    }
  }
  if (!records_.rules.factories) return;
  recorded.keeps_results = call.facts.is_programs || is_inner_gradients(call.handle) ||
                           recording_->current_tensors.empty() ||
                           std::ranges::any_of(recording_->current_tensors, is_foreign_memory);
}

void Tape::record_integers(at::IntArrayRef values, Argument& made) {
  made.kind = TapeRecords::ArgumentKind::integers;
  made.first = static_cast<std::uint32_t>(records_.numbers.size());
  made.count = static_cast<std::uint32_t>(values.size());
  records_.numbers.insert(records_.numbers.end(), values.begin(), values.end());
}

void Tape::record_argument(const c10::IValue& value, Argument& made) {
  made.first = static_cast<std::uint32_t>(records_.references.size());
  if (value.isTensor()) {
    made.kind = TapeRecords::ArgumentKind::tensor;
    record_tensor(value.toTensor());
  } else if (value.isTensorList() || is_tensor_list(value)) {
    made.kind = value.isTensorList() ? TapeRecords::ArgumentKind::tensors
                                     : TapeRecords::ArgumentKind::optional_tensors;
    for (const c10::IValue& element : value.toListRef())
      record_tensor(element.isTensor() ? element.toTensor() : at::Tensor());
  } else {
    made.value = value;
  }
  made.count = static_cast<std::uint32_t>(records_.references.size()) - made.first;
}

void Tape::record_tensor(const at::Tensor& tensor) {
  records_.references.push_back(recording_->values.reference(records_, tensor));
  if (!tensor.defined()) return;
  recording_->current_tensors.push_back(tensor);
  if (records_.rules.copies_foreign && is_foreign_memory(tensor)) copy_foreign(tensor);
}

void Tape::copy_foreign(const at::Tensor& tensor) {
  const TapeRecords::Reference& read = records_.references.back();
  if (read.source != TapeRecords::Source::outside || is_parameter(tensor)) return;
  const at::Tensor copy = recording_->foreign.copy_of(tensor);
  records_.counts.foreign_bytes = recording_->foreign.bytes();
  if (copy.defined())
    records_.outsides[at(read.index)] = {copy, version_of(copy), storage_impl(copy)};
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
  at::Generator generator;
  at::Device device = at::kCPU;
  for (const c10::IValue& value : call.arguments) {
    if (value.isGenerator()) generator = value.toGenerator();
    if (value.isDevice()) device = value.toDevice();  // a factory's device follows its tensors
    for_each_tensor_in(value, [&](const auto& it) { device = it.is_cpu() ? device : it.device(); });
  }
  if (!generator.defined()) generator = at::globalContext().defaultGenerator(device);
  const std::lock_guard lock(generator.mutex());
  records_.randoms.push_back({generator, generator.get_state()});
  return static_cast<std::int32_t>(records_.randoms.size()) - 1;
}

void Tape::before_write(const at::Tensor& tensor) {
  const c10::StorageImpl* storage = storage_impl(tensor);
  if (storage == nullptr) return;
  const bool is_own = place_of(storage).storage != kNone;
  if (!is_own && records_.rules.copies && records_.rules.outside_views)
    recording_->values.forget_views_of(storage);
  if (!records_.rules.copies) return;
  for (const std::weak_ptr<Tape>& each : tapes_alive()) {
    const std::shared_ptr<Tape> tape = each.lock();
    if (tape == nullptr || (tape.get() != this && !records_.rules.copies_everywhere)) continue;
    if (tape.get() != this || !is_own) tape->copy_outside(storage);
  }
}

// Returns whether the storage is memory from outside, and not copied.
bool Tape::holds_outside(const c10::StorageImpl* storage) {
  if (recording_ != nullptr) return recording_->values.stop_holding(storage);
  return std::ranges::any_of(records_.outsides,
                             [&](const TapeRecords::Outside& it) { return it.lies_in(storage); });
}

void Tape::copy_outside(const c10::StorageImpl* storage) {
  if (!holds_outside(storage)) return;
  const std::lock_guard lock(mutex_);
  const c10::AutoGradMode no_gradients(false);
  std::vector<at::Tensor> copies;  // one for each type
  for (TapeRecords::Outside& it : records_.outsides) {
    if (!it.lies_in(storage)) continue;
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
  if (is_measuring()) records_.measured->operators.push_back(meter_->end_operator());
  const Operator& recorded = at_operator(current_);
  note_writes(recorded);
  if (!recorded.keeps_results && !recorded.writes_outside) {
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto output = static_cast<std::int16_t>(i);
      if (results[i].isTensor()) {
        note_result(results[i].toTensor(), output, kNone);
      } else if (results[i].isTensorList()) {
        std::int16_t element = 0;
        for (const c10::IValue& each : results[i].toListRef())
          note_result(each.toTensor(), output, element++);
      }
    }
  }
  if (is_measuring()) resolve_notes();
  if (!recording_->pending.empty()) resolve_pending();
  current_ = kNone;
  recording_->current_tensors.clear();
}

void Tape::note_writes(const Operator& recorded) {
  for (const StorageIndex index : records_.writes_of(recorded)) {
    Storage& storage = records_.storages[at(index)];
    storage.writers.push_back(current_);
    storage.may_be_mask = storage.may_be_mask || current_is_random_;
  }
}

void Tape::note_result(const at::Tensor& tensor, std::int16_t output, std::int16_t element) {
  if (!tensor.defined()) return;
  const bool is_argument = std::ranges::any_of(
      recording_->current_tensors, [&](const at::Tensor& it) { return it.is_same(tensor); });
  // The operator returned a tensor from outside.
  if (is_argument && !recording_->values.knows(tensor)) return;
  recording_->values.note_result(records_, {tensor, current_, output, element, current_is_random_});
}

// After the operator, the storages of its new saved tensors are known, and all values are written.
void Tape::resolve_pending() {
  const std::lock_guard lock(mutex_);
  for (const Pending& pending : recording_->pending) {
    Saved& saved = records_.saved[at(pending.saved)];
    saved.storage = place_of(pending.storage).storage;
    if (saved.storage == kNone || saved.kept == nullptr) continue;
    Storage& storage = records_.storages[at(saved.storage)];
    if (storage.may_be_mask) pack(*pending.kept, saved);
    std::int32_t* last = &storage.first_kept;
    while (*last != kNone) last = &records_.saved[at(*last)].next_kept;
    *last = pending.saved;
  }
  recording_->pending.clear();
}

// All saved tensors of one state of a storage share its bits.
void Tape::pack(Kept& kept, Saved& saved) {
  if (!is_strided_and_plain(kept.tensor) || kept.is_changed()) return;
  std::optional<PackedMask> packed;
  for (std::int32_t s = records_.storages[at(saved.storage)].first_kept; s != kNone && !packed;
       s = records_.saved[at(s)].next_kept) {
    const Kept* other = records_.saved[at(s)].kept;
    if (other != nullptr && other->packed != nullptr && !other->is_changed())
      packed = other->packed->sharing(kept.tensor);
  }
  if (!packed) packed = PackedMask::pack(kept.tensor);
  if (!packed) return;
  kept.packed = std::make_shared<const PackedMask>(std::move(*packed));
  kept.tensor.reset();
  ++records_.counts.packed;
}

void Tape::measure(std::shared_ptr<RegionMeter> meter) {
  meter_ = std::move(meter);
  records_.measured.emplace();
}

void Tape::note_saved(SavedKey key, const at::Tensor& tensor, bool is_forced) {
  TapeRecords::SavedNote note;
  note.key = key;
  note.address = storage_impl(tensor);
  note.storage = place_of(note.address).storage;
  note.bytes = static_cast<std::int64_t>(storage_bytes(tensor));
  note.is_forced = is_forced;
  note.can_serve = is_strided_and_plain(tensor) && !tensor.is_inference();
  note.counter = tensor.unsafeGetTensorImpl()->version_counter();
  note.version = version_of(tensor);
  if (!is_forced && note.storage != kNone && !is_written_by_current(note.storage) &&
      recording_->values.has_value(records_, tensor)) {
    note.value = recording_->values.reference(records_, tensor);
    note.is_by_value = note.value.source == TapeRecords::Source::result && note.value.is_plain;
  }
  note.value.type = tensor.scalar_type();
  if (!is_forced && is_strided_and_plain(tensor))
    recording_->mask_notes.push_back({records_.measured->saved.size(), detached(tensor)});
  records_.measured->saved.push_back(std::move(note));
}

void Tape::resolve_notes() {
  auto& notes = records_.measured->saved;
  for (TapeRecords::SavedNote& note : notes) {
    if (note.key.saver == current_ && note.storage == kNone)
      note.storage = place_of(note.address).storage;
  }
  for (const MaskNote& it : recording_->mask_notes) {
    TapeRecords::SavedNote& note = notes[it.note];
    if (note.storage == kNone || !records_.storages[at(note.storage)].may_be_mask) continue;
    if (const auto packed = PackedMask::pack(it.tensor)) note.packed_bytes = packed->bytes();
  }
  recording_->mask_notes.clear();
}

// Settles can_serve: later writes do not count.
void Tape::end_measuring() {
  for (TapeRecords::SavedNote& note : records_.measured->saved) {
    if (note.counter.enabled() && note.counter.current_version() != note.version)
      note.can_serve = false;
    if (note.storage == kNone) continue;
    const Storage& storage = records_.storages[at(note.storage)];
    if (storage.counts_apart || storage.is_lost || storage.type != note.value.type)
      note.can_serve = false;
  }
}

void Tape::failed() noexcept {
  if (current_ == kNone) return;
  const std::lock_guard lock(mutex_);
  const Operator& recorded = at_operator(current_);
  for (const StorageIndex index : records_.writes_of(recorded)) {
    records_.storages[at(index)].is_lost = true;
  }
  for (std::size_t s = recorded.first_saved; s < records_.saved.size(); ++s)
    records_.saved[s].is_wanted = false;
  if (records_.measured) {
    std::erase_if(records_.measured->saved,
                  [&](const TapeRecords::SavedNote& note) { return note.key.saver == current_; });
  }
  records_.operators.pop_back();
  recording_->pending.clear();
  recording_->mask_notes.clear();
  recording_->current_tensors.clear();
  current_ = kNone;
}

Tape::Place Tape::place_of(const c10::StorageImpl* storage) const {
  return recording_ == nullptr ? Place{} : recording_->values.place_of(storage);
}

bool Tape::is_written_by_current(StorageIndex storage) const {
  const auto writes = records_.writes_of(at_operator(current_));
  return std::ranges::find(writes, storage) != writes.end();
}

// Returns the tensor's index in the records, or kNone if it must be kept.
std::int32_t Tape::save(const at::Tensor& tensor, Kept& kept) {
  const SavedKey key{current_, saved_++};
  const c10::StorageImpl* const storage = storage_impl(tensor);
  const Place place = place_of(storage);
  const bool is_forced = must_keep(tensor, place);
  if (is_measuring()) note_saved(key, tensor, is_forced);
  const bool is_kept = is_forced || choose(key, tensor, place.storage) == Hold::keep;
  ++(is_kept ? records_.counts.kept : records_.counts.dropped);
  if (is_kept) keep(tensor, kept);
  if (is_forced) return kNone;
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::int32_t>(records_.saved.size());
  Saved& saved = records_.saved.emplace_back();
  saved.key = key;
  saved.storage = place.storage;
  if (is_kept) {
    saved.kept = &kept;
  } else {
    want(tensor, saved);
  }
  if (storage != nullptr && (is_kept || !saved.by_value))
    recording_->pending.push_back({index, is_kept ? &kept : nullptr, storage});
  return index;
}

bool Tape::must_keep(const at::Tensor& tensor, Place place) const {
  if (current_ == kNone || place.is_outside || is_parameter(tensor)) return true;
  const Operator& saver = at_operator(current_);
  return saver.keeps_results || saver.writes_outside;
}

Hold Tape::choose(SavedKey key, const at::Tensor& tensor, StorageIndex storage) const {
  if (!choice_) return Hold::drop;
  const c10::OperatorHandle* maker =
      storage == kNone ? nullptr : &at_operator(records_.storages[at(storage)].maker).handle;
  return choice_({at_operator(current_).handle, maker, tensor, key});
}

void Tape::keep(const at::Tensor& tensor, Kept& kept) const {
  const bool copies = !records_.rules.after_operator;
  kept.tensor = copies && !is_parameter(tensor) ? tensor.detach().clone() : without_graph(tensor);
  kept.version = version_of(kept.tensor);
}

void Tape::want(const at::Tensor& tensor, Saved& saved) {
  saved.is_wanted = true;
  saved.counter = tensor.unsafeGetTensorImpl()->version_counter();
  saved.version = version_of(tensor);
  if (saved.storage != kNone && !is_written_by_current(saved.storage)) {
    saved.value = recording_->values.reference(records_, tensor);
    saved.value.requires_grad = false;
    saved.by_value = saved.value.source == TapeRecords::Source::result && saved.value.is_plain;
  }
  if (saved.by_value) {
    saved.sizes = saved.value.geometry;
    return;
  }
  saved.sizes = static_cast<std::uint32_t>(records_.numbers.size());
  records_.numbers.push_back(tensor.dim());
  records_.numbers.insert(records_.numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
}

at::Tensor Tape::fetch(std::int32_t index) {
  const std::lock_guard lock(mutex_);
  Saved& saved = records_.saved[at(index)];
  // Autograd's rule. Writes to a neighbour within the storage (unsafe_chunk) do not count.
  if (saved.counter.enabled() && saved.counter.current_version() != saved.version) {
    records_.fail(
        changed_in_place(records_.sizes_of(saved), saved.version, saved.counter.current_version()));
  }
  if (!saved.found.defined()) replay(records_, index, replay_ns_.get());
  if (!saved.found.defined() || saved.found.sizes() != records_.sizes_of(saved)) {
    records_.fail("running " + toString(at_operator(saved.key.saver).handle.operator_name()) +
                  " again saved different tensors than the first run; expected the same tensors: "
                  "keep this block (memory.force)");
  }
  return std::exchange(saved.found, at::Tensor());
}

void Tape::forget(std::int32_t index) noexcept {
  const std::lock_guard lock(mutex_);
  Saved& saved = records_.saved[at(index)];
  saved.kept = nullptr;
  saved.is_wanted = false;
  saved.found.reset();
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
