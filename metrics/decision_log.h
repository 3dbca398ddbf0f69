// The bounded list of what was decided and why, newest last. A reason that changes nothing and
// comes again becomes one entry with a count, so that rare ones are not pushed out. Pure.
#pragma once

#include <cstddef>
#include <memory>

#include "coordinator/core/record.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

// `list` with the reasons of `record` added, cut to the newest `capacity` entries.
std::shared_ptr<const DecisionList> extended(const DecisionList& list, const StepRecord& record,
                                             std::size_t capacity);

}  // namespace cox::metrics
