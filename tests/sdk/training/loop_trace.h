// Traces of training loops, for comparing an adopted loop with its plain form.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "sdk/src/memory/counting_allocator.h"

namespace cox::test {

// Adopts a loop's model; does nothing in a plain loop.
using Adopt = std::function<void(torch::nn::Module&)>;

// Returns numbers that depend on the step alone.
inline at::Tensor batch_of_step(int step, const std::vector<std::int64_t>& shape,
                                at::ScalarType type = at::kFloat) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(100 + step));
  return at::randn(shape, generator, at::TensorOptions(type));
}

// The state after each step: parameters, gradients, buffers and the random generator; and the
// step's peak of counted bytes. A trace holds no tensor, so that it does not change the next peak.
class LoopTrace {
 public:
  // A loop that asks the trace for its batches gets `rows` times as many rows.
  explicit LoopTrace(std::int64_t rows = 1) : rows_(rows) { detail::reset_counted_peak(); }

  void note(const torch::nn::Module& model, const std::vector<at::Tensor>& more = {}) {
    peaks_.push_back(detail::counted_memory().peak_bytes);
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : model.parameters()) {
      add(parameter);
      add(parameter.grad());
    }
    for (const at::Tensor& buffer : model.buffers()) add(buffer);
    for (const at::Tensor& each : more) add(each);
    add(at::randn({2}));
    detail::reset_counted_peak();
  }
  at::Tensor batch(int step, std::vector<std::int64_t> shape, at::ScalarType type = at::kFloat) {
    shape.front() *= rows_;
    return batch_of_step(step, shape, type);
  }
  std::vector<at::Tensor> tensors() const {
    std::vector<at::Tensor> all;
    for (const Noted& each : noted_) {
      all.push_back(at::empty(each.sizes, each.type));
      std::memcpy(all.back().data_ptr(), each.bytes.data(), each.bytes.size());
    }
    return all;
  }
  const std::vector<std::int64_t>& peaks() const { return peaks_; }

 private:
  struct Noted {
    std::vector<std::int64_t> sizes;
    at::ScalarType type;
    std::vector<char> bytes;
  };

  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return add(at::full({1}, -77));
    const at::Tensor values =
        (tensor.is_sparse() ? tensor.to_dense() : tensor.detach()).contiguous().resolve_conj();
    const auto* first = static_cast<const char*>(values.const_data_ptr());
    noted_.push_back(
        {values.sizes().vec(), values.scalar_type(), {first, first + values.nbytes()}});
  }

  std::int64_t rows_;
  std::vector<Noted> noted_;
  std::vector<std::int64_t> peaks_;
};

}  // namespace cox::test
