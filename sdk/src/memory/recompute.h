// RecomputeFrame keeps the saved tensors of one call that runs again instead of keeping them. It
// notes the tensors saved under it in order and drops them. The first one that backward asks for
// makes the function run again, only as far as its last saved tensor; each tensor is handed out
// once, so memory falls as backward goes on. When a tensor is asked for again (retain_graph,
// create_graph), the function runs again.
//
// Leaves that require gradients stay as they are. A frame may hold the saved tensors instead, to
// compare them with a second run (check) and then to drop them or to go on holding them. MemoryCall
// and TileCall open frames; the hooks on the saved tensors own them, and those run on whatever
// thread runs backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/util/DimVector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/detail/rerun.h"
#include "sdk/src/precision/execution_state.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {

class BlockState;

// A call and everything that it takes to make it again.
struct RecomputeParts {
  std::string name;                   // for messages: "block transformer.h.0"
  std::shared_ptr<BlockState> state;  // pinned when a second run fails; null outside of blocks
  std::unique_ptr<Rerun> again;
  ExecutionState execution;
  TensorVersions versions;
  BufferCopies buffers;
};

class RecomputeFrame final : public SavedTensorFrame,
                             public std::enable_shared_from_this<RecomputeFrame> {
 public:
  enum class Mode { dropping, holding };

  RecomputeFrame(RecomputeParts parts, Mode mode) : parts_(std::move(parts)), mode_(mode) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;

  // Runs the function again and compares what it saves with what is held, bit for bit; leaves no
  // trace. `edited` are the buffers that the function edits. Returns the difference as a sentence,
  // or nothing. REQUIRES: holding, and the forward pass is over.
  std::optional<std::string> check(BufferCopies edited);
  // Drops the held tensors; the mode is dropping from now on.
  void drop_held();

  // The hooks call the following.
  std::size_t add(const at::Tensor& tensor);
  at::Tensor unpack(std::size_t index);
  void release(std::size_t index);
  [[noreturn]] void fail_changed(const at::Tensor& tensor, std::int64_t expected) const;

 private:
  class Recorder;
  // Tells two saved tensors apart before their bits are compared.
  struct Shape {
    c10::DimVector sizes;
    at::ScalarType type = at::kFloat;
    at::Device device = at::kCPU;
    friend bool operator==(const Shape&, const Shape&) = default;
  };
  struct Slot {
    Shape shape;
    at::Tensor tensor;
    std::int64_t version = 0;
    bool is_leaf = false;
    bool is_released = false;
  };
  struct Saved {
    at::Tensor tensor;
    std::int64_t version;
  };
  static Shape shape_of(const at::Tensor& tensor);
  static std::string to_string(const Shape& shape);  // "Float[2, 3]"

  void recompute();
  void run_again(Recorder& recorder);
  std::string difference(const std::vector<Saved>& found) const;
  void check_versions() const;
  [[noreturn]] void fail(const std::string& what) const;

  RecomputeParts parts_;
  Mode mode_;
  std::recursive_mutex mutex_;
  std::vector<Slot> slots_;
};

}  // namespace cox::detail
