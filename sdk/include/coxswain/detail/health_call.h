// HealthCall: one call of a block as whoever looks for overflows sees it, in the order of its
// methods: input() for each input, begin(), the block's function, output() for each result,
// finish(). Looks at forward values at once and at gradients when they come, through hooks that
// hold figures only; changes no bit and keeps no tensor. Does nothing while nobody looks, without
// gradients, and when a function runs again. Never throws: a failure costs the look, not the call.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>

#include "coxswain/block.h"

namespace cox::detail {

class HealthLedger;

class HealthCall {
 public:
  explicit HealthCall(const std::shared_ptr<BlockGate>& gate) noexcept;
  ~HealthCall();
  HealthCall(const HealthCall&) = delete;
  HealthCall& operator=(const HealthCall&) = delete;

  void input(const at::Tensor& tensor) noexcept;
  void begin() noexcept;  // where the function's number format is in force
  void output(const at::Tensor& tensor) noexcept;
  void finish() noexcept;

 private:
  void drop() noexcept;

  std::shared_ptr<HealthLedger> ledger_;  // null: does nothing
  std::size_t call_ = 0;
  bool is_on_cpu_ = true;
  HealthCall* outer_ = nullptr;
  bool is_innermost_ = false;
};

}  // namespace cox::detail
