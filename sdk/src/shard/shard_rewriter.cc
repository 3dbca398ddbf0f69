#include "sdk/src/shard/shard_rewriter.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/device/bits_hash.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

const void* data_of(const at::Tensor& tensor) {
  if (!tensor.has_storage() || !tensor.is_cpu()) return nullptr;
  const auto offset = static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size();
  return static_cast<const std::byte*>(tensor.storage().data()) + offset;
}

at::Tensor on_storage(const c10::Storage& storage, const at::Tensor& like) {
  auto made =
      at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), like.key_set(), like.dtype());
  made.unsafeGetTensorImpl()->set_storage_offset(like.storage_offset());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides());
  return made;
}

bool is_expandable_to(const at::Tensor& tensor, at::IntArrayRef sizes) {
  if (tensor.dim() > static_cast<std::int64_t>(sizes.size())) return false;
  for (std::int64_t d = 1; d <= tensor.dim(); ++d) {
    const std::int64_t size = tensor.size(-d);
    if (size != 1 && size != sizes[sizes.size() - static_cast<std::size_t>(d)]) return false;
  }
  return true;
}

// A tensor in a shared storage (a gradient in a bucket) cannot be tracked by its storage.
bool owns_its_storage(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().nbytes() == tensor.nbytes();
}

// Identify writes that are no operator's.
constexpr std::uint64_t kGathering = 0x67617468;
constexpr std::uint64_t kLoading = 0x6c6f6164;

// Completes a write at the end of its scope, also after an exception.
class Completing {
 public:
  explicit Completing(WriteOrder& order) : order_(order) {}
  ~Completing() { order_.complete(); }
  Completing(const Completing&) = delete;
  Completing& operator=(const Completing&) = delete;

 private:
  WriteOrder& order_;
};

// StorageCopy is a private copy of a whole storage, for an operator that writes there.
struct StorageCopy {
  const ShardedStorage* of;
  c10::Storage storage;

  void keep_own() const {
    if (of->own.is_empty()) return;
    std::memcpy(of->writable() + of->own_begin_bytes(),
                static_cast<const std::byte*>(storage.data()) + of->own_begin_bytes(),
                static_cast<std::size_t>(of->own_bytes()));
  }
};

StorageCopy copy_of(const ShardedStorage& of) {
  const auto bytes = static_cast<std::int64_t>(of.storage.nbytes());
  const at::Tensor copy = at::empty({bytes}, at::kByte);
  std::memcpy(copy.mutable_data_ptr(), of.readable(), of.storage.nbytes());
  return {&of, copy.storage()};
}

OperandKind kind_of(TrackedStates::Kind kind) {
  using Kind = TrackedStates::Kind;
  if (kind == Kind::shard) return OperandKind::shard;
  if (kind == Kind::copy) return OperandKind::copy;
  return kind == Kind::candidate ? OperandKind::candidate : OperandKind::derived;
}

[[noreturn]] void refuse(const std::string& found, const std::string& parameter) {
  throw Error(
      failed_precondition("shard.mode: expected operators that read the optimizer's state of ",
                          parameter, " or write it element by element, found ", found,
                          "; train this loop without shard.mode"),
      Error::Scope::all_ranks);
}

// An operator that changes a parameter's form (resize_, t_) changed only the stand-in.
[[noreturn]] void refuse_form(const c10::OperatorHandle& handle) {
  throw Error(
      failed_precondition("shard.mode: expected parameters that keep their form, found ",
                          handle.operator_name().name, " on one; change its form before adopt()"),
      Error::Scope::all_ranks);
}

std::uint64_t mixed(std::uint64_t hash, std::uint64_t number) {
  Fnv1a64 mix;
  mix.add(hash);
  mix.add(number);
  return mix.value();
}

}  // namespace

bool ShardRewriter::follows_values() const {
  return has_averaged_ && !at::GradMode::is_enabled();
}

ShardRewriter::Seen ShardRewriter::seen_as(TrackedStates::Kind kind) {
  using Kind = TrackedStates::Kind;
  if (kind == Kind::shard) return Seen::shard;
  if (kind == Kind::copy) return Seen::copy;
  return kind == Kind::candidate ? Seen::candidate : Seen::flowing;
}

