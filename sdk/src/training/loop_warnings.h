// LoopWarnings tells the author of an adopted loop, once each, by what its ranks would part without
// an error: what is trained and not averaged, a loop whose steps nobody sees. Owned by Adoption;
// training thread only; does not communicate.
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
  // `job` must outlive this.
  explicit LoopWarnings(const Membership& job) : job_(job) {}

  // Adoption calls these as the loop shows each of them.
  void model_trained() { has_step_ = true; }
  void step_ended() { has_returned_ = false; }
  // A forward pass that shows no operator with gradients on: backward() computes it again.
  void forward_unseen();
  // A backward pass that added to no gradient of a model.
  void pass_went_aside();
  // torch::autograd::grad(), whose gradients the program gets.
  void gradients_returned() { has_returned_ = true; }
  // An operator uses a parameter outside of a graph, in a forward pass of averaged models.
  void parameter_used(const c10::OperatorHandle& handle, const at::Tensor& parameter);
  // An operator uses a tensor outside of a graph that none of `models` had when it was adopted, in
  // a loop that is averaged.
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

  const Membership& job_;
  bool has_step_ = false;      // backward() has added to a model's gradients
  bool has_returned_ = false;  // gradients went to the program in the open step
  std::uint32_t passes_aside_ = 0;
  std::uint32_t told_ = 0;  // of Warning
};

}  // namespace cox::detail
