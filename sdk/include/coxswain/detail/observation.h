// One observed call of a block, in the order of its methods: input() for each input, arrive(),
// begin(), the block's function, end(), output() for each output, finish(). Destroyed before
// finish() (the function threw), it reports nothing and leaves no trace. Nothing here throws or
// changes a tensor's value; a failure of its own costs the measurement, never the call.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "coxswain/block.h"

namespace cox::detail {

class BlockCall;

[[noreturn]] void throw_empty_block();  // cox::Error, failed_precondition

class Observation {
 public:
  explicit Observation(const std::shared_ptr<BlockGate>& gate) noexcept;
  ~Observation();
  Observation(const Observation&) = delete;
  Observation& operator=(const Observation&) = delete;

  void input(const at::Tensor& tensor) noexcept;
  void arrive() noexcept;  // what the memory action keeps for the block comes after this
  void begin() noexcept;
  void end() noexcept;
  void output(const at::Tensor& tensor) noexcept;
  void finish() noexcept;

 private:
  std::shared_ptr<BlockCall> call_;  // null once something went wrong
};

}  // namespace cox::detail
