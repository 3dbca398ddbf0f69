#include "sdk/src/stream/replay.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/as_strided.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "sdk/src/libtorch/graph_node.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace replaying {  // not anonymous: sources are compiled together, and these names are plain

using OperatorIndex = TapeRecords::OperatorIndex;
using StorageIndex = TapeRecords::StorageIndex;
using SavedKey = TapeRecords::SavedKey;
using Source = TapeRecords::Source;
using Reference = TapeRecords::Reference;
using ArgumentKind = TapeRecords::ArgumentKind;
using Argument = TapeRecords::Argument;
using Modes = TapeRecords::Modes;
using Operator = TapeRecords::Operator;
using Random = TapeRecords::Random;
using Outside = TapeRecords::Outside;
using Kept = TapeRecords::Kept;
using Storage = TapeRecords::Storage;
using Saved = TapeRecords::Saved;
constexpr std::int32_t kNone = TapeRecords::kNone;
constexpr auto& kAutocastDevices = TapeRecords::kAutocastDevices;

// A dead end of a graph, so that autograd saves as for a tensor with history.
torch::autograd::Edge end_of_history() {
  static const auto node = [] {
    auto made = make_node<torch::autograd::Error>("a replayed operator has no history",
                                                  torch::autograd::edge_list{});
    made->add_input_metadata(torch::autograd::Node::undefined_input());
    return made;
  }();
  return {node, 0};
}

bool is_plain(const at::Tensor& tensor) {
  return !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor with_history(const at::Tensor& tensor, bool requires_grad) {
  if (tensor.requires_grad() == requires_grad) return tensor;
  at::Tensor alone = detached(tensor);
  if (requires_grad) torch::autograd::impl::set_gradient_edge(alone, end_of_history());
  return alone;
}

// CaptureFrame takes the tensors saved by rerun operators, numbered as in the first run.
class CaptureFrame final : public SavedTensorFrame {
 public:
  explicit CaptureFrame(TapeRecords& records) : records_(records) {}
  void next(OperatorIndex running) { key_ = {running, 0}; }

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    return std::make_unique<Capture>(*this);
  }

 private:
  // The graph is discarded at once, so backward never unpacks anything.
  class Capture final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Capture(CaptureFrame& frame) : frame_(frame) {}
    void call_pack_hook(const at::Tensor& tensor) override { frame_.take(tensor); }
    at::Tensor call_unpack_hook() override { return {}; }

   private:
    CaptureFrame& frame_;
  };

  void take(const at::Tensor& tensor) {
    const SavedKey key = std::exchange(key_, {key_.saver, key_.position + 1});
    const std::int32_t index = records_.saved_index(key);
    if (index == kNone) return;
    Saved& saved = records_.saved[static_cast<std::size_t>(index)];
    if (!saved.is_wanted || saved.by_value || saved.found.defined()) return;
    saved.found = detached(tensor);
    if (!records_.rules.after_operator) saved.found = saved.found.clone();
  }

  TapeRecords& records_;
  SavedKey key_;
};

// Runner runs recorded operators, whatever the source of their arguments. Enters the modes of each
// operator and restores the thread's state at its end.
class Runner {
 public:
  explicit Runner(TapeRecords& records);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  virtual ~Runner();

 protected:
  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }
  virtual at::Tensor tensor(const Reference& reference) = 0;
  // Runs one operator and returns its results.
  torch::jit::Stack call(const Operator& it);
  at::Tensor located(const at::Tensor& memory, const Reference& reference) const;

  TapeRecords& records_;

 private:
  torch::jit::Stack arguments(const Operator& it);
  c10::IValue argument(const Argument& it);
  void protect_statistics(const Operator& it, torch::jit::Stack& stack) const;
  void enter(const Modes& modes);
  void set_random(const Random& random);

  std::vector<Random> randoms_before_;
  Modes modes_before_;
  bool had_cast_cache_;
};

class Replay final : public Runner {
 public:
  Replay(TapeRecords& records, std::int32_t first);
  void run();

 private:
  template <class Use>
  void for_each_reference(const Operator& it, const Use& use) const;

