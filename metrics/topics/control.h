// The topic Control plane: what deciding and publishing plans costs, and what went wrong on the
// way. Shows the coordinator's own ControlCounters. Pure.
#pragma once

#include "metrics/topic.h"

namespace cox::metrics {

Topic control_topic();

}  // namespace cox::metrics
