// The parts of the JSON documents that speak of activation memory. What is not known is null. Pure.
#pragma once

#include "metrics/json_writer.h"
#include "metrics/snapshot.h"

namespace cox::metrics {

// A field `memory`: null where memory is not planned.
void put_memory(JsonWriter& json, const Snapshot& snapshot);

// A field `held_bytes`: what every rank holds beside activations.
void put_held(JsonWriter& json, const HeldBytes& held);

// Fields of one rank, measured and predicted.
void put_rank_memory(JsonWriter& json, const Snapshot& snapshot, const RankRow& row);

// A field `ranks_by_action` of one block, actions of no rank left out.
void put_action_ranks(JsonWriter& json, const ActionRanks& ranks);

}  // namespace cox::metrics