  // Planning.
  void mark_needed(const Saved& first);
  void depend_on(const Reference& reference);
  bool is_kept(const Reference& reference);
  bool is_kept(StorageIndex storage, at::ScalarType type);
  const at::Tensor& memory_of(StorageIndex storage);
  const Kept* find_kept(const Storage& storage) const;
  void take_what_is_on_the_way();
  bool is_on_the_way(const Saved& saved);
  void plan_last_uses();
  void use_last(const Reference& reference, OperatorIndex user);

  // Running.
  void run_operator(OperatorIndex index, const Operator& it);
  at::Tensor tensor(const Reference& reference) override;

  struct KeptOfStorage {
    bool is_known = false;
    std::optional<at::ScalarType> type;  // nothing kept: none
    std::shared_ptr<const PackedMask> packed;
    at::Tensor memory;  // a packed mask's values, once read
  };
  struct OperatorPlan {
    bool is_needed = false;
    OperatorIndex last_use = kNone;
    std::vector<Saved*> takes;         // values to read before the operator runs
    std::vector<OperatorIndex> frees;  // last used by this operator
    std::vector<c10::IValue> results;
  };

  std::vector<OperatorPlan> plan_;
  std::vector<KeptOfStorage> kept_;  // for each storage
  CaptureFrame capture_;
};

Runner::Runner(TapeRecords& records)
    : records_(records), had_cast_cache_(at::autocast::is_autocast_cache_enabled()) {
  modes_before_.has_gradients = c10::GradMode::is_enabled();
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    modes_before_.autocast[i] = {at::autocast::is_autocast_enabled(kAutocastDevices[i]),
                                 at::autocast::get_autocast_dtype(kAutocastDevices[i])};
  }
}

Runner::~Runner() {
  enter(modes_before_);
  at::autocast::set_autocast_cache_enabled(had_cast_cache_);
  for (Random& it : randoms_before_) {
    const std::lock_guard lock(it.generator.mutex());
    it.generator.set_state(it.state);
  }
}

Replay::Replay(TapeRecords& records, std::int32_t first)
    : Runner(records),
      plan_(records.operators.size()),
      kept_(records.storages.size()),
      capture_(records) {
  mark_needed(records.saved[at(first)]);
  take_what_is_on_the_way();
  plan_last_uses();
}

template <class Use>
void Replay::for_each_reference(const Operator& it, const Use& use) const {
  for (std::size_t i = 0; i < it.arguments; ++i) {
    const Argument& argument = records_.arguments[it.first_argument + i];
    if (argument.kind == ArgumentKind::integers) continue;
    for (std::uint32_t r = 0; r < argument.count; ++r) use(records_.references[argument.first + r]);
  }
}

// Tensors saved by one operator or sharing a storage are made together, because backward requests
// them one after the other.
void Replay::mark_needed(const Saved& first) {
  for (Saved& saved : records_.saved) {
    if (!saved.is_wanted || saved.found.defined()) continue;
    const bool is_together = saved.key.saver == first.key.saver ||
                             (first.storage != kNone && saved.storage == first.storage);
    if (!is_together) continue;
    if (saved.by_value) {
      depend_on(saved.value);
      plan_[at(saved.key.saver)].takes.push_back(&saved);
    } else {
      plan_[at(saved.key.saver)].is_needed = true;
    }
  }
  for (std::size_t i = plan_.size(); i-- > 0;) {
    if (!plan_[i].is_needed) continue;
    for_each_reference(records_.operators[i], [this](const Reference& r) { depend_on(r); });
  }
}

// A value is its storage after the writes before the read.
void Replay::depend_on(const Reference& reference) {
  if (reference.source != Source::result || is_kept(reference)) return;
  plan_[at(reference.index)].is_needed = true;
  if (reference.storage == kNone) return;
  const auto& writers = records_.storages[at(reference.storage)].writers;
  for (std::int32_t w = 0; w < reference.writes; ++w) plan_[at(writers[at(w)])].is_needed = true;
}

bool Replay::is_kept(const Reference& reference) {
  if (reference.source != Source::result || reference.storage == kNone || !reference.is_plain)
    return false;
  const std::size_t writes = records_.storages[at(reference.storage)].writers.size();
  if (records_.rules.last_state && at(reference.writes) != writes) return false;
  return is_kept(reference.storage, reference.type);
}

