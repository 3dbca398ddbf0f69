#include "sdk/src/precision/fp8_operator.h"

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <string_view>
#include <tuple>

#include "coxswain/error.h"
#include "sdk/src/precision/fp8_tensors.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

using at::Tensor;
using Ints = c10::List<std::int64_t>;

constexpr const char* kOperator = "coxswain::fp8_product";

// Fp8Site is the place of a product: the source of its scales, and the counter of its losses.
struct Fp8Site final : torch::CustomClassHolder {
  Fp8Site(std::shared_ptr<Fp8Block> its_block, std::size_t its_product)
      : block(std::move(its_block)), product(its_product) {}
  const std::shared_ptr<Fp8Block> block;
  const std::size_t product;
};
using Site = c10::intrusive_ptr<Fp8Site>;
using Scale = std::optional<Tensor>;
using Results = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;
using Signature = Results(const Tensor&, const Tensor&, const Scale&, const Scale&, const Ints&,
                          const Site&);

// The arguments of at::convolution after its operands as one list; empty for matrices.
struct Convolution {
  std::vector<std::int64_t> stride, padding, dilation, output_padding;
  bool is_transposed = false;
  std::int64_t groups = 1;

  explicit Convolution(const Ints& list) {
    const std::vector<std::int64_t> all = list.vec();
    const auto dimensions = static_cast<std::ptrdiff_t>((all.size() - 2) / 4);
    auto from = all.begin();
    for (auto* part : {&stride, &padding, &dilation, &output_padding}) {
      part->assign(from, from + dimensions);
      from += dimensions;
    }
    is_transposed = from[0] != 0;
    groups = from[1];
  }
  // `arguments`: those of at::convolution.
  static Ints list_of(std::span<const at::IValue> arguments) {
    Ints list;
    for (const std::size_t i : {3u, 4u, 5u, 7u}) list.append(arguments[i].toIntList());
    list.push_back(arguments[6].toBool());
    list.push_back(arguments[8].toInt());
    return list;
  }
};

// On hardware a backward product needs its codes in another order than the forward one.
Fp8Order order_for(Fp8Means means) {
  return means == Fp8Means::hardware ? Fp8Order::both : Fp8Order::rows;
}

// Without a given scale, scales by the tensor's own magnitude.
Fp8Quantized quantized(const Tensor& values, FloatFormat format, const Scale& given,
                       const Ints& convolution, const Fp8Block& block) {
  const Fp8Order order = order_for(block.means());
  if (given) return quantize_tensor(values, format, *given, order);
  const Fp8Recipe& recipe = block.recipe();
  const auto by = convolution.empty() ? recipe.own_granularity() : Fp8Granularity::tensor;
  return quantize_tensor(values, format, by, recipe.margin, order);
}

Tensor as_tensor(const Fp8Seen& seen, at::Device device) {
  if (seen.pending.defined()) return seen.pending;
  return at::tensor(
      {static_cast<double>(seen.counts.saturated), static_cast<double>(seen.counts.underflow),
       static_cast<double>(seen.counts.amax)},
      at::TensorOptions(device).dtype(at::kDouble));
}

Fp8Seen as_seen(const Tensor& told, std::int64_t sampled) {
  Fp8Seen seen;
  seen.counts.sampled = static_cast<std::uint64_t>(sampled);
  if (told.is_cpu()) return {completed(seen, told.const_data_ptr<double>()), {}};
  seen.pending = told;
  return seen;
}

// Returns the type of the surrounding products' results, which are narrow on a device.
at::ScalarType result_type(const Tensor& x) {
  return x.is_cuda() ? at::kBFloat16 : at::kFloat;
}

Tensor multiply(const Fp8Operand& x, const Fp8Operand& weight, const Ints& convolution,
                at::ScalarType type, Fp8Means means) {
  if (convolution.empty()) return fp8_product(x, weight.transposed(), type, means, Fp8Sums::fast);
  const Convolution it(convolution);
  return at::convolution(x.dequantized(), weight.dequantized(), {}, it.stride, it.padding,
                         it.dilation, it.is_transposed, it.output_padding, it.groups)
      .to(type);
}

Tensor for_backward(const Fp8Operand& operand) {
  return operand.turned.defined() ? operand.turned : operand.codes;
}

