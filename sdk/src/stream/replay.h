// replay() runs the recorded operators that the wanted tensors depend on. The operators run in
// order, each with its recorded gradient mode, autocast and random state. A kept storage replaces
// the operators that made it. The caller owns the records and guards them.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "sdk/src/stream/tape_records.h"

namespace cox::detail {

// Remakes the dropped saved tensor number `first`. Also remakes other wanted tensors: those saved
// by the same operator, those of the same storage, and those that the run computes anyway. Puts
// each into Saved::found. Adds the run's nanoseconds to `spent_ns`, unless null. Restores random
// generators, modes and running statistics.
//
// Throws cox::Error if a tensor from outside the region was changed by a write that the stream did
// not show. Passes on exceptions of operators. REQUIRES: Saved::is_wanted of `first`; no other
// thread uses the records.
void replay(TapeRecords& records, std::int32_t first, std::atomic<std::int64_t>* spent_ns);

// RecordedResult names a tensor returned by a recorded operator: the output, and the place in the
// output if the output is a list, else 0.
struct RecordedResult {
  TapeRecords::OperatorIndex maker = TapeRecords::kNone;
  std::int16_t output = 0;
  std::int16_t element = 0;
  friend bool operator==(const RecordedResult&, const RecordedResult&) = default;
};
// The tensors by operator, output and element; undefined after their release.
using RerunResults = std::vector<std::vector<std::vector<at::Tensor>>>;

// Runs all recorded operators again as the program did: shown to the stream, with autograd history,
// from the current parameters. `ends` has the results that the program released before each
// operator, and a last entry for those released after the last operator. Leaves all other results
// in `results`. Restores random generators, modes, statistics and tensors from outside the region.
// Throws cox::Error if a tensor has a history that no recorded operator made. Passes on exceptions
// of operators.
void rerun(TapeRecords& records, const std::vector<std::vector<RecordedResult>>& ends,
           RerunResults& results);

}  // namespace cox::detail
