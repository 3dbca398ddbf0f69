// AttendedCall: one call of a block that is measured, steered or watched, in the order of its
// methods: input() for each input, begin(), the block's function, end(), output() for each result,
// finish(). The one place that knows in which order memory, format, measurement and health come.
// Destroyed before finish() (the function threw), it leaves no trace. Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>

#include "coxswain/detail/health_call.h"
#include "coxswain/detail/memory_call.h"
#include "coxswain/detail/observation.h"
#include "coxswain/detail/precision_call.h"
#include "coxswain/detail/rerun.h"

namespace cox::detail {

class AttendedCall {
 public:
  explicit AttendedCall(const std::shared_ptr<BlockGate>& gate)
      : memory_(gate), observation_(gate), precision_(gate), health_(gate) {}

  void input(const at::Tensor& tensor) {
    observation_.input(tensor);
    memory_.input(tensor);
    precision_.input(tensor);
    health_.input(tensor);
  }

  // Whether begin() wants the means to run the function again.
  bool runs_again() const { return memory_.runs_again(); }

  void begin(std::unique_ptr<Rerun> again) {  // nullptr unless runs_again()
    observation_.arrive();
    precision_.begin();
    memory_.begin(std::move(again));
    health_.begin();
    observation_.begin();
  }

  void end() {
    observation_.end();
    precision_.end();
  }

  // What the caller gets in place of `tensor`.
  at::Tensor output(const at::Tensor& tensor) {
    at::Tensor result = precision_.output(tensor);
    observation_.output(result);
    health_.output(result);
    return result;
  }

  void finish() {
    memory_.end();
    observation_.finish();
    health_.finish();
  }
  // Instead of finish(), for results that are no tensors: the call is carried out, not reported.
  void finish_unseen() { memory_.end(); }

 private:
  MemoryCall memory_;
  Observation observation_;
  PrecisionCall precision_;
  HealthCall health_;
};

}  // namespace cox::detail