// Runs below autograd. Copies a scale, because a result must not be an argument.
Results compute(const Tensor& x, const Tensor& weight, const Scale& x_scale,
                const Scale& /*gradient_scale*/, const Ints& convolution, const Site& site) {
  const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
  const Fp8Block& block = *site->block;
  const Fp8Recipe& recipe = block.recipe();
  const Scale own_copy = x_scale ? Scale(x_scale->clone()) : Scale();
  const Fp8Quantized input = quantized(x, FloatFormat::e4m3, own_copy, convolution, block);
  const Fp8Granularity by = convolution.empty() ? recipe.granularity : Fp8Granularity::tensor;
  const Fp8Operand codes =
      quantize_tensor(weight, FloatFormat::e4m3, by, recipe.margin, order_for(block.means()))
          .operand;
  return {multiply(input.operand, codes, convolution, result_type(x), block.means()),
          for_backward(input.operand),
          input.operand.scale,
          for_backward(codes),
          codes.scale,
          as_tensor(input.seen, x.device())};
}

const c10::TypedOperatorHandle<Signature>& fp8_operator() {
  static const auto found =
      c10::Dispatcher::singleton().findSchemaOrThrow(kOperator, "").typed<Signature>();
  return found;
}

constexpr const char* kSite = "site";
constexpr const char* kConvolution = "convolution";
constexpr const char* kTypes = "types";  // x's and the weight's

class Fp8ProductFunction final : public torch::autograd::Function<Fp8ProductFunction> {
 public:
  using Context = torch::autograd::AutogradContext;

  static torch::autograd::variable_list forward(Context* ctx, const Tensor& x, const Tensor& weight,
                                                const Scale& x_scale, const Scale& gradient_scale,
                                                const Ints& convolution, const Site& site) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [result, x_codes, its_scale, codes, scale, seen] =
        fp8_operator().call(x, weight, x_scale, gradient_scale, convolution, site);
    ctx->save_for_backward({x_codes, its_scale, codes, scale, gradient_scale.value_or(Tensor())});
    ctx->saved_data[kSite] = site;
    ctx->saved_data[kConvolution] = convolution;
    ctx->saved_data[kTypes] = std::vector<std::int64_t>{number_of(x), number_of(weight)};
    ctx->mark_non_differentiable({x_codes, its_scale, codes, scale, seen});
    return {result, x_codes, its_scale, codes, scale, seen};
  }

  static torch::autograd::variable_list backward(Context* ctx,
                                                 const torch::autograd::variable_list& gradients) {
    if (at::GradMode::is_enabled()) {
      throw Error(
          failed_precondition("FP8: expected a block in fp32, bf16 or fp16 for gradients of "
                              "gradients (create_graph), found a product that ran in FP8; forbid "
                              "fp8 for this block or run the pass outside of FP8"));
    }
    torch::autograd::variable_list of(6);
    if (!gradients[0].defined()) return of;
    const c10::impl::ExcludeDispatchKeyGuard no_casts(c10::autocast_dispatch_keyset);
    const auto saved = ctx->get_saved_variables();
    const Site site = ctx->saved_data[kSite].toCustomClass<Fp8Site>();
    const Ints convolution = ctx->saved_data[kConvolution].toIntList();
    const Scale given = saved[4].defined() ? Scale(saved[4]) : Scale();
    const Fp8Quantized gradient =
        quantized(gradients[0], FloatFormat::e5m2, given, convolution, *site->block);
    site->block->see(Fp8Side::gradient, site->product, gradient.seen);
    const std::array<bool, 2> needs{ctx->needs_input_grad(0), ctx->needs_input_grad(1)};
    const std::vector<std::int64_t> types = ctx->saved_data[kTypes].toIntVector();
    const Parts parts{gradient.operand,
                      {saved[0], saved[1]},
                      {saved[2], saved[3]},
                      static_cast<at::ScalarType>(types[0]),
                      static_cast<at::ScalarType>(types[1])};
    convolution.empty() ? of_matrices(parts, needs, site->block->means(), of)
                        : of_convolution(parts, needs, Convolution(convolution), of);
    return of;
  }

 private:
  struct Parts {
    Fp8Operand gradient, x, weight;
    at::ScalarType x_type, weight_type;
  };
  static std::int64_t number_of(const Tensor& tensor) {
    return static_cast<std::int64_t>(tensor.scalar_type());
  }
  static void of_matrices(const Parts& parts, std::array<bool, 2> needs, Fp8Means means,
                          torch::autograd::variable_list& of) {
    if (needs[0]) of[0] = fp8_product(parts.gradient, parts.weight, parts.x_type, means);
    if (needs[1])
      of[1] = fp8_product(parts.gradient.transposed(), parts.x, parts.weight_type, means);
  }
  static void of_convolution(const Parts& parts, std::array<bool, 2> needs, const Convolution& it,
                             torch::autograd::variable_list& of) {
    std::tie(of[0], of[1], std::ignore) = at::convolution_backward(
        parts.gradient.dequantized(), parts.x.dequantized(), parts.weight.dequantized(), {},
        it.stride, it.padding, it.dilation, it.is_transposed, it.output_padding, it.groups,
        {needs[0], needs[1], false});
    if (needs[0]) of[0] = of[0].to(parts.x_type);
    if (needs[1]) of[1] = of[1].to(parts.weight_type);
  }
};

