// MasterWeights holds fp32 copies of parameters in bf16 or fp16. The optimizer updates the copies,
// so updates below the parameters' resolution (2^-9 of the value in bf16) add up instead of being
// rounded away. The choice is made when training is set up; adaptive precision never changes a
// parameter's type.
//
//   cox::MasterWeights masters(model->parameters());        // of a model in bf16
//   cox::AdamW optimizer(masters.tensors());                // or any torch::optim optimizer
//   loss.backward();
//   masters.take_gradients();   // after each micro-batch: sums in fp32
//   optimizer.step();           // LossScaler and clip_by_global_norm accept masters as well
//   masters.give_weights();     // rounded to nearest, ties to even
//   optimizer.zero_grad();      // the masters' gradients
//
// A parameter in fp32 or fp64 is its own master, so one optimizer holds the whole model. Owns the
// copies (4 bytes for each element of bf16 and fp16) and holds handles to the parameters. Does not
// communicate. Gives the same bits in every run. Thread rule: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/named_tensor.h"

namespace cox {

class MasterWeights {
 public:
  // Copies the parameters' values. Throws cox::Error for a parameter that is undefined, not dense,
  // not of floating type, an 8-bit float, or given twice. A parameter without a name is called by
  // its index.
  explicit MasterWeights(const std::vector<at::Tensor>& parameters);
  explicit MasterWeights(std::vector<NamedTensor> parameters);

  // Returns the tensors for the optimizer, in the order of the parameters. A tensor is a leaf that
  // requires gradients where its parameter does.
  std::vector<at::Tensor> tensors() const;
  std::vector<NamedTensor> named() const;

  // Adds each parameter's gradient to the master's gradient, in fp32, and drops the parameter's
  // own. A master without a gradient gets one. Infinities and NaN are kept.
  void take_gradients();
  // Writes the masters' values, rounded, into the parameters.
  void give_weights();
  // Copies the parameters' values into the masters. Call take_weights() after a model was loaded or
  // broadcast.
  void take_weights();

  // Returns "master.NAME" of each parameter that has a copy (fp32 ones are saved with the model).
  // The tensors are the live ones, not copies.
  std::vector<NamedTensor> state() const;
  // Loads a copy of a list that state() returned, and writes the weights into the parameters.
  // Returns invalid_argument for other names, shapes or types, and then changes nothing.
  Status load_state(std::span<const NamedTensor> state);

 private:
  struct Slot {
    NamedTensor parameter;
    at::Tensor master;  // the parameter itself if it is wide enough
    bool is_copy() const { return !master.is_same(parameter.tensor); }
  };
  struct Lists {
    std::vector<at::Tensor> parameters, masters;
  };
  Lists copies() const;

  std::vector<Slot> slots_;
};

}  // namespace cox
