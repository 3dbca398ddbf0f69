// The families of numerics: loss scale, overflows by name, and what blocks compute in. Of a few
// blocks that share a series the worst one counts, and overflows add up.
#pragma once

#include "metrics/family_builder.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

void set_numerics(FamilyBuilder& out, const Snapshot& snapshot);

}  // namespace cox::metrics
