// StepBuffers: buffers of a model that its forward pass may change (running statistics, counters,
// caches), kept as they were at a step's start, so that the step can be taken again and a step that
// went wrong leaves no NaN behind. Training thread; keeps the tensors alive.
//
// Copies only when the version of some buffer has moved: a model that changes none costs memory and
// no time. Not by each one's own version: torch's BatchNorm writes running statistics without
// moving theirs, and only its counter tells.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace cox::detail {

class StepBuffers {
 public:
  StepBuffers(const std::vector<at::Tensor>& buffers,
              const std::function<bool(const at::Tensor&)>& is_kept);

  void begin_step();
  // As they were at begin_step().
  void put_back();
  // The same for those alone that hold a value that is not finite.
  void put_back_nonfinite();

 private:
  struct Kept {
    at::Tensor buffer;
    at::Tensor before;
  };
  std::uint64_t versions() const;

  std::vector<at::Tensor> all_;
  std::vector<Kept> kept_;
  std::optional<std::uint64_t> seen_;  // versions that the copies are of
};

}  // namespace cox::detail
