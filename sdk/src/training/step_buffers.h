// StepBuffers: buffers of a model that its forward pass may change (counters, caches), kept as they
// were at a step's start so that the step can be taken again. Copies only those that have changed
// since they were copied last, by their versions: constant ones cost memory and no time. Training
// thread; keeps the tensors alive.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace cox::detail {

class StepBuffers {
 public:
  // `apart`: those among them that somebody else puts back.
  StepBuffers(const std::vector<at::Tensor>& buffers, const std::vector<at::Tensor>& apart);

  void begin_step();
  // As they were at begin_step().
  void put_back();

 private:
  struct Kept {
    at::Tensor buffer;
    at::Tensor before;
    std::int64_t version = 0;  // of the buffer that `before` is a copy of
  };
  std::vector<Kept> kept_;
};

}  // namespace cox::detail