bool Replay::is_kept(StorageIndex storage, at::ScalarType type) {
  KeptOfStorage& known = kept_[at(storage)];
  if (!std::exchange(known.is_known, true)) {
    if (const Kept* kept = find_kept(records_.storages[at(storage)]); kept != nullptr) {
      known.packed = kept->packed;
      known.memory = kept->tensor;
      known.type = kept->packed ? kept->packed->type() : kept->tensor.scalar_type();
    }
  }
  return known.type == type;
}

const Kept* Replay::find_kept(const Storage& storage) const {
  if (storage.is_lost || storage.counts_apart) return nullptr;
  for (std::int32_t s = storage.first_kept; s != kNone; s = records_.saved[at(s)].next_kept) {
    const Kept* kept = records_.saved[at(s)].kept;
    if (kept == nullptr || !kept->counter().enabled()) continue;
    if (records_.rules.versions && kept->is_changed()) continue;
    if (kept->packed != nullptr || is_plain(kept->tensor)) return kept;
  }
  return nullptr;
}

// REQUIRES: is_kept().
const at::Tensor& Replay::memory_of(StorageIndex storage) {
  KeptOfStorage& known = kept_[at(storage)];
  if (!known.memory.defined()) known.memory = known.packed->values();
  return known.memory;
}

void Replay::take_what_is_on_the_way() {
  for (Saved& saved : records_.saved) {
    if (!saved.is_wanted || !saved.by_value || saved.found.defined()) continue;
    auto& takes = plan_[at(saved.key.saver)].takes;
    if (std::ranges::find(takes, &saved) != takes.end() || !is_on_the_way(saved)) continue;
    takes.push_back(&saved);
  }
}

bool Replay::is_on_the_way(const Saved& saved) {
  const Reference& value = saved.value;
  if (is_kept(value) || !plan_[at(value.index)].is_needed) return false;
  if (value.storage == kNone) return true;
  const auto& writers = records_.storages[at(value.storage)].writers;
  return std::all_of(writers.begin(), writers.begin() + value.writes,
                     [this](OperatorIndex writer) { return plan_[at(writer)].is_needed; });
}

void Replay::plan_last_uses() {
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    const auto index = static_cast<OperatorIndex>(i);
    for (const Saved* saved : plan_[i].takes) use_last(saved->value, index);
    if (!plan_[i].is_needed) continue;
    use_last({.source = Source::result, .index = index}, index);
    for_each_reference(records_.operators[i], [&](const Reference& r) { use_last(r, index); });
  }
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    if (plan_[i].last_use != kNone)
      plan_[at(plan_[i].last_use)].frees.push_back(static_cast<OperatorIndex>(i));
  }
}

void Replay::use_last(const Reference& reference, OperatorIndex user) {
  if (reference.source == Source::result) plan_[at(reference.index)].last_use = user;
}

void Replay::run() {
  const StreamPause unseen;
  const SavedTensorScope capturing(capture_);
  for (std::size_t i = 0; i < plan_.size(); ++i) {
    for (Saved* saved : plan_[i].takes) saved->found = detached(tensor(saved->value));
    if (plan_[i].is_needed) run_operator(static_cast<OperatorIndex>(i), records_.operators[i]);
    for (const OperatorIndex done : plan_[i].frees) plan_[at(done)].results.clear();
  }
}

void Replay::run_operator(OperatorIndex index, const Operator& it) {
  capture_.next(index);
  const torch::jit::Stack results = call(it);
  capture_.next(kNone);
  ++records_.counts.replayed;
  plan_[at(index)].results.assign(results.begin(), results.end());
}

torch::jit::Stack Runner::call(const Operator& it) {
  const Modes& modes = records_.modes[it.modes];
  enter(modes_before_);
  torch::jit::Stack stack = arguments(it);
  if (it.has_statistics && records_.rules.statistics) protect_statistics(it, stack);
  enter(modes);
  if (it.generator != kNone && records_.rules.generators)
    set_random(records_.randoms[at(it.generator)]);
  const c10::impl::ExcludeDispatchKeyGuard excluded(modes.excluded);
  it.handle.callBoxed(stack);
  return stack;
}

