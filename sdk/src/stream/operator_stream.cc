#include "sdk/src/stream/operator_stream.h"

#include <ATen/ATen.h>
#include <ATen/Operators.h>
#include <ATen/core/enum_tag.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "sdk/src/stream/product_formats.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

thread_local StreamScope* innermost = nullptr;
thread_local std::uint64_t operators_of_thread = 0;

// Returns whether LibTorch has only a composition of other operators, no kernel.
bool is_composite(const c10::OperatorHandle& handle) {
  using c10::DispatchKey;
  return handle.hasKernelForDispatchKey(DispatchKey::CompositeImplicitAutograd) &&
         !handle.hasKernelForDispatchKey(DispatchKey::AutogradCPU) &&
         !handle.hasKernelForDispatchKey(DispatchKey::CPU);
}

// Caches the facts of operators met by this thread.
const OperatorFacts& known_facts(const c10::OperatorHandle& handle) {
  thread_local std::unordered_map<const void*, OperatorFacts> known;
  const void* key = &handle.operator_name();
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  return known.emplace(key, facts_of(handle)).first->second;
}

}  // namespace

class Stream {
 public:
  static bool wants_calls(const StreamScope& scope) {
    for (const OperatorListener* listener : scope.listeners_) {
      if (listener->wants_calls()) return true;
    }
    return false;
  }
  static std::optional<ProductFormat> product_format(const StreamScope& scope) {
    for (const OperatorListener* listener : scope.listeners_) {
      if (const auto format = listener->product_format()) return format;
    }
    return std::nullopt;
  }
  static bool has_formats(const StreamScope& scope) {
    for (const OperatorListener* listener : scope.listeners_) {
      if (listener->has_formats()) return true;
    }
    return false;
  }
  template <class Tell>
  static void tell(const Tell& tell) {
    if (innermost == nullptr) return;
    for (OperatorListener* listener : innermost->listeners_) tell(*listener);
  }
  // Shows the tensors of one operator, whose arguments may be boxed.
  template <class... Arguments>
  static void touch_all(const StreamScope& scope, const c10::OperatorHandle& handle,
                        const Arguments&... arguments) {
    ++operators_of_thread;
    for_each_operand(
        handle, [&](const at::Tensor& t) { touch(scope, handle, t); }, arguments...);
  }
  // Returns whether the scope's rewriter runs the operator with these arguments.
  template <class... Arguments>
  static bool is_rewritten(const StreamScope& scope, const c10::OperatorHandle& handle,
                           const OperatorFacts& facts, const Arguments&... arguments) {
    if (scope.rewriter_ == nullptr) return false;
    const StreamPause inside;
    for_each_operand(
        handle, [&](const at::Tensor& t) { scope.rewriter_->touch(t); }, arguments...);
    return scope.rewriter_->wants(handle, facts);
  }
  // Lists the listeners whose begin() was called. Calls their failed() unless end() was called.
  class Begun {
   public:
    explicit Begun(const StreamScope& scope) : scope_(scope) {}
    ~Begun() {
      while (count_ > 0) {
        OperatorListener* listener = scope_.listeners_[--count_];
        if (asked_ >> count_ & 1) listener->failed();
      }
    }
    Begun(const Begun&) = delete;
    Begun& operator=(const Begun&) = delete;

    void all(const OperatorCall& call) {
      for (OperatorListener* listener : scope_.listeners_) {
        if (listener->wants_calls()) {
          asked_ |= std::uint64_t{1} << count_;
          ++count_;
          listener->begin(call);
        } else {
          ++count_;
        }
      }
    }
    void end(std::span<const c10::IValue> results) {
      while (count_ > 0) {
        OperatorListener* listener = scope_.listeners_[--count_];
        if (asked_ >> count_ & 1) listener->end(results);
      }
    }

   private:
    const StreamScope& scope_;
    std::size_t count_ = 0;
    std::uint64_t asked_ = 0;
  };

