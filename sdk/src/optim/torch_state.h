// The state of torch::optim optimizers as named tensors. Saves hold the named form, because other
// languages can read it. A resumed job matches tensors by name, whatever the order of the
// parameters.
//
//   exp_avg.NAME, step.NAME   a field of the state of parameter NAME
//   old_dirs[2].NAME          an element of a field that is a list
//   options.0.lr              an option of group 0
//   group.0                   the names of its parameters, one a line, as bytes
//   kind                      "Adam", as bytes
//
// Training thread. Nothing communicates or is kept.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coxswain/named_tensor.h"

namespace torch::optim {
class Optimizer;
}

namespace cox::detail {

// Handover selects whether a state's tensors are copied, or may become the optimizer's own.
enum class Handover : bool { copied, taken };

// The names of an optimizer's parameters, group by group.
using GroupNames = std::vector<std::vector<std::string>>;

// Returns each parameter's name in `named`: the first one for a tensor with several names, and
// "group.G.INDEX" for a tensor without a name.
GroupNames names_by_group(const torch::optim::Optimizer& optimizer,
                          std::span<const NamedTensor> named);
std::string place_name(std::size_t group, std::size_t index);

// Returns whether the optimizer is one of torch's own: Adagrad, Adam, AdamW, LBFGS, RMSprop or SGD.
// A program's own optimizer, also a derived one, may hold any state.
bool has_named_state(const torch::optim::Optimizer& optimizer);

// Returns the state and the options. Tensors of a parameter are the live ones, numbers are copies.
// REQUIRES: has_named_state().
std::vector<NamedTensor> named_state(torch::optim::Optimizer& optimizer, const GroupNames& names);

// Loads a list of named_state() onto the devices of the parameters. Groups match by the names of
// their parameters. A parameter without state in the list has none afterwards. An error changes
// nothing: invalid_argument for another kind of optimizer, for other groups, and for a field that
// is missing, unexpected, or of another shape or type. REQUIRES: has_named_state().
Status load_named_state(torch::optim::Optimizer& optimizer, const GroupNames& names,
                        std::span<const NamedTensor> state, Handover handover);

}  // namespace cox::detail
