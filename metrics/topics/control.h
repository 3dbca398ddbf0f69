// The topic Control plane: the cost of deciding and publishing plans, and the errors on the way.
// Shows the coordinator's own ControlCounters. Pure.
#pragma once

#include "metrics/topic.h"

namespace cox::metrics {

Topic control_topic();

}  // namespace cox::metrics
