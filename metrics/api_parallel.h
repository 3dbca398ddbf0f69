// The parts of the JSON documents that speak of how ranks share the work. What is not known is
// null. Pure.
#pragma once

#include "metrics/json_writer.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

// A field of that name: least, median, 95th percentile, largest, and whose that is.
void put_spread(JsonWriter& json, std::string_view name, const Spread& spread);

// A field `data_parallel`.
void put_parallel(JsonWriter& json, const Snapshot& snapshot);

// Fields of one rank.
void put_rank_parallel(JsonWriter& json, const Snapshot& snapshot, const RankRow& row);

}  // namespace cox::metrics
