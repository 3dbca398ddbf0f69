// PrecisionCall: the number format of one call of a block, in the order of its methods: input() for
// each input, begin(), the block's function, end(), output() for each result. In force from begin()
// to end(), and again whenever the function is run again (ExecutionState). A block whose format is
// steered returns results as wide as its inputs (as its parameters, where no input is a floating
// tensor), whatever it computed in: code behind it sees the types of an fp32 run.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>

#include "coxswain/block.h"
#include "coxswain/precision.h"

namespace cox::detail {

class BlockState;
class Fp8Scope;

class PrecisionCall {
 public:
  explicit PrecisionCall(const std::shared_ptr<BlockGate>& gate);
  ~PrecisionCall();
  PrecisionCall(const PrecisionCall&) = delete;
  PrecisionCall& operator=(const PrecisionCall&) = delete;

  bool is_steered() const { return format_.has_value(); }
  void input(const at::Tensor& tensor);
  void begin();
  void end();
  at::Tensor output(const at::Tensor& tensor) const;

 private:
  void take_from_parameters();

  BlockState& state_;
  std::optional<Precision> format_;
  at::DeviceType device_ = at::kCPU;
  std::optional<at::ScalarType> width_;  // the widest floating type of the inputs
  std::optional<PrecisionScope> scope_;
  std::unique_ptr<Fp8Scope> fp8_;
};

// Whether a block that computes in fp32 is given a tensor narrower than its parameters, which its
// operations would refuse: a result of code under autocast.
bool is_too_narrow(const std::shared_ptr<BlockGate>& gate, const at::Tensor& tensor);

// The argument as such a block takes it; tensors become as wide as the parameters.
at::Tensor widened_for(const std::shared_ptr<BlockGate>& gate, const at::Tensor& tensor);

}  // namespace cox::detail
