// HealthLedger: where the calls of blocks write down what they saw of their tensors during a step.
// It scans each boundary once and hooks its gradient; by that hook it knows the tensor again, and
// constants by address and version, for the length of the step. Owned by BlockHealth and by the
// hooks on the tensors, which may outlive it; a hook of an earlier step does nothing. Forward comes
// from the thread that trains, gradients also from an engine's; what it does never throws into
// either.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "sdk/src/precision/health_records.h"

namespace cox::detail {

class HealthLedger : public std::enable_shared_from_this<HealthLedger> {
 public:
  // A step begins; what is left of the one before is forgotten.
  void open();
  // It is over: nothing is written any more.
  void close();
  bool is_open() const { return is_open_.load(std::memory_order_relaxed); }

  // A call of a block in the open step.
  std::size_t begin_call(BlockId block, std::optional<std::size_t> outer);
  void input(std::size_t call, const at::Tensor& tensor);
  void computes_in_fp16(std::size_t call);  // after its inputs
  void output(std::size_t call, const at::Tensor& tensor);
  void end_call(std::size_t call);

  // For the hook on a boundary's gradient. `boundary` is of that step, and not looked at in
  // another.
  void gradient(Boundary& boundary, std::uint64_t step, const at::Tensor& gradient);

  // Calls in the order in which they began, with all figures read. For the thread that trains,
  // while no backward pass runs.
  const std::vector<BlockCallRecord>& read();

 private:
  struct Known {
    c10::weak_intrusive_ptr<at::TensorImpl> alive;  // no other tensor gets its address
    std::int64_t version = 0;
    Boundary* boundary = nullptr;
  };
  void forget();
  // nullptr for what holds no numbers, and for leaves that require gradients: parameters.
  Boundary* boundary_of(const at::Tensor& tensor);
  Boundary* with_gradient(const at::Tensor& tensor);
  Boundary* constant(const at::Tensor& tensor);

  std::atomic<bool> is_open_ = false;
  std::mutex mutex_;
  std::uint64_t step_ = 0;
  Moment now_ = 0;
  std::vector<PendingScan*> pending_;  // of read(); kept for its memory
  std::vector<BlockCallRecord> calls_;
  Boundaries boundaries_;
  std::unordered_map<const void*, Known> constants_;
};

}  // namespace cox::detail