void ShardRewriter::touch(const at::Tensor& argument) {
  if (const ShardedStorage* storage = parameters_.storage_of(argument)) {
    const bool is_gradient = parameters_.all()[storage->parameters[0]].gradient_of.has_value();
    if (is_gradient && follows_values()) see(Seen::flowing);
    return see(Seen::parameter);
  }
  if (const auto* tracked = states_.find(argument)) {
    return see(seen_as(tracked->kind));
  }
  if (follows_values() && gradients_.find(data_of(argument)) != nullptr) see(Seen::flowing);
}

bool ShardRewriter::wants(const c10::OperatorHandle& handle, const OperatorFacts& facts) {
  const bool sees_nothing = seen_ == 0;
  if (sees_nothing) return false;
  const bool writes = !facts.written.empty();
  const bool may_write = has_seen(Seen::parameter) || has_seen(Seen::copy);
  bool wanted = has_seen(Seen::shard) || (may_write && writes);
  if (!wanted && follows_values()) {
    const bool may_be_state = has_seen(Seen::flowing) || has_seen(Seen::candidate);
    wanted = may_be_state || (has_seen(Seen::parameter) && traits_of(handle).makes_alike);
  }
  const bool reads = has_seen(Seen::parameter);
  seen_ = 0;
  if (!wanted && reads) order_.wait_for_completed();
  return wanted;
}

void ShardRewriter::classify(Operand& operand) {
  if (parameters_.storage_of(operand.tensor) != nullptr) {
    const ShardedParameter* whole = parameters_.whole(operand.tensor);
    operand.kind = whole == nullptr ? OperandKind::part : OperandKind::parameter;
    if (whole == nullptr) return;
    operand.parameter = parameters_.index_of(*whole);
    operand.owner = parameters_.owner(operand.parameter);
    return;
  }
  if (const auto* tracked = states_.find(operand.tensor)) {
    operand.parameter = tracked->parameter;
    operand.kind = kind_of(tracked->kind);
  } else if (const auto* gradient = gradients_.find(data_of(operand.tensor))) {
    operand.kind = OperandKind::gradient;
    operand.parameter = *gradient - 1;
  }
  operand.owner = operand.parameter;
  const bool is_view =
      flows(operand) && !parameters_.all()[operand.parameter].has_layout_of(operand.tensor);
  if (is_view) operand.kind = OperandKind::other;
}

Operands ShardRewriter::operands_of(const OperatorFacts& facts,
                                    std::span<const c10::IValue> arguments) {
  Operands operands;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool is_written = std::ranges::find(facts.written, i) != facts.written.end();
    for_each_place(arguments[i], [&](const at::Tensor& tensor, std::size_t place) {
      Operand operand{tensor, place, is_written};
      classify(operand);
      operands.all.push_back(std::move(operand));
    });
  }
  operands.find_subjects();
  return operands;
}

// Autograd refuses a write to a leaf that requires gradients before any memory changes, so such a
// call runs with the program's own tensors.
bool ShardRewriter::is_rewritable(const Operands& operands) const {
  return std::ranges::none_of(operands.all, [](const Operand& each) {
    return each.is_written && at::GradMode::is_enabled() && each.tensor.requires_grad();
  });
}

void ShardRewriter::make_shards(const Operands& operands) {
  for (const Operand& each : operands.all) {
    const auto subject = operands.subject(each.place);
    const bool is_target = each.is_written && each.kind == OperandKind::parameter;
    if (!subject || is_target) continue;
    if (operands.keeps(each.place) && flows(each)) states_.flows_into(each.tensor, *subject);
  }
}

bool ShardRewriter::can_be_narrowed(const OperatorTraits& traits, const Operands& operands) const {
  if (!traits.is_elementwise || operands.writes(OperandKind::part)) return false;
  return std::ranges::all_of(operands.all, [&](const Operand& each) {
    if (each.tensor.is_sparse()) return false;
    const auto subject = operands.subject(each.place);
    if (!subject) return each.kind != OperandKind::shard;
    const ShardedParameter& parameter = parameters_.all()[*subject];
    const bool is_own = each.owner == parameters_.owner(*subject);
    if (each.kind == OperandKind::shard)
      return is_own && each.tensor.numel() == parameter.own.size();
    if (each.kind == OperandKind::parameter && is_own)
      return !each.is_written || each.parameter == *subject || traits.is_fused_update;
    if (each.is_written && !traits.is_fused_update) return false;
    if (at::GradMode::is_enabled() && each.tensor.requires_grad()) return false;
    return each.tensor.numel() == 1 || is_expandable_to(each.tensor, parameter.tensor.sizes());
  });
}

