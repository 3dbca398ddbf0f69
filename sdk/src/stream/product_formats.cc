#include "sdk/src/stream/product_formats.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

// An operator whose first arguments are operands. `matrices` multiplies the last two.
struct Product {
  enum class Kind : std::uint8_t { matrices, other };
  std::string_view name;
  std::size_t operands;
  Kind kind;
};

// Operators that autocast runs in its narrow type and programs call with parameters.
constexpr std::array<std::string_view, 14> kNarrowedByAutocast = {
    "aten::linear",
    "aten::matmul",
    "aten::mm",
    "aten::bmm",
    "aten::addmm",
    "aten::baddbmm",
    "aten::addbmm",
    "aten::conv1d",
    "aten::conv2d",
    "aten::conv3d",
    "aten::convolution",
    "aten::conv_transpose1d",
    "aten::conv_transpose2d",
    "aten::conv_transpose3d",
};

// An attention mask is no operand: the kernels read it in float, and fp16 has no -1e9.
constexpr std::array kProducts = {
    Product{"aten::mm", 2, Product::Kind::matrices},
    Product{"aten::addmm", 3, Product::Kind::matrices},
    Product{"aten::bmm", 2, Product::Kind::matrices},
    Product{"aten::baddbmm", 3, Product::Kind::matrices},
    Product{"aten::addbmm", 3, Product::Kind::matrices},
    Product{"aten::convolution", 3, Product::Kind::other},
    Product{"aten::_scaled_dot_product_flash_attention_for_cpu", 3, Product::Kind::other},
    Product{"aten::_scaled_dot_product_efficient_attention", 4, Product::Kind::other},
};

const Product* product_of(const c10::OperatorHandle& handle) {
  const c10::OperatorName& name = handle.operator_name();
  const auto found = std::ranges::find(kProducts, name.name, &Product::name);
  return found == kProducts.end() || !name.overload_name.empty() ? nullptr : &*found;
}

std::span<const c10::IValue> operands_of(const c10::OperatorHandle& handle,
                                         const torch::jit::Stack& stack) {
  const std::size_t arguments = handle.schema().arguments().size();
  return {stack.data() + stack.size() - arguments, product_of(handle)->operands};
}

// The nesting counter cannot be read, only moved.
bool is_in_autocast_scope() {
  at::autocast::increment_nesting();
  return at::autocast::decrement_nesting() > 0;
}

bool is_wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kFloat;
}

bool is_narrow(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 || tensor.scalar_type() == at::kHalf;
}

// Autocast's kernel throws for this loss, to make people change the program. An unmodified program
// gets the loss in float, like other losses.
constexpr std::string_view kRefusedByAutocast = "aten::binary_cross_entropy";

void widen(torch::jit::Stack& stack, std::size_t arguments) {
  for (c10::IValue& argument : std::span(stack).last(arguments)) {
    if (!argument.isTensor() || !argument.toTensor().defined()) continue;
    const at::Tensor tensor = argument.toTensor();
    if (is_narrow(tensor)) argument = tensor.to(at::kFloat);
  }
}

thread_local int autocast_calls = 0;

// Turns CUDA's autocast to a type on for one call.
class AutocastCall {
 public:
  explicit AutocastCall(at::ScalarType type)
      : type_before_(at::autocast::get_autocast_dtype(at::kCUDA)),
        had_cache_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_dtype(at::kCUDA, type);
    at::autocast::set_autocast_cache_enabled(false);
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    ++autocast_calls;
  }
  ~AutocastCall() {
    --autocast_calls;
    at::autocast::set_autocast_enabled(at::kCUDA, false);
    at::autocast::set_autocast_cache_enabled(had_cache_);
    at::autocast::set_autocast_dtype(at::kCUDA, type_before_);
  }
  AutocastCall(const AutocastCall&) = delete;
  AutocastCall& operator=(const AutocastCall&) = delete;

 private:
  const at::ScalarType type_before_;
  const bool had_cache_;
};

bool is_fit(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.layout() == at::kStrided && (is_wide(tensor) || tensor.scalar_type() == type) &&
         (tensor.is_cpu() || tensor.is_cuda());
}

bool has_vector(const at::Tensor& left, const at::Tensor& right) {
  return left.dim() < 2 || right.dim() < 2 || left.size(-2) == 1 || right.size(-1) == 1;
}

}  // namespace

bool is_product(const c10::OperatorHandle& handle) {
  return product_of(handle) != nullptr;
}

bool is_known_to_autocast(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::AutocastCUDA);
}

bool is_narrowed_by_autocast(const c10::OperatorHandle& handle) {
  return std::ranges::find(kNarrowedByAutocast, handle.operator_name().name) !=
         kNarrowedByAutocast.end();
}

