// The policies that come with Coxswain, in the order in which Decide asks them. A program adds its
// own policies after these. Policies have no state of their own, so a set may be shared.
#pragma once

#include "coordinator/decide/policy.h"

namespace cox {

PolicySet default_policies();

}  // namespace cox