at::Tensor ShardRewriter::narrow(const at::Tensor& tensor, std::size_t parameter) {
  const ShardedParameter& of = parameters_.all()[parameter];
  if (tensor.dim() == 0) return tensor;
  if (tensor.numel() == 1 && of.tensor.numel() != 1) return elements_of(tensor, {0, 1});
  if (of.has_layout_of(tensor)) {
    const at::Tensor part = elements_of(tensor, of.own);
    // Copies shared memory, because another rank may be about to write there.
    return parameters_.storage_of(tensor) == nullptr ? part : part.clone();
  }
  const at::Tensor laid_out =
      at::empty_strided(of.tensor.sizes(), of.tensor.strides(), tensor.options());
  laid_out.copy_(tensor.expand(of.tensor.sizes()));
  return elements_of(laid_out, of.own);
}

void ShardRewriter::run_narrowed(const c10::OperatorHandle& handle, const Operands& operands,
                                 torch::jit::Stack& stack) {
  const bool reads_others = std::ranges::any_of(operands.all, [&](const Operand& each) {
    const auto subject = operands.subject(each.place);
    const bool is_own = subject && each.owner == parameters_.owner(*subject);
    return each.kind == OperandKind::part || (each.kind == OperandKind::parameter && !is_own);
  });
  if (reads_others) order_.wait_for_completed();
  ChangedOperands changed;
  auto operand = operands.all.begin();
  const std::size_t count = handle.schema().arguments().size();
  for (c10::IValue& argument : std::span(stack).last(count)) {
    change_tensors(argument, [&](const at::Tensor& tensor, std::size_t place) {
      const Operand& each = *operand++;
      const auto subject = operands.subject(place);
      if (!subject || each.kind == OperandKind::shard) return tensor;
      const bool is_own =
          each.kind == OperandKind::parameter && each.owner == parameters_.owner(*subject);
      if (each.is_written && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
      return changed.note(
          tensor, is_own ? parameters_.all()[each.parameter].slice : narrow(tensor, *subject));
    });
  }
  run_numbered(handle, operands, [&] { handle.callBoxed(stack); });
  const auto results = std::span(stack).last(handle.schema().returns().size());
  note_shards(handle, operands, changed, results);
  changed.restore(results);
}

// Records results on slices as shards, unless the operator returned one of its arguments.
void ShardRewriter::note_shards(const c10::OperatorHandle& handle, const Operands& operands,
                                const ChangedOperands& changed,
                                std::span<const c10::IValue> results) {
  for (const c10::IValue& result : results) {
    for_each_place(result, [&](const at::Tensor& tensor, std::size_t place) {
      const auto subject = operands.subject(place);
      if (!subject || changed.has_memory_of(tensor)) return;
      const ShardedParameter& of = parameters_.all()[*subject];
      if (tensor.numel() != of.own.size())
        refuse(concat(handle.operator_name().name, ", whose result has another size"), of.name);
      states_.note_shard(tensor, parameters_.owner(*subject));
    });
  }
}

// Runs a write to parameters as the next number of all ranks. Runs any other operator as it is.
void ShardRewriter::run_numbered(const c10::OperatorHandle& handle, const Operands& operands,
                                 const std::function<void()>& run) {
  const auto written = operands.first_written();
  if (!operands.writes_parameters()) return run();
  const std::uint64_t what = mixed(traits_of(handle).hash, written.value_or(~std::size_t{0}));
  arrive(what, [&] {
    const std::string name = written ? parameters_.all()[*written].name : "a part of a parameter";
    return concat(handle.operator_name().name, " on ", name);
  });
  {
    const Completing completing(order_);
    run();
  }
  if (sequences_.note(what)) order_.wait_for_completed();
}

void ShardRewriter::arrive(std::uint64_t what, const std::function<std::string()>& tell) {
  const auto other = order_.arrive(what);
  if (!other) return;
  const Completing completing(order_);
  throw Error(failed_precondition(
                  "shard.mode: expected all ranks of the node to write alike, found ", tell(),
                  " here and another write on rank ", *other, " of the node (write ",
                  order_.number(), "); let all ranks change parameters in the same order"),
              Error::Scope::all_ranks);
}

void ShardRewriter::run_on_copy(const c10::OperatorHandle& handle, const Operands& operands,
                                torch::jit::Stack& stack) {
  order_.wait_for_completed();
  c10::SmallVector<StorageCopy, 4> copies;
  for (const Operand& each : operands.all) {
    const ShardedStorage* of = parameters_.storage_of(each.tensor);
    const auto is_of = [of](const StorageCopy& copy) { return copy.of == of; };
    if (each.is_written && of != nullptr && std::ranges::none_of(copies, is_of))
      copies.push_back(copy_of(*of));
  }
  ChangedOperands changed;
  auto operand = operands.all.begin();
  for (c10::IValue& argument : std::span(stack).last(handle.schema().arguments().size())) {
    change_tensors(argument, [&](const at::Tensor& tensor, std::size_t) {
      const bool is_written = (operand++)->is_written;
      const ShardedStorage* of = parameters_.storage_of(tensor);
      for (const StorageCopy& copy : copies) {
        if (copy.of != of) continue;
        if (is_written && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
        return changed.note(tensor, on_storage(copy.storage, tensor));
      }
      return tensor;
    });
  }
  handle.callBoxed(stack);
  if (!changed.have_same_form()) refuse_form(handle);
  run_numbered(handle, operands, [&] {
    for (const StorageCopy& copy : copies) copy.keep_own();
  });
  changed.restore(std::span(stack).last(handle.schema().returns().size()));
}

void ShardRewriter::run_whole(const c10::OperatorHandle& handle, const Operands& operands,
                              torch::jit::Stack& stack) {
  const bool reads = operands.any(OperandKind::parameter) || operands.any(OperandKind::part);
  if (reads) order_.wait_for_completed();
  handle.callBoxed(stack);
  if (follows_values())
    note_results(traits_of(handle), operands,
                 std::span(stack).last(handle.schema().returns().size()));
}

void ShardRewriter::note_results(const OperatorTraits& traits, const Operands& operands,
                                 std::span<const c10::IValue> results) {
  if (!traits.is_elementwise) return;
  const auto note = [&](const at::Tensor& result, std::size_t place) {
    c10::SmallVector<at::Tensor, 8> sources;
    std::optional<std::size_t> parameter;
    for (const Operand& each : operands.all) {
      const bool counts =
          flows(each) || (traits.makes_alike && each.kind == OperandKind::parameter);
      if (each.place != place || !counts) continue;
      parameter = parameter.value_or(each.owner);
      sources.push_back(each.tensor);
    }
    if (!parameter || !owns_its_storage(result)) return;
    if (traits.makes_alike) states_.note_candidate(result, *parameter);
    states_.note_derived(result, *parameter, sources);
  };
  for (const c10::IValue& result : results) for_each_place(result, note);
  for (const Operand& each : operands.all) {
    if (each.is_written) note(each.tensor, each.place);
  }
}

// Gathers a part of a state in the memory of all ranks. The part is whole after the call, and stays
// so until the next write.
void ShardRewriter::gather_part(const at::Tensor& shard, std::size_t parameter,
                                const ElementRange& part) {
  const ShardedParameter& of = parameters_.all()[parameter];
  arrive(mixed(kGathering, parameter),
         [&] { return concat("a read of the optimizer's state of ", of.name); });
  {
    const Completing completing(order_);
    const ElementRange own = common_part(of.own, part);
    const auto bytes_of = [&](std::int64_t elements) {
      return static_cast<std::size_t>(elements) * shard.element_size();
    };
    if (!own.is_empty())
      std::memcpy(gathering_.bytes().data() + bytes_of(own.begin - part.begin),
                  static_cast<const std::byte*>(shard.const_data_ptr()) +
                      bytes_of(own.begin - of.own.begin),
                  bytes_of(own.size()));
  }
  order_.wait_for_completed();
}

at::Tensor ShardRewriter::gather(const at::Tensor& shard, std::size_t parameter, Keep keep) {
  const ShardedParameter& of = parameters_.all()[parameter];
  const bool is_plain = shard.dim() == 1 && shard.is_contiguous() && shard.numel() == of.own.size();
  if (!is_plain) refuse("an operator on a view of a shard", of.name);
  const auto element_bytes = static_cast<std::int64_t>(shard.element_size());
  const std::int64_t most = static_cast<std::int64_t>(kGatheringBytes) / element_bytes;
  at::Tensor whole;
  if (keep == Keep::yes)
    whole = at::empty_strided(of.tensor.sizes(), of.tensor.strides(), shard.options());
  for (std::int64_t begin = 0; begin < of.tensor.numel(); begin += most) {
    const ElementRange part{begin, std::min(begin + most, of.tensor.numel())};
    gather_part(shard, parameter, part);
    if (keep == Keep::no) continue;
    std::memcpy(static_cast<std::byte*>(whole.mutable_data_ptr()) + part.begin * element_bytes,
                gathering_.bytes().data(), static_cast<std::size_t>(part.size() * element_bytes));
  }
  return whole;
}

const ShardedParameter* ShardRewriter::sharded_by(const at::Tensor& tensor) {
  const auto* tracked = states_.find(tensor);
  const bool is_shard = tracked != nullptr && tracked->kind == TrackedStates::Kind::shard;
  return is_shard ? &parameters_.all()[tracked->parameter] : nullptr;
}

at::Tensor ShardRewriter::whole(const at::Tensor& tensor, Keep keep) {
  const ShardedParameter* of = sharded_by(tensor);
  return of == nullptr ? tensor : gather(tensor, parameters_.index_of(*of), keep);
}

void ShardRewriter::write(std::size_t parameter, const at::Tensor& own) {
  const ShardedParameter& of = parameters_.all()[parameter];
  arrive(mixed(kLoading, parameter), [&] { return concat("a load of ", of.name); });
  write_own(of, own);
  of.tensor.unsafeGetTensorImpl()->bump_version();
}

void ShardRewriter::take(std::size_t parameter, const at::Tensor& values) {
  const ShardedParameter& of = parameters_.all()[parameter];
  arrive(mixed(mixed(kLoading, parameter), bits_hash(values)),
         [&] { return concat("other values or other memory for ", of.name); });
  write_own(of, elements_of(values, of.own));
}

// REQUIRES: all ranks have arrived at the number of this write.
void ShardRewriter::write_own(const ShardedParameter& of, const at::Tensor& own) {
  {
    const Completing completing(order_);
    of.slice.copy_(own);
  }
  order_.wait_for_completed();
}

void ShardRewriter::gather_shards(const c10::OperatorHandle& handle, Operands& operands,
                                  torch::jit::Stack& stack) {
  auto operand = operands.all.begin();
  for (c10::IValue& argument : std::span(stack).last(handle.schema().arguments().size())) {
    change_tensors(argument, [&](const at::Tensor& tensor, std::size_t) {
      Operand& each = *operand++;
      if (each.kind != OperandKind::shard) return tensor;
      if (each.is_written)
        refuse(concat(handle.operator_name().name,
                      ", which writes to it in another way than "
                      "element by element"),
               parameters_.all()[each.parameter].name);
      each.tensor = gather(tensor, each.parameter);
      states_.note_copy(each.tensor, each.parameter);
      each.kind = OperandKind::other;
      return each.tensor;
    });
  }
}

void ShardRewriter::call(const c10::OperatorHandle& handle, const OperatorFacts& facts,
                         torch::jit::Stack& stack) {
  const OperatorTraits& traits = traits_of(handle);
  const auto arguments = [&] {
    return std::span<const c10::IValue>(stack).last(handle.schema().arguments().size());
  };
  Operands operands = operands_of(facts, arguments());
  for (const Operand& each : operands.all) {
    if (each.kind == OperandKind::copy && each.is_written)
      refuse(concat(handle.operator_name().name, " on a view of it"),
             parameters_.all()[each.parameter].name);
  }
  if (traits.changes_no_value || !is_rewritable(operands)) return handle.callBoxed(stack);
  if (traits.is_elementwise && follows_values()) {
    const std::uint64_t before = states_.shards_made();
    make_shards(operands);
    if (states_.shards_made() != before) operands = operands_of(facts, arguments());
  }
  const bool is_divided =
      operands.writes(OperandKind::parameter) || operands.any(OperandKind::shard);
  if (is_divided && can_be_narrowed(traits, operands)) return run_narrowed(handle, operands, stack);
  if (operands.any(OperandKind::shard)) gather_shards(handle, operands, stack);
  if (operands.writes_parameters()) return run_on_copy(handle, operands, stack);
  run_whole(handle, operands, stack);
}

void ShardRewriter::gradients_averaged() {
  has_averaged_ = true;
  sequences_.begin();
  gradients_.clear();
  for (std::size_t i = 0; i < parameters_.all().size(); ++i) {
    const at::Tensor& gradient = parameters_.all()[i].tensor.grad();
    const void* data = gradient.defined() ? data_of(gradient) : nullptr;
    if (data != nullptr && parameters_.storage_of(gradient) == nullptr)
      gradients_[data] = static_cast<std::uint32_t>(i + 1);
  }
}

}  // namespace cox::detail
