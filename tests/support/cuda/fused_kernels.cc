// Operators that LibTorch calls on CUDA in place of others on the CPU, composed of the CPU's: fused
// attention and the LSTM cell.
#include <ATen/ATen.h>
#include <ATen/native/transformers/attention.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <tuple>

#include "tests/support/cuda/kernels.h"

namespace cox::standin {
namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;

constexpr std::int64_t kMath = 0, kFlash = 1, kEfficient = 2;  // at::SDPBackend

// Chooses the memory-efficient kernel if the CPU has its flash kernel: both take every number type.
// Like CUDA, calls no operator visible to a program's own dispatch key.
std::int64_t choose_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                              const Maybe& mask, double dropout, bool causal,
                              std::optional<double> scale, bool grouped) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(c10::DispatchKey::TESTING_ONLY_GenericMode);
  const auto on_cpu = [](const Tensor& like) {
    return at::empty_strided(like.sizes(), like.strides(), like.options().device(at::kCPU))
        .set_requires_grad(like.requires_grad());
  };
  const Maybe cpu_mask = mask && mask->defined() ? Maybe(on_cpu(*mask)) : Maybe();
  const auto choice = at::_fused_sdp_choice(on_cpu(query), on_cpu(key), on_cpu(value), cpu_mask,
                                            dropout, causal, scale, grouped);
  return choice == kFlash ? kEfficient : kMath;
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention(const Tensor& query, const Tensor& key,
                                                     const Tensor& value, const Maybe& bias, bool,
                                                     double dropout, bool causal,
                                                     std::optional<double> scale) {
  const c10::cuda::CUDAGuard guard(query.device());
  Launch launch(query.device(), "_scaled_dot_product_efficient_attention");
  const Maybe mask = bias && bias->defined() ? Maybe(launch.reads(*bias)) : Maybe();
  const auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
      launch.reads(query), launch.reads(key), launch.reads(value), dropout, causal, mask, scale);
  const Tensor random = at::zeros({}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
  return {launch.result(out), launch.result(sums), launch.result(random), launch.result(random)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attention_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& bias, const Tensor& out, const Tensor& sums, const Tensor&, const Tensor&,
    double dropout, std::array<bool, 4>, bool causal, std::optional<double> scale) {
  if (!gradient.defined()) return {};
  const c10::cuda::CUDAGuard guard(query.device());
  Launch launch(query.device(), "_scaled_dot_product_efficient_attention_backward");
  const Maybe mask = bias.defined() ? Maybe(launch.reads(bias)) : Maybe();
  const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      launch.reads(gradient), launch.reads(query), launch.reads(key), launch.reads(value),
      launch.reads(out), launch.reads(sums), dropout, causal, mask, scale);
  return {launch.result(dq), launch.result(dk), launch.result(dv), Tensor()};
}

// Supports half_to_float, which the CPU lacks: narrow numbers give fp32 ones, as autocast needs.
template <Tensor (*on_cpu)(const Tensor&, std::int64_t, bool)>
Tensor softmax(const Tensor& x, std::int64_t dim, bool half_to_float) {
  const c10::cuda::CUDAGuard guard(x.device());
  Launch launch(x.device(), "_softmax");
  const Tensor read = launch.reads(x);
  return launch.result(on_cpu(half_to_float ? read.to(at::kFloat) : read, dim, false));
}

template <Tensor (*on_cpu)(const Tensor&, const Tensor&, std::int64_t, at::ScalarType)>
Tensor softmax_backward(const Tensor& gradient, const Tensor& output, std::int64_t dim,
                        at::ScalarType input_type) {
  const c10::cuda::CUDAGuard guard(output.device());
  Launch launch(output.device(), "_softmax_backward_data");
  const Tensor read = launch.reads(gradient);
  const Tensor made = on_cpu(read, launch.reads(output), dim, read.scalar_type());
  return launch.result(made.to(input_type));
}

// Takes gates in LibTorch's order: input, forget, cell, output. The workspace keeps the gates after
// their activations.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cell, const Maybe& input_bias,
                                             const Maybe& hidden_bias) {
  const c10::cuda::CUDAGuard guard(cell.device());
  Launch launch(cell.device(), "_thnn_fused_lstm_cell");
  Tensor gates = launch.reads(input_gates) + launch.reads(hidden_gates);
  if (input_bias && input_bias->defined()) gates += launch.reads(*input_bias);
  if (hidden_bias && hidden_bias->defined()) gates += launch.reads(*hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const Tensor in = parts[0].sigmoid(), forget = parts[1].sigmoid(), candidate = parts[2].tanh(),
               out = parts[3].sigmoid();
  const Tensor next = forget * launch.reads(cell) + in * candidate;
  return {launch.result(out * next.tanh()), launch.result(next),
          launch.result(at::cat({in, forget, candidate, out}, 1))};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const Maybe& grad_hidden,
                                                      const Maybe& grad_next, const Tensor& cell,
                                                      const Tensor& next, const Tensor& workspace,
                                                      bool has_bias) {
  const c10::cuda::CUDAGuard guard(cell.device());
  Launch launch(cell.device(), "_thnn_fused_lstm_cell_backward");
  const auto gates = launch.reads(workspace).chunk(4, 1);
  const Tensor &in = gates[0], &forget = gates[1], &candidate = gates[2], &out = gates[3];
  const auto or_zero = [&](const Maybe& gradient) {
    return gradient && gradient->defined() ? launch.reads(*gradient) : at::zeros_like(in);
  };
  const Tensor hidden = or_zero(grad_hidden);
  const Tensor squashed = launch.reads(next).tanh();
  const Tensor of_next = hidden * out * (1 - squashed * squashed) + or_zero(grad_next);
  const Tensor of_gates = at::cat(
      {of_next * candidate * in * (1 - in), of_next * launch.reads(cell) * forget * (1 - forget),
       of_next * in * (1 - candidate * candidate), hidden * squashed * out * (1 - out)},
      1);
  return {launch.result(of_gates), launch.result(of_next * forget),
          has_bias ? launch.result(of_gates.sum(0)) : Tensor()};
}

TORCH_LIBRARY_IMPL(aten, CUDA, kernels) {
  kernels.impl("_fused_sdp_choice", TORCH_FN(choose_attention));
  kernels.impl("_scaled_dot_product_efficient_attention", TORCH_FN(attention));
  kernels.impl("_scaled_dot_product_efficient_attention_backward", TORCH_FN(attention_backward));
  kernels.impl("_softmax", TORCH_FN(softmax<&at::_softmax>));
  kernels.impl("_log_softmax", TORCH_FN(softmax<&at::_log_softmax>));
  kernels.impl("_softmax_backward_data", TORCH_FN(softmax_backward<&at::_softmax_backward_data>));
  kernels.impl("_log_softmax_backward_data",
               TORCH_FN(softmax_backward<&at::_log_softmax_backward_data>));
  kernels.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  kernels.impl("_thnn_fused_lstm_cell_backward_impl", TORCH_FN(lstm_cell_backward));
}

}  // namespace
}  // namespace cox::standin

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &cox::standin::choose_attention)
}  // namespace at::native
