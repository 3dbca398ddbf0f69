// LoopWarnings warns the author of an adopted loop, once each, of causes by which ranks would
// diverge without an error. Examples: a model is trained but not averaged; the loop's steps are not
// seen. Owned by Adoption; training thread only; does not communicate.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <string>

#include "sdk/src/session/membership.h"
#include "sdk/src/training/adopted_models.h"

namespace cox::detail {

class LoopWarnings {
 public:
  // REQUIRES: `job` outlives the LoopWarnings.
  explicit LoopWarnings(const Membership& job);

  // Adoption calls the functions below when the loop shows each event.
  void model_trained() { has_step_ = true; }
  void step_ended() { has_returned_ = false; }
  // Records a forward pass without an operator with gradients on: backward() recomputes the pass.
  void forward_unseen();
  // Records a backward pass that added to no gradient of a model.
  void pass_went_aside();
  // Records that the program received gradients from torch::autograd::grad().
  void gradients_returned() { has_returned_ = true; }
  // Records an operator that uses a parameter outside of a graph, in a forward pass of averaged
  // models. `trial` tells whether a plan waits for the first step that backward() ends.
  enum class Trial : std::uint8_t { none, waits };
  void parameter_used(const c10::OperatorHandle& handle, const at::Tensor& parameter, Trial trial);
  // Records an operator that uses a tensor outside of a graph, in a loop that is averaged. None of
  // `models` had the tensor when it was adopted.
  void stranger_used(const c10::OperatorHandle& handle, const at::Tensor& tensor,
                     const AdoptedModels& models);
  void loop_ended();

 private:
  enum Warning : std::uint32_t {
    unseen = 1,
    aside = 2,
    returned = 4,
    stranger = 8,
  };
  void tell(Warning which, const std::string& text);
  bool is_trained_elsewhere() const;
  void trained_elsewhere();

  const Membership& job_;
  const std::uint64_t passes_before_;  // on other threads, before this loop
  bool has_step_ = false;              // backward() has added to a model's gradients
  bool has_returned_ = false;          // the program received gradients in the open step
  std::uint32_t passes_aside_ = 0;
  std::uint32_t told_ = 0;  // set of Warning
};

}  // namespace cox::detail