Results with_gradients(const Tensor& x, const Tensor& weight, const Scale& x_scale,
                       const Scale& gradient_scale, const Ints& convolution, const Site& site) {
  const auto results =
      Fp8ProductFunction::apply(x, weight, x_scale, gradient_scale, convolution, site);
  return {results[0], results[1], results[2], results[3], results[4], results[5]};
}

bool is_fit(const Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return tensor.layout() == at::kStrided && tensor.dim() > 0 && tensor.numel() > 0 &&
         (type == at::kFloat || type == at::kBFloat16 || type == at::kHalf);
}

// On a device x may be the narrow result of another product.
bool have_types(const Tensor& x, const Tensor& weight) {
  return weight.scalar_type() == at::kFloat && (x.scalar_type() == at::kFloat || x.is_cuda());
}

// Fp8Weight selects the operand that is the weight; `none` if the product does not run in FP8.
enum class Fp8Weight : std::uint8_t { none, left, right };

// x has rows [.., M, K], the weight [.., N, K].
struct Fp8Operands {
  Tensor x;
  Tensor weight;
};

// Returns the side of the weight, a parameter or a view of one, in a product a b. Returns none for
// two weights or no weight.
Fp8Weight weight_side(const Tensor& a, const Tensor& b) {
  if (!is_fit(a) || !is_fit(b) || a.device() != b.device()) return Fp8Weight::none;
  const bool left = is_parameter_or_view(a);
  if (left == is_parameter_or_view(b)) return Fp8Weight::none;
  const Tensor& weight = left ? a : b;
  const Tensor& x = left ? b : a;
  const bool is_matrix = weight.dim() == 2 && (!left || x.dim() <= 2);
  const bool is_batch = weight.dim() == 3 && x.dim() == 3 && weight.size(0) == x.size(0);
  if (!is_matrix && !is_batch) return Fp8Weight::none;
  const std::int64_t inner = left ? x.size(x.dim() == 1 ? 0 : -2) : x.size(-1);
  if (inner != weight.size(left ? -1 : -2)) return Fp8Weight::none;  // torch reports the error
  return left ? Fp8Weight::left : Fp8Weight::right;
}

// Calls view operators, on the weight first. REQUIRES: `side` is not none.
Fp8Operands operands_of(const Tensor& a, const Tensor& b, Fp8Weight side) {
  if (side == Fp8Weight::left) {
    return {b.dim() == 1 ? b.unsqueeze(0) : b.transpose(-2, -1), a};
  }
  const Tensor weight = b.transpose(-2, -1);
  return {b.dim() == 3 || a.dim() == 2 ? a : a.reshape({-1, a.size(-1)}), weight};
}

// Gives the product rows [.., M, N] the shape of torch's a b.
Tensor result_of(const Tensor& rows, const Tensor& a, const Tensor& b, Fp8Weight side) {
  if (side == Fp8Weight::left) return b.dim() == 1 ? rows.squeeze(0) : rows.transpose(-2, -1);
  if (b.dim() == 3 || a.dim() == 2) return rows;
  c10::DimVector sizes(a.sizes().begin(), a.sizes().end());
  sizes.back() = b.size(-1);
  return rows.reshape(sizes);
}

