// The state of torch::optim optimizers as tensors with names: saves hold it so, other languages can
// read it, and a job that goes on matches it by name, however the parameters are ordered.
//
//   exp_avg.NAME, step.NAME   a field of the state of parameter NAME
//   old_dirs[2].NAME          an element of a field that is a list
//   options.0.lr              an option of group 0
//   group.0                   the names of its parameters, one a line, as bytes
//   kind                      "Adam", as bytes
//
// The training thread; nothing communicates or is kept.
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

// Handover says whether the tensors of a state are copied, or may become the optimizer's own.
enum class Handover : bool { copied, taken };

// The names of an optimizer's parameters, group by group.
using GroupNames = std::vector<std::vector<std::string>>;

// Returns for each parameter the name that the same tensor has in `named`: the first one where it
// has several, and "group.G.INDEX" where it has none.
GroupNames names_by_group(const torch::optim::Optimizer& optimizer,
                          std::span<const NamedTensor> named);
std::string place_name(std::size_t group, std::size_t index);

// Returns whether the optimizer is one of torch's own, Adagrad, Adam, AdamW, LBFGS, RMSprop or SGD.
// A program's optimizer may hold any state; so may one that derives from these.
bool has_named_state(const torch::optim::Optimizer& optimizer);

// Returns the state and the options. Tensors of a parameter are the live ones, numbers are copies.
// REQUIRES: has_named_state().
std::vector<NamedTensor> named_state(torch::optim::Optimizer& optimizer, const GroupNames& names);

// Puts such a list in place, on the devices of the parameters. Groups are matched by the
// names of their parameters; a parameter without state in the list has none afterwards. On an error
// nothing is changed: invalid_argument for the state of another kind of optimizer, other groups, a
// field that is missing, unexpected, or of another shape or type. REQUIRES: has_named_state().
Status load_named_state(torch::optim::Optimizer& optimizer, const GroupNames& names,
                        std::span<const NamedTensor> state, Handover handover);

}  // namespace cox::detail
