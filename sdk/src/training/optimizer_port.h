// OptimizerPort is the trainer's view of an optimizer, for cox::AdamW and for any torch::optim
// optimizer. Refers to the user's optimizer, which must outlive the port. Training thread only.
//
// State is named by the model's parameter names ("exp_avg.layers.0.weight"), however the optimizer
// was made; see sdk/src/optim/torch_state.h. If the program wrote the optimizer's class itself, the
// state is torch's archive, as one tensor of bytes, and is matched by position. Saves of version
// 0.2 are matched by position, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/adamw.h"
#include "coxswain/named_tensor.h"
#include "sdk/src/optim/torch_state.h"

namespace torch::optim {
class Optimizer;
}

namespace cox::detail {

class OptimizerPort {
 public:
  virtual ~OptimizerPort() = default;
  virtual std::vector<at::Tensor> parameters() const = 0;
  virtual void step() = 0;
  virtual void zero_grad() = 0;                     // leaves gradients undefined
  virtual void set_learning_rate(double rate) = 0;  // for all groups
  virtual std::size_t groups() const = 0;
  // Returns 0 if the optimizer has no learning rate. REQUIRES: group < groups().
  virtual double learning_rate(std::size_t group) const = 0;
  // Returns equal values for equal options of all groups, and 0 if options cannot be compared. Not
  // for the step path.
  virtual std::uint64_t options_hash() const = 0;
  // Returns the bytes of state that the first step will add. For a torch optimizer without state
  // the result is an estimate: two values a parameter.
  virtual std::int64_t bytes_to_come() const = 0;
  // Returns the bytes of state now; 0 if the optimizer does not report them.
  virtual std::int64_t state_bytes() const { return 0; }
  // Returns all state that a resumed run needs, by name. Tensors may be live ones.
  virtual std::vector<NamedTensor> state() const = 0;
  // Loads the result of state(), from this or an earlier process.
  virtual Status load_state(std::span<const NamedTensor> state, Handover handover) = 0;
  // Returns the parameters that have no name in the model, as "group.0.3".
  virtual std::vector<std::string> unnamed() const = 0;
};

// Returns invalid_argument if a group's learning rate is negative or not finite.
Status check_rates(const OptimizerPort& optimizer);

// Returns whether the state is an archive, which is matched by the position of parameters.
bool is_by_position(std::span<const NamedTensor> optimizer_state);

std::int64_t bytes_of(std::span<const NamedTensor> tensors);

// Returns all parameters, group by group.
std::vector<at::Tensor> parameters_of(const AdamW& optimizer);
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

// `named` gives the parameters the names that their state will use.
std::unique_ptr<OptimizerPort> make_port(AdamW& optimizer, std::span<const NamedTensor> named = {});
std::unique_ptr<OptimizerPort> make_port(torch::optim::Optimizer& optimizer,
                                         std::span<const NamedTensor> named = {});

}  // namespace cox::detail