  // Shows the call of one operator with boxed arguments and runs it.
  static void run(const StreamScope& scope, const c10::OperatorHandle& handle,
                  const OperatorFacts& facts, c10::DispatchKeySet next, torch::jit::Stack& stack) {
    run_by(scope, handle, facts, stack, [&] { handle.redispatchBoxed(next, &stack); });
  }
  // As run(), but the scope's rewriter runs the operator.
  static void run_rewritten(const StreamScope& scope, const c10::OperatorHandle& handle,
                            const OperatorFacts& facts, torch::jit::Stack& stack) {
    const StreamPause inside;
    touch_all(scope, handle, stack);
    run_by(scope, handle, facts, stack, [&] { scope.rewriter_->call(handle, facts, stack); });
  }
  static c10::DispatchKeySet excluded_keys() {
    return c10::impl::tls_local_dispatch_key_set().excluded_;
  }

 private:
  static void touch(const StreamScope& scope, const c10::OperatorHandle& handle,
                    const at::Tensor& tensor) {
    for (OperatorListener* listener : scope.listeners_) listener->touch(handle, tensor);
  }
  template <class Run>
  static void run_by(const StreamScope& scope, const c10::OperatorHandle& handle,
                     const OperatorFacts& facts, torch::jit::Stack& stack, const Run& run) {
    const std::size_t arguments = handle.schema().arguments().size();
    Begun begun(scope);
    begun.all(
        {handle, facts, {stack.data() + stack.size() - arguments, arguments}, {}, excluded_keys()});
    run();
    const std::size_t results = handle.schema().returns().size();
    begun.end({stack.data() + stack.size() - results, results});
  }
  // Calls `use` with each defined tensor among the arguments.
  template <class Use, class... Arguments>
  static void for_each_operand(const c10::OperatorHandle&, const Use& use,
                               const Arguments&... arguments) {
    (for_each_tensor_of(arguments, use), ...);
  }
  template <class Use>
  static void for_each_operand(const c10::OperatorHandle& handle, const Use& use,
                               const torch::jit::Stack& stack) {
    const std::size_t arguments = handle.schema().arguments().size();
    for (const c10::IValue& value : std::span(stack).last(arguments))
      for_each_tensor_in(value, use);
  }
  template <class T, class Use>
  static void for_each_tensor_of(const T& argument, const Use& use) {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      if (argument.defined()) use(argument);
    } else if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) {
      if (argument && argument->defined()) use(*argument);
    } else if constexpr (std::is_same_v<T, at::TensorList> ||
                         std::is_same_v<T, at::ITensorListRef>) {
      for (const at::Tensor& each : argument) {
        if (each.defined()) use(each);
      }
    }
  }
};

namespace {

c10::DispatchKeySet below_stream(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kStreamKey);
}

// Runs a product in a listener's format. A product that stays wide runs in float if narrow and wide
// tensors meet. Shows the casts, and the product with its cast operands. REQUIRES: the tensors were
// shown.
void call_product(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) {
  const auto format = is_under_autocast_call() ? std::nullopt : Stream::product_format(*innermost);
  if (format && is_to_be_narrowed(handle, *stack, format->type)) {
    if (format->caller != nullptr && format->caller->call(handle, *stack)) return;
    return call_narrowed(handle, *stack, format->type);
  }
  const OperatorFacts& facts = known_facts(handle);
  const auto common =
      format && facts.is_autocast ? autocast_type_of(handle, *stack, at::kFloat) : std::nullopt;
  if (common) return call_under_autocast(handle, below_stream(keys), *stack, *common);
  const StreamPause inside;
  Stream::run(*innermost, handle, facts, below_stream(keys), *stack);
}

// Runs an operator under autocast if the block that reads its tensors wants autocast. FP8 applies
// to products only, which are shown as products. Returns whether the operator ran.
bool call_autocast(const StreamScope& scope, const c10::OperatorHandle& handle,
                   c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (is_under_autocast_call() || !Stream::has_formats(scope)) return false;
  if (!autocast_type_of(handle, *stack, at::kBFloat16)) return false;
  {
    const StreamPause inside;  // a composite is hidden and may begin a block
    Stream::touch_all(scope, handle, *stack);
  }
  const auto format = Stream::product_format(scope);
  if (!format) return false;
  const bool is_for_caller = format->caller != nullptr && is_narrowed_by_autocast(handle);
  if (is_for_caller && c10::GradMode::is_enabled()) {
    let_bias_follow(handle, *stack);
    return false;
  }
  const auto type = autocast_type_of(handle, *stack, format->type);
  if (type) call_under_autocast(handle, below_stream(keys), *stack, *type);
  return type.has_value();
}

