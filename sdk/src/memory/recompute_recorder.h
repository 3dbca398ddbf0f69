// Recorder: keeps what a function saves for backward while it runs again, in order, and stops it
// with an exception after as many tensors as are wanted. SavedShape: by what two such tensors are
// told apart before their bits are compared.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "sdk/src/blocks/saved_tensor_engine.h"
#include "sdk/src/memory/recompute_buffers.h"

namespace cox::detail {

struct SavedShape {
  c10::DimVector sizes;
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;
  friend bool operator==(const SavedShape&, const SavedShape&) = default;
};
SavedShape shape_of(const at::Tensor& tensor);
std::string to_string(const SavedShape& shape);  // "Float[2, 3]"

// Thrown through the function. No std::exception, so that handlers for those let it pass.
struct StopRecompute {};

class Recorder final : public SavedTensorFrame {
 public:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();
  struct Saved {
    at::Tensor tensor;
    std::int64_t version;
  };

  // Tensors in the memory of `edited` are copied, since that memory is put back afterwards. Not
  // more than `wanted` are kept; the function is stopped there where that is allowed.
  Recorder(const BufferCopies& edited, std::size_t wanted, bool may_stop)
      : edited_(edited), wanted_(wanted), may_stop_(may_stop) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  void record(const at::Tensor& tensor);
  std::vector<Saved>& found() { return found_; }

 private:
  const BufferCopies& edited_;
  std::size_t wanted_;
  bool may_stop_;
  std::vector<Saved> found_;
};

}  // namespace cox::detail