torch::jit::Stack Runner::arguments(const Operator& it) {
  const c10::AutoGradMode no_gradients(false);
  torch::jit::Stack stack;
  stack.reserve(it.arguments);
  for (std::size_t i = 0; i < it.arguments; ++i) {
    stack.push_back(argument(records_.arguments[it.first_argument + i]));
  }
  return stack;
}

c10::IValue Runner::argument(const Argument& it) {
  const auto reference = [&](std::uint32_t i) -> const Reference& {
    return records_.references[it.first + i];
  };
  if (it.kind == ArgumentKind::value) return it.value;
  if (it.kind == ArgumentKind::tensor) return tensor(reference(0));
  if (it.kind == ArgumentKind::integers)
    return c10::IValue(at::IntArrayRef(records_.numbers.data() + it.first, it.count));
  if (it.kind == ArgumentKind::tensors) {
    std::vector<at::Tensor> tensors;
    for (std::uint32_t i = 0; i < it.count; ++i) tensors.push_back(tensor(reference(i)));
    return tensors;
  }
  c10::List<std::optional<at::Tensor>> tensors;
  for (std::uint32_t i = 0; i < it.count; ++i) {
    const bool is_there = reference(i).source != Source::undefined;
    tensors.push_back(is_there ? std::optional(tensor(reference(i))) : std::nullopt);
  }
  return tensors;
}

at::Tensor Replay::tensor(const Reference& reference) {
  if (reference.source == Source::undefined) return {};
  const bool with = records_.rules.detached;
  if (reference.source == Source::outside) {
    const Outside& it = records_.outsides[at(reference.index)];
    if (version_of(it.tensor) != it.version)
      records_.fail(changed_in_place(it.tensor.sizes(), it.version, version_of(it.tensor)));
    if (!it.is_copy && storage_impl(it.tensor) != it.storage)
      records_.fail(
          "a tensor got another storage between its forward and backward pass (set_data)");
    const at::Tensor alone = with && !is_parameter(it.tensor) ? detached(it.tensor) : it.tensor;
    return with ? with_history(alone, reference.requires_grad) : alone;
  }
  at::Tensor found;
  if (is_kept(reference)) {
    found = located(memory_of(reference.storage), reference);
  } else {
    const c10::IValue& result = plan_[at(reference.index)].results[at(reference.output)];
    found = reference.element == kNone ? result.toTensor()
                                       : result.toTensorVector()[at(reference.element)];
    if (reference.is_view) found = located(found, reference);
  }
  return with ? with_history(found, reference.requires_grad) : found;
}

at::Tensor Runner::located(const at::Tensor& memory, const Reference& reference) const {
  const std::int64_t* from = records_.numbers.data() + reference.geometry;
  const auto dimensions = static_cast<std::size_t>(*from++);
  return memory.as_strided({from, dimensions}, {from + dimensions, dimensions},
                           from[2 * dimensions]);
}

void Runner::protect_statistics(const Operator& it, torch::jit::Stack& stack) const {
  const StreamPause unseen;
  const auto& schema = it.handle.schema().arguments();
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const std::string& name = schema[i].name();
    if (name != "running_mean" && name != "running_var") continue;
    if (stack[i].isTensor() && stack[i].toTensor().defined())
      stack[i] = stack[i].toTensor().clone();
  }
}

void Runner::enter(const Modes& modes) {
  c10::GradMode::set_enabled(modes.has_gradients || !records_.rules.gradient_mode);
  if (!records_.rules.autocast) return;
  for (std::size_t i = 0; i < kAutocastDevices.size(); ++i) {
    at::autocast::set_autocast_enabled(kAutocastDevices[i], modes.autocast[i].is_enabled);
    at::autocast::set_autocast_dtype(kAutocastDevices[i], modes.autocast[i].type);
  }
  at::autocast::set_autocast_cache_enabled(false);
}

void Runner::set_random(const Random& random) {
  at::Generator generator = random.generator;
  const std::lock_guard lock(generator.mutex());
  const bool is_saved = std::ranges::any_of(
      randoms_before_, [&](const Random& it) { return it.generator == generator; });
  if (!is_saved) randoms_before_.push_back({generator, generator.get_state()});
  generator.set_state(random.state);
}

