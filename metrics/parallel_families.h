// The families of data parallel: batch, samples by rank, and what reducing gradients costs.
#pragma once

#include "metrics/family_builder.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

void set_parallel(FamilyBuilder& out, const Snapshot& snapshot);

}  // namespace cox::metrics
