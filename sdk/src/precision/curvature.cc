#include "sdk/src/precision/curvature.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <cmath>
#include <exception>
#include <string>

#include "coxswain/detail/run_context.h"
#include "coxswain/precision.h"
#include "sdk/src/blocks/storage.h"
#include "sdk/src/precision/execution_state.h"

namespace cox::detail {
namespace {

using Tensors = std::vector<at::Tensor>;

// All that a probe puts in force, and puts back: what decides the bits of a computation, buffers,
// and blocks that count as running again, so that nothing acts on them and nobody watches.
class ProbeScope {
 public:
  explicit ProbeScope(torch::nn::Module& model)
      : buffers_(BufferCopies(model.buffers())),
        execution_(capture_state(model)),
        context_({nullptr, MemoryAction::keep, true, true, nullptr, true}),
        running_(context_) {
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::set_autocast_enabled(at::kCUDA, false);
  }

 private:
  BufferScope buffers_;
  StateScope execution_;
  AttentionScope attention_{AttentionBackend::math};
  NoCastCache no_cast_cache_;
  RunContext context_;
  ContextScope running_;
};

at::Tensor dot(const Tensors& a, const Tensors& b) {
  at::Tensor sum;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const at::Tensor part = (a[i].to(at::kDouble) * b[i].to(at::kDouble)).sum();
    sum = sum.defined() ? sum + part : part;
  }
  return sum;
}

Tensors start_of(const Tensors& group, std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  Tensors start;
  for (const at::Tensor& parameter : group) {
    const auto options = at::TensorOptions().dtype(at::kFloat);
    start.push_back(at::randn(parameter.sizes(), generator, options)
                        .to(parameter.device(), parameter.scalar_type()));
  }
  return start;
}

void scale(Tensors& vector, const at::Tensor& factor) {
  for (at::Tensor& part : vector) part.mul_(factor.to(part.device(), part.scalar_type()));
}

// The gradient of a group as a function of its parameters, to be differentiated along a vector.
class Hessian {
 public:
  // Requires: as many gradients as parameters, undefined where there is none.
  Hessian(const Tensors& parameters, const Tensors& gradients) : parameters_(parameters) {
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined() || !gradients[i].requires_grad()) continue;
      gradients_.push_back(gradients[i]);
      indices_.push_back(i);
    }
  }

  bool is_zero() const { return gradients_.empty(); }

  Tensors times(const Tensors& vector) const {
    Tensors along;
    for (const std::size_t i : indices_) along.push_back(vector[i]);
    Tensors product = torch::autograd::grad(gradients_, parameters_, along, /*retain_graph=*/true,
                                            /*create_graph=*/false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < product.size(); ++i) {
      if (!product[i].defined()) product[i] = at::zeros_like(parameters_[i]);
    }
    return product;
  }

 private:
  Tensors parameters_;
  Tensors gradients_;
  std::vector<std::size_t> indices_;
};

// v of length 1; the eigenvalue of H is v.Hv, the next v is Hv / |Hv|.
float largest_eigenvalue(const Hessian& hessian, Tensors v, int iterations) {
  const torch::NoGradGuard no_grad;
  if (hessian.is_zero()) return 0;
  scale(v, dot(v, v).rsqrt());
  double value = 0;
  for (int i = 0; i < iterations; ++i) {
    Tensors next = hessian.times(v);
    const at::Tensor length = dot(next, next).sqrt();
    const at::Tensor read = at::stack({dot(v, next), length}).to(at::kCPU);
    value = read[0].item<double>();
    if (read[1].item<double>() == 0) return 0;
    scale(next, length.reciprocal());
    v = std::move(next);
  }
  return static_cast<float>(value);
}

Status check_loss(const at::Tensor& loss) {
  const bool is_scalar = loss.defined() && loss.numel() == 1 && loss.requires_grad();
  if (is_scalar && std::isfinite(loss.item<double>())) return ok_status();
  return invalid_argument(
      std::string("curvature: expected a finite scalar loss that depends on parameters, found ") +
      (!is_scalar ? "another tensor" : "one that is not finite"));
}

Result<std::vector<float>> probe(const std::function<at::Tensor()>& loss_of,
                                 std::span<const Tensors> groups, const CurvatureOptions& options) {
  Tensors parameters;
  for (const Tensors& group : groups) {
    parameters.insert(parameters.end(), group.begin(), group.end());
  }
  const at::Tensor loss = loss_of();
  if (Status status = check_loss(loss); !status.ok()) return status;
  if (parameters.empty()) return std::vector<float>(groups.size());
  const Tensors gradients = torch::autograd::grad({loss}, parameters, {}, /*retain_graph=*/true,
                                                  /*create_graph=*/true, /*allow_unused=*/true);
  std::vector<float> values;
  auto first = gradients.begin();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto last = first + static_cast<std::ptrdiff_t>(groups[g].size());
    const Hessian hessian(groups[g], Tensors(first, last));
    values.push_back(
        largest_eigenvalue(hessian, start_of(groups[g], options.seed + g), options.iterations));
    first = last;
  }
  return values;
}

}  // namespace

Result<std::vector<float>> probe_curvature(torch::nn::Module& model,
                                           const std::function<at::Tensor()>& loss,
                                           std::span<const Tensors> groups,
                                           const CurvatureOptions& options) try {
  if (options.iterations < 1) {
    return invalid_argument("curvature: expected at least 1 iteration, found " +
                            std::to_string(options.iterations));
  }
  const ProbeScope scope(model);
  return probe(loss, groups, options);
} catch (const std::exception& error) {
  const std::string what = error.what();  // torch appends its backtrace
  return failed_precondition("curvature: the probe failed: " + what.substr(0, what.find('\n')) +
                             "; a model whose operations have no second derivative cannot be "
                             "probed (precision.curvature_every = 0)");
}

}  // namespace cox::detail