// Runs an operator for the scope's rewriter.
void call_rewritten(const c10::OperatorHandle& handle, c10::DispatchKeySet,
                    torch::jit::Stack* stack) {
  Stream::run_rewritten(*innermost, handle, known_facts(handle), *stack);
}

void show_boxed(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                torch::jit::Stack* stack) {
  const StreamScope* const scope = innermost;
  const OperatorFacts& facts = known_facts(handle);
  if (scope != nullptr && !facts.is_composite &&
      Stream::is_rewritten(*scope, handle, facts, *stack))
    return call_rewritten(handle, keys, stack);
  if (scope != nullptr && facts.is_autocast && call_autocast(*scope, handle, keys, stack)) return;
  if (scope == nullptr || facts.is_composite) {
    handle.redispatchBoxed(below_stream(keys), stack);
    return;
  }
  {
    const StreamPause inside;
    Stream::touch_all(*scope, handle, *stack);
    if (!facts.is_product) return Stream::run(*scope, handle, facts, below_stream(keys), *stack);
  }
  call_product(handle, keys, stack);
}

// Holds the arguments of one call for listeners, with lists of numbers unboxed.
template <std::size_t count>
class Shown {
 public:
  template <class T>
  void add(const T& argument) {
    if (const auto integers = integers_of(argument)) {
      integers_[lists_++] = {size_++, *integers};
    } else {
      arguments_[size_++] = c10::IValue(argument);
    }
  }
  std::span<const c10::IValue> arguments() const { return arguments_; }
  std::span<const IntegerList> integers() const { return {integers_.data(), lists_}; }

 private:
  template <class T>
  static std::optional<at::IntArrayRef> integers_of(const T& argument) {
    if constexpr (std::is_same_v<T, at::IntArrayRef>) {
      return argument;
    } else if constexpr (std::is_same_v<T, c10::SymIntArrayRef>) {
      return c10::asIntArrayRefSlowOpt(argument);
    } else if constexpr (std::is_same_v<T, at::OptionalIntArrayRef>) {
      return argument.has_value() ? std::optional(*argument) : std::nullopt;
    } else {
      return std::nullopt;
    }
  }

  std::array<c10::IValue, count> arguments_;
  std::array<IntegerList, count> integers_;
  std::size_t size_ = 0;
  std::size_t lists_ = 0;
};

std::array<c10::IValue, 1> results_of(const at::Tensor& result) {
  return {result};
}
std::array<c10::IValue, 1> results_of(const std::vector<at::Tensor>& result) {
  return {result};
}
template <class... Results>
std::array<c10::IValue, sizeof...(Results)> results_of(const std::tuple<Results...>& results) {
  return std::apply(
      [](const auto&... each) {
        return std::array<c10::IValue, sizeof...(Results)>{c10::IValue(each)...};
      },
      results);
}

// Shows a frequently called operator without boxing its arguments, unless a listener has a format
// for it.
template <class Operator, class Schema>
struct Hot;
template <class Operator, class Result, class... Arguments>
struct Hot<Operator, Result(Arguments...)> {
  static Result show(c10::DispatchKeySet keys, Arguments... arguments) {
    static const Known known;
    const auto& [handle, facts] = known;
    const StreamScope* const scope = innermost;
    if (scope != nullptr && !facts.is_composite &&
        Stream::is_rewritten(*scope, handle, facts, arguments...))
      return call_boxed<&call_rewritten>(handle, keys, std::forward<Arguments>(arguments)...);
    if (scope != nullptr && facts.is_autocast && keys.has_backend(c10::BackendComponent::CUDABit) &&
        !is_under_autocast_call() && Stream::has_formats(*scope))
      return call_boxed<&show_boxed>(handle, keys, std::forward<Arguments>(arguments)...);
    if (scope == nullptr || facts.is_composite)
      return handle.redispatch(below_stream(keys), std::forward<Arguments>(arguments)...);
    {
      const StreamPause inside;
      Stream::touch_all(*scope, handle, arguments...);
      if (!facts.is_product || !Stream::product_format(*scope)) {
        if (!Stream::wants_calls(*scope))
          return handle.redispatch(below_stream(keys), std::forward<Arguments>(arguments)...);
        return show_call(*scope, handle, facts, keys, std::forward<Arguments>(arguments)...);
      }
    }
    return call_boxed<&call_product>(handle, keys, std::forward<Arguments>(arguments)...);
  }

