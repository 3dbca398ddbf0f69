// What one pass over gradients tells: their L2 norm, which is finite exactly if all elements are,
// and, looked at only after trouble, how many are not. Every step of every trainer makes this pass;
// fp32, bf16 and fp16 on the CPU go through TensorScan's loops, where neither threads nor the
// processor's vector width change a bit. The training thread calls all this.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace cox::detail {

// Sums of squares taken when gradients had just been written and still lay in the caches: a pass
// over all of them at the end of a step has to fetch them again, which takes twice as long.
class SquaresSeen {
 public:
  void look(std::size_t place, const at::Tensor& gradient);
  // Of what `gradient` holds now: looks again where that is not what was seen.
  double of(std::size_t place, const at::Tensor& gradient) const;

 private:
  // Lets the gradient's memory go with its owner, and nothing else have its address meanwhile.
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Look {
    Weak tensor;
    std::int64_t version = 0;
    double squares = 0;
  };
  std::vector<std::optional<Look>> looks_;
};

// L2 norm over all elements of `tensors`; undefined ones are skipped. `seen`: by their places.
double l2_norm(std::span<const at::Tensor> tensors, const SquaresSeen& seen = {});

// Elements of `tensor` that are NaN or infinite.
std::int64_t count_nonfinite(const at::Tensor& tensor);

}  // namespace cox::detail