void let_bias_follow(const c10::OperatorHandle& handle, torch::jit::Stack& stack) {
  const std::vector<c10::Argument>& arguments = handle.schema().arguments();
  const std::span values = std::span(stack).last(arguments.size());
  if (!handle.operator_name().name.starts_with("aten::conv") || !values[0].isTensor()) return;
  const at::Tensor input = values[0].toTensor();
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    if (arguments[i].name() != "bias" || !values[i].isTensor()) continue;
    const at::Tensor bias = values[i].toTensor();
    if (bias.defined() && is_wide(bias) && is_narrow(input))
      values[i] = bias.to(input.scalar_type());
  }
}

std::optional<at::ScalarType> autocast_type_of(const c10::OperatorHandle& handle,
                                               const torch::jit::Stack& stack,
                                               at::ScalarType type) {
  const std::size_t arguments = handle.schema().arguments().size();
  bool is_on_cuda = false, some_narrow = false, some_wide = false, all_fit = true;
  for (std::size_t i = stack.size() - arguments; i < stack.size(); ++i) {
    for_each_tensor_in(stack[i], [&](const at::Tensor& tensor) {
      is_on_cuda = is_on_cuda || tensor.is_cuda();
      some_narrow = some_narrow || is_narrow(tensor);
      some_wide = some_wide || is_wide(tensor);
      all_fit = all_fit && tensor.layout() == at::kStrided;
    });
  }
  const bool is_own_business = !is_on_cuda || !all_fit || is_in_autocast_scope() ||
                               at::autocast::is_autocast_enabled(at::kCUDA);
  if (is_own_business) return std::nullopt;
  const at::ScalarType wanted = c10::GradMode::is_enabled() ? type : at::kFloat;
  const bool is_mixed = some_narrow && some_wide;
  if (wanted == at::kFloat && !is_mixed) return std::nullopt;
  return wanted;
}

void call_under_autocast(const c10::OperatorHandle& handle, c10::DispatchKeySet keys,
                         torch::jit::Stack& stack, at::ScalarType type) {
  if (handle.operator_name().name == kRefusedByAutocast) {
    widen(stack, handle.schema().arguments().size());
    return handle.redispatchBoxed(keys, &stack);
  }
  const bool casts_parameters = type != at::kFloat && is_narrowed_by_autocast(handle);
  const AutocastCall inside(type);
  for (std::size_t i = stack.size() - handle.schema().arguments().size();
       casts_parameters && i < stack.size(); ++i) {
    if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
    const at::Tensor operand = stack[i].toTensor();
    if (is_wide(operand) && is_parameter_or_view(operand)) stack[i] = operand.to(type);
  }
  handle.redispatchBoxed(keys.add(c10::DispatchKey::AutocastCUDA), &stack);
}

bool is_under_autocast_call() {
  return autocast_calls > 0;
}

bool is_to_be_narrowed(const c10::OperatorHandle& handle, const torch::jit::Stack& stack,
                       at::ScalarType type) {
  if (type == at::kFloat || !c10::GradMode::is_enabled() || is_in_autocast_scope()) return false;
  const auto operands = operands_of(handle, stack);
  bool some_wide = false;
  for (const c10::IValue& operand : operands) {
    if (!operand.isTensor() || !operand.toTensor().defined()) continue;
    const at::Tensor& tensor = operand.toTensor();
    if (!is_fit(tensor, type) || at::autocast::is_autocast_enabled(tensor.device().type()))
      return false;
    some_wide = some_wide || is_wide(tensor);
  }
  if (!some_wide || product_of(handle)->kind == Product::Kind::other) return some_wide;
  return !has_vector(operands[operands.size() - 2].toTensor(), operands.back().toTensor());
}

void call_narrowed(const c10::OperatorHandle& handle, torch::jit::Stack& stack,
                   at::ScalarType type) {
  const std::size_t first = stack.size() - handle.schema().arguments().size();
  const std::size_t operands = product_of(handle)->operands;
  const auto cast = [&](bool parameters) {
    for (std::size_t i = first; i < first + operands; ++i) {
      if (!stack[i].isTensor() || !stack[i].toTensor().defined()) continue;
      const at::Tensor operand = stack[i].toTensor();
      if (is_parameter_or_view(operand) == parameters) stack[i] = operand.to(type);
    }
  };
  // Parameters come first, so that a replay finds the same first parameter of a block.
  cast(true);
  cast(false);
  const bool is_on_cuda = stack[first].isTensor() && stack[first].toTensor().is_cuda();
  handle.callBoxed(&stack);
  if (is_on_cuda) return;
  for (std::size_t i = stack.size() - handle.schema().returns().size(); i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().defined() &&
        stack[i].toTensor().scalar_type() == type)
      stack[i] = stack[i].toTensor().to(at::kFloat);
  }
}

}  // namespace cox::detail