 private:
  using Handle = c10::TypedOperatorHandle<Result(Arguments...)>;
  struct Known {
    const Handle handle = c10::Dispatcher::singleton()
                              .findSchemaOrThrow(Operator::name, Operator::overload_name)
                              .template typed<Result(Arguments...)>();
    const OperatorFacts facts = facts_of(handle);
  };

  template <c10::BoxedKernel::BoxedKernelFunction_withDispatchKeys* function>
  static Result call_boxed(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                           Arguments... arguments) {
    static const c10::BoxedKernel kernel = c10::BoxedKernel::makeFromFunction<function>();
    return c10::impl::BoxedKernelWrapper<Result(Arguments...)>::call(
        kernel, handle, keys, std::forward<Arguments>(arguments)...);
  }
  static Result show_call(const StreamScope& scope, const Handle& handle,
                          const OperatorFacts& facts, c10::DispatchKeySet keys,
                          Arguments... arguments) {
    Shown<sizeof...(Arguments)> call;
    (call.add(arguments), ...);
    Stream::Begun begun(scope);
    begun.all({handle, facts, call.arguments(), call.integers(), Stream::excluded_keys()});
    Result result = handle.redispatch(below_stream(keys), std::forward<Arguments>(arguments)...);
    begun.end(results_of(result));
    return result;
  }
};

template <class Operator>
void add_hot(torch::Library& library) {
  std::string name = std::string(Operator::name).substr(std::string_view("aten::").size());
  if (*Operator::overload_name != '\0') name += "." + std::string(Operator::overload_name);
  using Kernel = Hot<Operator, typename Operator::schema>;
  library.impl(name.c_str(), torch::CppFunction::makeFromUnboxedFunction(TORCH_FN(Kernel::show)));
}

template <class... Operators>
struct OperatorList {
  static void add_to(torch::Library& library) { (add_hot<Operators>(library), ...); }
  static bool has(const c10::OperatorName& other) {
    return ((other.name == Operators::name && other.overload_name == Operators::overload_name) ||
            ...);
  }
};

namespace op = at::_ops;
using HotOperators = OperatorList<
    op::add_Tensor, op::add__Tensor, op::sub_Tensor, op::mul_Tensor, op::mul__Tensor,
    op::mul_Scalar, op::div_Tensor, op::div_Scalar, op::add_Scalar, op::neg, op::copy_, op::addmm,
    op::mm, op::bmm, op::baddbmm, op::convolution, op::native_layer_norm, op::native_batch_norm,
    op::embedding, op::gelu, op::relu, op::relu_, op::sigmoid, op::tanh, op::silu, op::_softmax,
    op::_log_softmax, op::nll_loss_forward, op::native_dropout, op::max_pool2d_with_indices,
    op::mean_dim, op::sum, op::sum_dim_IntList, op::pow_Tensor_Scalar, op::view, op::_unsafe_view,
    op::transpose_int, op::permute, op::t, op::expand, op::slice_Tensor, op::select_int,
    op::unsqueeze, op::split_Tensor, op::cat, op::clone, op::_to_copy, op::detach, op::zero_,
    op::addcmul_, op::addcdiv_, op::mul__Scalar, op::add__Scalar, op::div__Tensor, op::sqrt,
    op::exp, op::log, op::abs, op::mean, op::detach_, op::ones_like, op::mse_loss, op::leaky_relu,
    op::softplus, op::stack, op::_scaled_dot_product_flash_attention_for_cpu>;