// Returns beta * added + alpha * product.
Tensor with_added(const Tensor& product, std::span<const at::IValue> arguments) {
  const at::Scalar beta = arguments[3].toScalar();
  const at::Scalar alpha = arguments[4].toScalar();
  const Tensor scaled = alpha.equal(1) ? product : product * alpha;
  if (beta.equal(0)) return scaled;  // then its values do not matter
  return at::add(scaled, arguments[0].toTensor().to(product.scalar_type()), beta);
}

}  // namespace

std::size_t Fp8Products::number_of(const Tensor& weight) {
  return numbers_.try_emplace(storage_impl(weight), numbers_.size()).first->second;
}

Tensor Fp8Products::product(const Tensor& x, const Tensor& weight, const Ints& convolution) {
  const std::size_t number = number_of(weight);
  const Scale x_scale = block_->earlier_scale(Fp8Side::activation, number, x.device());
  const Scale gradient_scale = block_->earlier_scale(Fp8Side::gradient, number, x.device());
  const auto results = fp8_operator().call(x, weight, x_scale, gradient_scale, convolution,
                                           c10::make_intrusive<Fp8Site>(block_, number));
  block_->see(Fp8Side::activation, number, as_seen(std::get<5>(results), x.numel()));
  return std::get<0>(results);
}

bool Fp8Products::call_matrices(std::span<at::IValue> arguments, at::IValue& result) {
  const bool adds = arguments.size() == 5;
  const Tensor a = arguments[adds ? 1 : 0].toTensor();
  const Tensor b = arguments[adds ? 2 : 1].toTensor();
  const Fp8Weight side = weight_side(a, b);
  const bool is_left = side == Fp8Weight::left;
  if (side == Fp8Weight::none || !have_types(is_left ? b : a, is_left ? a : b)) return false;
  const std::int64_t batch = a.dim() == 3 ? a.size(0) : 1;
  if (!block_->takes({a.size(-2) * batch, b.size(-1), a.size(-1)})) return false;
  const auto [x, weight] = operands_of(a, b, side);
  const Tensor rows = product(x, weight, Ints());
  const Tensor value = result_of(rows, a, b, side);
  result = adds ? with_added(value, arguments) : value;
  return true;
}

bool Fp8Products::call_convolution(std::span<at::IValue> arguments, at::IValue& result) {
  const Tensor x = arguments[0].toTensor();
  const Tensor weight = arguments[1].toTensor();
  const bool has_weight = is_parameter_or_view(weight) && !is_parameter_or_view(x);
  if (!has_weight || !is_fit(x) || !have_types(x, weight) || block_->means() == Fp8Means::hardware)
    return false;
  const Tensor value = product(x, weight, Convolution::list_of(arguments));
  if (!arguments[2].isTensor() || !arguments[2].toTensor().defined()) {
    result = value;
    return true;
  }
  std::vector<std::int64_t> channels(static_cast<std::size_t>(value.dim()), 1);
  channels[value.dim() == weight.dim() ? 1 : 0] = -1;
  result = at::add(value, arguments[2].toTensor().to(value.scalar_type()).view(channels));
  return true;
}

bool Fp8Products::call(const c10::OperatorHandle& handle, torch::jit::Stack& stack) {
  const std::string_view name = handle.operator_name().name;
  const std::size_t count = handle.schema().arguments().size();
  const std::span arguments = std::span(stack).last(count);
  at::IValue result;
  bool is_done = false;
  if (name == "aten::convolution") {
    is_done = call_convolution(arguments, result);
  } else if (name == "aten::mm" || name == "aten::bmm" || name == "aten::addmm" ||
             name == "aten::baddbmm") {
    is_done = call_matrices(arguments, result);
  }
  if (!is_done) return false;
  torch::jit::drop(stack, count);
  stack.push_back(std::move(result));
  return true;
}

TORCH_LIBRARY(coxswain, library) {
  library.class_<Fp8Site>("Fp8Site");
  library.def(
      "fp8_product(Tensor x, Tensor weight, Tensor? x_scale, Tensor? gradient_scale, "
      "int[] convolution, __torch__.torch.classes.coxswain.Fp8Site site) -> "
      "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(coxswain, CompositeExplicitAutograd, library) {
  library.impl("fp8_product", compute);
}

TORCH_LIBRARY_IMPL(coxswain, Autograd, library) {
  library.impl("fp8_product", with_gradients);
}

}  // namespace cox::detail