// Rerun runs all operators with the pass's own tensors instead of detached copies.
class Rerun final : public Runner {
 public:
  Rerun(TapeRecords& records, RerunResults& results) : Runner(records), results_(results) {}
  void run(const std::vector<std::vector<RecordedResult>>& ends);

 private:
  at::Tensor tensor(const Reference& reference) override;
  at::Tensor outside(const Outside& it, bool requires_grad);

  RerunResults& results_;
  static at::Tensor memory_of(const Outside& it);

  // Replaces memory from outside that the pass wrote to; holds its values before the write.
  std::map<const c10::StorageImpl*, at::Tensor> memories_;
};

std::vector<at::Tensor> tensors_of(const c10::IValue& result) {
  if (result.isTensor()) return {result.toTensor()};
  if (result.isTensorList()) return result.toTensorVector();
  return {};
}

void Rerun::run(const std::vector<std::vector<RecordedResult>>& ends) {
  results_.assign(records_.operators.size(), {});
  const auto let_go = [this](const RecordedResult& it) {
    results_[at(it.maker)][at(it.output)][at(it.element)].reset();
  };
  for (std::size_t i = 0; i < records_.operators.size(); ++i) {
    std::ranges::for_each(ends[i], let_go);
    const torch::jit::Stack results = call(records_.operators[i]);
    for (const c10::IValue& result : results) results_[i].push_back(tensors_of(result));
  }
  std::ranges::for_each(ends.back(), let_go);
}

at::Tensor Rerun::tensor(const Reference& reference) {
  if (reference.source == Source::undefined) return {};
  if (reference.source == Source::outside)
    return outside(records_.outsides[at(reference.index)], reference.requires_grad);
  const auto element = static_cast<std::size_t>(std::max<std::int16_t>(0, reference.element));
  at::Tensor found = results_[at(reference.index)][at(reference.output)][element];
  if (reference.is_view) {
    const StreamPause unseen;
    const c10::AutoGradMode as_user_code(true);
    found = located(found.detach(), reference);
  }
  // A leaf made by the program: requires_grad_() is no operator.
  if (reference.requires_grad && found.is_leaf() && !found.requires_grad()) found.requires_grad_();
  if (found.requires_grad() != reference.requires_grad)
    records_.fail(
        "expected history from operators of this step only, found a tensor with another history");
  return found;
}

at::Tensor Rerun::outside(const Outside& it, bool requires_grad) {
  if (is_parameter(it.tensor)) return it.tensor;
  const StreamPause unseen;
  const c10::AutoGradMode as_user_code(true);  // a view made without gradients refuses writes
  const auto known = memories_.find(it.storage);
  if (!it.is_copy && known == memories_.end())
    return it.tensor.detach().requires_grad_(requires_grad);
  const at::Tensor& memory = known != memories_.end()
                                 ? known->second
                                 : memories_.emplace(it.storage, memory_of(it)).first->second;
  if (memory.sizes() == it.tensor.sizes() && memory.strides() == it.tensor.strides() &&
      memory.storage_offset() == it.tensor.storage_offset()) {
    return memory;
  }
  return memory.as_strided(it.tensor.sizes(), it.tensor.strides(), it.tensor.storage_offset());
}

at::Tensor Rerun::memory_of(const Outside& it) {
  const at::Tensor values = it.tensor.detach();
  const c10::StorageImpl* storage = storage_impl(values);
  if (values.is_contiguous() && values.nbytes() == storage->nbytes()) return values.clone();
  const auto elements = static_cast<std::int64_t>(storage->nbytes() / values.element_size());
  return values.as_strided({elements}, {1}, 0).clone();
}

}  // namespace replaying

void replay(TapeRecords& records, std::int32_t first, std::atomic<std::int64_t>* spent_ns) {
  if (spent_ns == nullptr) return replaying::Replay(records, first).run();
  const auto began = std::chrono::steady_clock::now();
  replaying::Replay(records, first).run();
  const std::chrono::nanoseconds spent = std::chrono::steady_clock::now() - began;
  spent_ns->fetch_add(spent.count(), std::memory_order_relaxed);
}

void rerun(TapeRecords& records, const std::vector<std::vector<RecordedResult>>& ends,
           RerunResults& results) {
  replaying::Rerun(records, results).run(ends);
}

}  // namespace cox::detail