// Operators that LibTorch composes of others; only passed on.
using HotComposites =
    OperatorList<op::linear, op::matmul, op::dropout, op::layer_norm, op::batch_norm, op::conv2d,
                 op::reshape, op::contiguous, op::softmax_int, op::log_softmax_int, op::to_dtype,
                 op::flatten_using_ints, op::scaled_dot_product_attention, op::cross_entropy_loss>;

// Namespaces of LibTorch's operators and of ours.
constexpr std::array<std::string_view, 17> kKnownNamespaces = {
    "_quantized",       "aten",   "c10d",      "coxswain",  "fb",     "inductor",
    "mkldnn",           "onednn", "mkl",       "prepacked", "prim",   "prims",
    "mkldnn_prepacked", "sparse", "quantized", "rngprims",  "xnnpack"};

bool is_programs(const c10::OperatorHandle& handle) {
  const auto space = handle.schema().getNamespace();
  return !space || std::ranges::find(kKnownNamespaces, *space) == kKnownNamespaces.end();
}

}  // namespace

OperatorFacts facts_of(const c10::OperatorHandle& handle) {
  OperatorFacts facts{is_composite(handle),
                      is_product(handle),
                      is_known_to_autocast(handle),
                      handle.hasTag(at::Tag::nondeterministic_seeded),
                      is_programs(handle),
                      {},
                      {}};
  const auto& arguments = handle.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto index = static_cast<std::uint16_t>(i);
    if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite())
      facts.written.push_back(index);
    if (arguments[i].name() == "running_mean" || arguments[i].name() == "running_var")
      facts.statistics.push_back(index);
  }
  return facts;
}

StreamScope::StreamScope(std::vector<OperatorListener*> listeners, OperatorRewriter* rewriter)
    : listeners_(std::move(listeners)),
      rewriter_(rewriter == nullptr && innermost != nullptr ? innermost->rewriter_ : rewriter),
      outer_(innermost),
      was_excluded_(c10::impl::tls_is_dispatch_key_excluded(kStreamKey)) {
  TORCH_INTERNAL_ASSERT(listeners_.size() <= 64);
  c10::impl::tls_set_dispatch_key_excluded(kStreamKey, false);
  innermost = this;
}

StreamScope::~StreamScope() {
  innermost = outer_;
  c10::impl::tls_set_dispatch_key_excluded(kStreamKey, was_excluded_);
}

void tell_backward_begins(const BackwardPass& pass) {
  Stream::tell([&pass](OperatorListener& listener) { listener.backward_begins(pass); });
}
void tell_backward_ended(BackwardKind kind) {
  Stream::tell([kind](OperatorListener& listener) { listener.backward_ended(kind); });
}

bool is_shown() {
  return innermost != nullptr && !c10::impl::tls_is_dispatch_key_excluded(kStreamKey);
}

void show_call(const c10::OperatorHandle& handle,
               const std::function<std::vector<c10::IValue>()>& arguments,
               const std::function<std::vector<c10::IValue>()>& run) {
  if (!is_shown() || !Stream::wants_calls(*innermost)) {
    run();
    return;
  }
  const StreamPause inside;
  const std::vector<c10::IValue> given = arguments();
  Stream::Begun begun(*innermost);
  begun.all({handle, known_facts(handle), given, {}, Stream::excluded_keys()});
  begun.end(run());
}

Status check_stream_key() {
  for (const c10::OperatorName& name :
       c10::Dispatcher::singleton().getRegistrationsForDispatchKey(kStreamKey)) {
    if (HotOperators::has(name) || HotComposites::has(name)) continue;
    return failed_precondition(
        "expected no kernels but ours on the dispatch key ", c10::toString(kStreamKey),
        ", found one of ", c10::toString(name),
        ", whose operator Coxswain would not record; register the kernel for another key");
  }
  return ok_status();
}

std::uint64_t operators_shown() {
  return operators_of_thread;
}

}  // namespace cox::detail

TORCH_LIBRARY_IMPL(_, COX_STREAM_KEY, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&cox::detail::show_boxed>());
}

TORCH_LIBRARY_IMPL(aten, COX_STREAM_KEY, library) {
  cox::detail::HotOperators::add_to(library);
  cox::detail::HotComposites::add_to(library);
}
