// Curvature is the largest eigenvalue of the loss's Hessian for each block's parameters (that
// block's part of the diagonal), found by power iteration on Hessian-vector products. A session
// probes it on a schedule, between steps and never as part of one.
//
// The probe computes in fp32 with autocast off, attention by its math kernels (the fused ones
// cannot be differentiated twice) and every block kept whatever its action and format, and nobody
// measures or watches it. It leaves no trace: gradients, buffers, random state and modes are as
// they were. Gradients of gradients come from autograd::grad alone, so no cycle keeps the graph
// alive.
//
// Cost: one forward and one backward pass with their graph in memory, all blocks' saved tensors
// included, then two backward passes' time per iteration of each group and one read of the device.
// The thread that trains calls it, on one rank or on each by itself; it does not communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "coordinator/core/status.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

struct CurvatureOptions {
  int iterations = 8;  // of each group, >= 1; error falls as (second / first eigenvalue)^(2n)
  std::uint64_t seed = 0;
};

// Returns one value a group of parameters: the eigenvalue of largest magnitude, with its sign; 0
// for a group on which the loss does not depend twice. Calls `loss` once. Returns
// failed_precondition with the reason when `loss` throws or cannot be differentiated twice, and
// invalid_argument for a loss that is no finite scalar or for options out of range. REQUIRES: the
// parameters require gradients.
Result<std::vector<float>> probe_curvature(torch::nn::Module& model,
                                           const std::function<at::Tensor()>& loss,
                                           std::span<const std::vector<at::Tensor>> groups,
                                           const CurvatureOptions& options);

}  // namespace cox::detail
