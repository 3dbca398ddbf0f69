// WeightAverage keeps an exponential moving average of a model's weights, for evaluation and for
// the model that is kept in the end.
//
//   cox::WeightAverage average(*model, {.decay = 0.999});
//   ...
//   optimizer.step();
//   average.update();                          // once a step
//   {
//     cox::AveragedWeights scope(average);     // the model computes with the averages
//     evaluate(*model);
//   }                                          // and with its own weights again, bit for bit
//
//   average = average + (1 - d) (weight - average),   d = min(decay, (1 + t) / (10 + t))
//
// where t counts earlier updates; without warm-up d = decay. The warm-up is TensorFlow's
// (tf.train.ExponentialMovingAverage with num_updates): early averages forget the random start.
// Buffers (batch statistics) are copied. Averages are fp32, or fp64 for fp64 weights. fp32 on the
// CPU is one pass of our own, with the same bits for any number of threads. Elsewhere torch's fused
// list kernels run. Skipped steps need no update, but an update is harmless. Owns the averages and
// holds handles to the model's tensors. Does not communicate. Thread rule: the training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/named_tensor.h"

namespace torch::nn {
class Module;
}

namespace cox {

struct WeightAverageOptions {
  double decay = 0.999;  // in [0, 1); 0 = a copy of the newest weights
  bool warm_up = true;
};

class WeightAverage {
 public:
  // Starts from the present values. Throws cox::Error for a decay out of range, and for parameters
  // that are undefined, not dense or not of floating type.
  explicit WeightAverage(const torch::nn::Module& model, WeightAverageOptions options = {});
  WeightAverage(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers,
                WeightAverageOptions options = {});

  // Adds the present weights to the average, and copies buffers. Throws cox::Error while an
  // AveragedWeights is open.
  void update();
  std::int64_t updates() const { return updates_; }
  // Returns d of the next update().
  double next_decay() const;

  // Returns the averages by the parameters' names, then the copies of buffers. The tensors are the
  // live ones, not copies.
  std::vector<NamedTensor> averages() const;

  // Returns "average.NAME" of parameters, "buffer.NAME" of buffers, and "updates" (int64).
  std::vector<NamedTensor> state() const;
  // Loads a copy of a list that state() returned. Returns invalid_argument for another model's
  // names, shapes or types, or a negative count, and then changes nothing. Throws cox::Error while
  // an AveragedWeights is open.
  Status load_state(std::span<const NamedTensor> state);

 private:
  friend class AveragedWeights;
  struct Slot {
    NamedTensor source;  // handles to the model's tensors
    at::Tensor average;
    bool is_buffer = false;
  };
  void add(NamedTensor named);
  void require_closed(const char* what) const;

  WeightAverageOptions options_;
  std::vector<Slot> slots_;  // parameters, then buffers
  std::int64_t updates_ = 0;
  bool is_swapped_ = false;
};

// AveragedWeights puts the averages (rounded to the model's types) into the model from construction
// to destruction. The destructor restores the model's own values, bit for bit. Needs memory for a
// copy of the model. Throws cox::Error if another AveragedWeights is open. REQUIRES: no backward
// pass of an earlier forward pass is still to come.
class [[nodiscard]] AveragedWeights {
 public:
  explicit AveragedWeights(WeightAverage& average);
  AveragedWeights(const AveragedWeights&) = delete;
  AveragedWeights& operator=(const AveragedWeights&) = delete;
  ~AveragedWeights();

 private:
  WeightAverage& average_;
  std::vector<at::Tensor> own_;  // the model's values: parameters, then buffers
};

}  // namespace cox
