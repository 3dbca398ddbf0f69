// Converts a measured tape for the planner: operators with times, storages with bytes, and the
// saved tensors that keep each storage.
//
//   Tape::measure() -> a forward pass -> close() -> measured_region() -> backward ->
//   learn_backward() -> planner::storage_front() -> choice_of() -> the tapes of later steps
//
// Thread rule: as for the tape while it records.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/planner/operator_graph.h"
#include "sdk/src/stream/region_meter.h"
#include "sdk/src/stream/tape.h"

namespace cox::detail {

struct MeasuredRegion {
  planner::OperatorGraph graph;  // is_held only if the tape itself must keep something
  // Saved tensors kept or dropped with each storage of the graph.
  std::vector<std::vector<TapeRecords::SavedKey>> saved;
  std::shared_ptr<RegionMeter> meter;  // the newest pass's
};

// Returns the steady clock's time, for operators that run on the calling thread.
std::int64_t steady_ns();

// Returns the tape's measured region. Storages are in the order of their creation, then those saved
// by operators without being returned. REQUIRES: the tape measured its whole region and is closed.
MeasuredRegion measured_region(const Tape& tape);

// Returns whether two passes through a block have the same operators, storages and saved tensors,
// whatever the times.
bool is_alike(const planner::OperatorGraph& a, const planner::OperatorGraph& b);
// Keeps the lesser time and bytes of each operator, and `newer`'s meter. REQUIRES: is_alike().
void take_lesser(MeasuredRegion& region, const MeasuredRegion& newer);

// Ends the measuring, and reads how much memory backward took for each operator. REQUIRES: the tape
// dropped every tensor that may be dropped, and backward has ended.
void learn_backward(MeasuredRegion& region);

// Returns the choice for tapes of similar passes: drops saved tensors of storages missing in
// `kept`, keeps all others.
HoldChoice choice_of(const MeasuredRegion& region, const planner::KeptSet& kept);

}  // namespace cox::detail
