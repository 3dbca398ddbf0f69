// OptimizerPort: what the trainer needs from an optimizer, for cox::AdamW and for any torch::optim
// one. References an optimizer of the user's; training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/adamw.h"
#include "coxswain/named_tensor.h"

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
  // Takes over what state() gave, here or in an earlier process.
  virtual Status load_state(std::span<const NamedTensor> state) = 0;
};

std::int64_t bytes_of(std::span<const NamedTensor> tensors);

// Return all parameters, group by group.
std::vector<at::Tensor> parameters_of(const AdamW& optimizer);
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

std::unique_ptr<OptimizerPort> make_port(AdamW& optimizer);
// Its state is torch's own archive, carried as one tensor of bytes.
std::unique_ptr<OptimizerPort> make_port(torch::optim::Optimizer& optimizer);

}  // namespace cox::detail
