// AdamW is the optimizer of Loshchilov and Hutter ("Decoupled weight decay regularization") on
// torch's fused kernel. One pass covers parameter, gradient and both moments. Results are bitwise
// equal to Python's AdamW(fused=True).
//
//   m = beta1 m + (1 - beta1) g              v = beta2 v + (1 - beta2) g^2
//   p = p - lr weight_decay p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
//   cox::AdamW optimizer({{.parameters = matrices, .options = {.lr = 3e-4, .weight_decay = 0.1}},
//                         {.parameters = vectors, .options = {.lr = 3e-4, .weight_decay = 0}}});
//
// Holds handles to the parameters, which step() updates in place. Owns the moments, which lie
// beside their parameters. Does not communicate. One thread at a time. Constructors throw
// cox::Error, and so does step() on a user's mistake (a sparse gradient, say).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/named_tensor.h"

namespace cox {

struct AdamWOptions {
  double lr = 1e-3;            // >= 0
  double beta1 = 0.9;          // in [0, 1)
  double beta2 = 0.999;        // in [0, 1)
  double eps = 1e-8;           // >= 0
  double weight_decay = 0.01;  // >= 0
};

struct AdamWGroup {
  // A parameter without a name is called by its index over all groups, counted from 0.
  std::vector<NamedTensor> parameters;
  AdamWOptions options;
};

// GradientScaling lets the kernel unscale or skip by itself, so that the host reads nothing. Both
// members are optional float32 tensors of one element on the device of the parameters.
struct GradientScaling {
  std::optional<at::Tensor> grad_scale;  // divides the gradients, in place
  std::optional<at::Tensor> found_inf;   // 1: the whole step changes nothing; 0: an ordinary step
};

enum class ZeroGrad {
  undefined,  // drop the gradients, so that backward writes instead of adding
  zeros,      // keep the tensors, for gradients that are views of a bucket
};

class AdamW {
 public:
  // REQUIRES: parameters are floating, dense and given once each.
  explicit AdamW(const std::vector<at::Tensor>& parameters, AdamWOptions options = {});
  explicit AdamW(std::vector<AdamWGroup> groups);

  // Updates every parameter that has a gradient. The other parameters and their step counts do not
  // change. Moments are made at a parameter's first update.
  void step() { step({}); }
  void step(const GradientScaling& scaling);

  void zero_grad(ZeroGrad how = ZeroGrad::undefined);

  std::size_t groups() const { return groups_.size(); }
  const AdamWOptions& options(std::size_t group = 0) const { return groups_.at(group).options; }
  // Sets the learning rate of every group, or of one. REQUIRES: lr is finite and >= 0.
  void set_lr(double lr);
  void set_lr(std::size_t group, double lr);

  // Returns all parameters in the order of the groups, with the names that state() uses.
  std::vector<NamedTensor> parameters() const;

  // Returns "exp_avg.NAME", "exp_avg_sq.NAME" and "step.NAME" of each parameter that was updated
  // before. The tensors are the live ones, not copies. Options are configuration of the job, not
  // state.
  std::vector<NamedTensor> state() const;
  // Loads a copy of a list that state() returned. A parameter that is absent from the list starts
  // afresh. Returns invalid_argument, and changes nothing, for an unknown name, a parameter with
  // only one or two of the three tensors, and another shape or dtype.
  Status load_state(std::span<const NamedTensor> state);
  // Like load_state(), but does not copy tensors with the layout of their parameter. The optimizer
  // shares the memory of such tensors from then on. Meant for a state that was just read from a
  // file.
  Status take_state(std::span<const NamedTensor> state);

 private:
  struct Slot {
    std::string name;
    at::Tensor parameter;
    at::Tensor exp_avg;  // all three are undefined until the first update
    at::Tensor exp_avg_sq;
    at::Tensor step;  // float32, one element, counts updates
  };
  struct Group {
    std::vector<Slot> slots;
    AdamWOptions options;
  };
  struct Lists;

  void add_group(AdamWGroup group);
  static at::Tensor gradient_of(const Slot& slot);
  static void start(Slot& slot);
  static Slot forms_of(Slot slot);
  static void update(const Lists& lists, const AdamWOptions& options,
                     const GradientScaling& scaling);

  std::vector<Group> groups_;
};

}  // namespace cox
