#include "sdk/src/training/loop_warnings.h"

#include <c10/core/GradMode.h>

#include "coordinator/core/text.h"
#include "sdk/src/stream/saved_tensors.h"

namespace cox::detail {

LoopWarnings::LoopWarnings(const Membership& job)
    : job_(job), passes_before_(backward_passes_elsewhere()) {}

void LoopWarnings::tell(Warning which, const std::string& text) {
  if ((told_ & which) != 0) return;
  told_ |= which;
  job_.log().warning("adopted model: " + text);
}

void LoopWarnings::forward_unseen() {
  tell(Warning::unseen,
       "expected a forward pass with gradients on before backward(), found none since the last "
       "update: the program recomputes the pass itself, or its graph began before that update; "
       "gradients are averaged, but the pass is neither measured nor steered (docs/adopt.md)");
}

void LoopWarnings::pass_went_aside() {
  constexpr std::uint32_t kTold = 10;
  if (has_step_ || ++passes_aside_ < kTold) return;
  tell(Warning::aside,
       concat("expected backward() to add to its gradients, found ", kTold,
              " passes that did not; adopt the model that is trained, not the model ",
              "it was cloned from"));
}

void LoopWarnings::parameter_used(const c10::OperatorHandle& handle, const at::Tensor& parameter,
                                  Trial trial) {
  if (!handle.schema().is_mutable()) return;
  if (is_trained_elsewhere()) return trained_elsewhere();
  if (!has_returned_) return;
  const std::string written = concat("a parameter of shape ", c10::str(parameter.sizes()),
                                     " is written after torch::autograd::grad(), ");
  if (job_.world_size() > 1) {
    tell(Warning::returned, written + "whose gradients are not averaged over ranks; call " +
                                "backward(), or average them by cox::ManualParallel");
  } else if (trial == Trial::waits && !has_step_) {
    tell(Warning::returned, written + "so its steps are not measured: no memory plan is made and " +
                                "no format chosen; call backward()");
  }
}

// An optimizer's write is recognised by gradients off and a leaf that has a gradient.
void LoopWarnings::stranger_used(const c10::OperatorHandle& handle, const at::Tensor& tensor,
                                 const AdoptedModels& models) {
  const bool is_update = tensor.requires_grad() && !c10::GradMode::is_enabled() &&
                         tensor.is_leaf() && tensor.grad().defined() &&
                         handle.schema().is_mutable();
  if (!is_update || job_.world_size() == 1 || (told_ & Warning::stranger) != 0) return;
  const std::string name = models.name_now(tensor);
  if (!name.empty()) {
    return tell(Warning::stranger,
                concat("parameter ", name, " was registered after adopt() and is trained, but its ",
                       "gradients are not averaged over ranks; register it before adopt()"));
  }
  tell(Warning::stranger,
       concat("a leaf of shape ", c10::str(tensor.sizes()), " that is in no adopted model is ",
              "trained, and its gradients are not averaged over ranks; register it as a parameter ",
              "of an adopted module"));
}

bool LoopWarnings::is_trained_elsewhere() const {
  return !has_step_ && backward_passes_elsewhere() > passes_before_;
}

void LoopWarnings::trained_elsewhere() {
  tell(Warning::aside,
       "expected backward() on the thread that called adopt(), found backward() on other threads "
       "only, which Coxswain does not record; call adopt() on the training thread");
}

void LoopWarnings::loop_ended() {
  if (is_trained_elsewhere()) trained_elsewhere();
}

}  // namespace cox::detail
