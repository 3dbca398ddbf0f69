// replay() runs the recorded operators that the wanted tensors depend on, in order, each in the
// recorded modes. A kept storage replaces the operators that made it. The caller owns the records
// and guards them.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "sdk/src/stream/tape_records.h"

namespace cox::detail {

// Remakes the dropped tensor `first`, and with it tensors saved by the same operator, tensors of
// the same storage, and tensors on the way. Puts each into Saved::found. Adds its own nanoseconds
// to `spent_ns`, unless null. Restores random generators, modes and statistics. Throws cox::Error
// if a tensor from outside was changed unseen by the stream, and any operator's exception.
// REQUIRES: `first` is wanted, and no other thread uses the records.
void replay(TapeRecords& records, std::int32_t first, std::atomic<std::int64_t>* spent_ns);

// RecordedResult names a tensor returned by a recorded operator. Element 0 if it is no list.
struct RecordedResult {
  TapeRecords::OperatorIndex maker = TapeRecords::kNone;
  std::int16_t output = 0;
  std::int16_t element = 0;
  friend bool operator==(const RecordedResult&, const RecordedResult&) = default;
};
// Tensors by operator and output; undefined after their release.
using RerunResults = std::vector<std::vector<std::vector<at::Tensor>>>;

// Runs all recorded operators again as the program did: shown to the stream, with history, from the
// current parameters. `ends` lists the results that the program released: one entry before each
// operator, and one after the last. Leaves all other results in `results`. Restores random
// generators, modes, statistics and tensors from outside. Throws cox::Error if operators did not
// make a tensor's history, and any operator's exception.
void rerun(TapeRecords& records, const std::vector<std::vector<RecordedResult>>& ends,
           RerunResults& results);

}  // namespace cox::detail
