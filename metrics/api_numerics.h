// The parts of the JSON documents that speak of numerics, and /api/v1/numerics. What is not known
// is null. Pure.
#pragma once

#include <string>

#include "metrics/json_writer.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

// A field `numerics`: loss scale, blocks in each format, overflows in short.
void put_numerics(JsonWriter& json, const Snapshot& snapshot);

// Everything, block by block.
std::string numerics_json(const Snapshot& snapshot);

}  // namespace cox::metrics
