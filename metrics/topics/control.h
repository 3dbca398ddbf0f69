// The topic Control plane: what deciding and publishing plans costs, and what went wrong on the
// way. Its part of the snapshot is the coordinator's own ControlCounters. Pure.
#pragma once

namespace cox::metrics {

struct Topic;

Topic control_topic();

}  // namespace cox::metrics
