// What one pass over gradients tells: their L2 norm, which is finite exactly if all elements are,
// and, looked at only after trouble, how many are not. Every step of every trainer makes this pass;
// fp32, bf16 and fp16 on the CPU go through TensorScan's loops, where neither threads nor the
// processor's vector width change a bit. Pure functions; the training thread calls them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace cox::detail {

// L2 norm over all elements of `tensors`; undefined ones are skipped.
double l2_norm(std::span<const at::Tensor> tensors);
// The same of the gradients of `parameters`.
double gradient_norm(std::span<const at::Tensor> parameters);

// Elements of `tensor` that are NaN or infinite.
std::int64_t count_nonfinite(const at::Tensor& tensor);

}  // namespace cox::detail
