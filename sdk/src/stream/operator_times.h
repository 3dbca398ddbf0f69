// From a tape that measured to what the planner knows of its region: the operators with their
// times, the storages with their bytes, and which saved tensors keep each of them.
//
//   Tape::measure() -> a forward pass -> close() -> measured_region() -> backward ->
//   learn_backward() -> planner::storage_front() -> choice_of() -> the tapes of later steps
//
// Thread rule: that of the tape while it records.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/planner/operator_graph.h"
#include "sdk/src/stream/region_meter.h"
#include "sdk/src/stream/tape.h"

namespace cox::detail {

struct MeasuredRegion {
  planner::OperatorGraph graph;  // is_held only where the tape itself must keep something
  // For each storage of the graph: the saved tensors that are kept or dropped with it.
  std::vector<std::vector<TapeRecords::SavedKey>> saved;
  std::shared_ptr<RegionMeter> meter;  // of its newest pass
};

// Returns the steady clock's time, for operators that run on the calling thread.
std::int64_t steady_ns();

// The order of storages is that in which they were made; behind them come those that operators
// saved without returning them. REQUIRES: the tape measured all of its region and is closed.
MeasuredRegion measured_region(const Tape& tape);

// Whether two passes through a block are alike: the same operators, storages and saved tensors,
// whatever their times.
bool is_alike(const planner::OperatorGraph& a, const planner::OperatorGraph& b);
// Takes the lesser time and bytes of each operator, and the meter of `newer`. REQUIRES: is_alike().
void take_lesser(MeasuredRegion& region, const MeasuredRegion& newer);

// Ends the measuring, and learns what backward takes about each operator. REQUIRES: the tape
// dropped all that need not be kept, and backward has ended.
void learn_backward(MeasuredRegion& region);

// Returns what tapes of passes like the measured one decide: saved tensors of storages that are not
// in `kept` are dropped, all others kept.
HoldChoice choice_of(const MeasuredRegion& region, const planner::KeptSet& kept);

}  // namespace cox::detail
