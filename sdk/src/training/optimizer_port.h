// OptimizerPort: what the trainer needs from an optimizer, for cox::AdamW and for any torch::optim
// one. References an optimizer of the user's; training thread only.
//
// The state is called by the names that the model gives its parameters, "exp_avg.layers.0.weight",
// however the optimizer was made; sdk/src/optim/torch_state.h has the rest. The state of a kind of
// optimizer that the program made itself is torch's archive, as one tensor of bytes, and is matched
// by position; so are the saves of version 0.2.
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
  virtual void set_learning_rate(double rate) = 0;  // of all groups
  virtual std::size_t groups() const = 0;
  // 0 where the optimizer has none. REQUIRES: group < groups().
  virtual double learning_rate(std::size_t group) const = 0;
  // Equal where all options of all groups are; 0 where they cannot be compared. Not for the step
  // path.
  virtual std::uint64_t options_hash() const = 0;
  // Bytes of state that the first step will add; an estimate (two values a parameter) where the
  // optimizer is torch's and has none yet.
  virtual std::int64_t bytes_to_come() const = 0;
  // Bytes of state now; 0 where the optimizer does not say.
  virtual std::int64_t state_bytes() const { return 0; }
  // Everything a resumed run needs, by name. Tensors may be live ones.
  virtual std::vector<NamedTensor> state() const = 0;
  // Puts in place what state() gave, here or in an earlier process.
  virtual Status load_state(std::span<const NamedTensor> state, Handover handover) = 0;
  // Returns the parameters that have no name in the model, as "group.0.3".
  virtual std::vector<std::string> unnamed() const = 0;
};

// Returns invalid_argument where a group's learning rate is negative or not finite.
Status check_rates(const OptimizerPort& optimizer);

// Returns whether the state is an archive, and is matched by the position of parameters.
bool is_by_position(std::span<const NamedTensor> optimizer_state);

std::int64_t bytes_of(std::span<const NamedTensor> tensors);

// Return all parameters, group by group.
std::vector<at::Tensor> parameters_of(const AdamW& optimizer);
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

// `named`: the parameters with the names that the state is to have.
std::unique_ptr<OptimizerPort> make_port(AdamW& optimizer, std::span<const NamedTensor> named = {});
std::unique_ptr<OptimizerPort> make_port(torch::optim::Optimizer& optimizer,
                                         std::span<const NamedTensor> named = {});

}  // namespace cox::detail
