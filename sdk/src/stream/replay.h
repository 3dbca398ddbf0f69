// replay() runs recorded operators again: those that the wanted tensors depend on, in their order,
// each in the modes that it ran in. What is kept of a storage serves in place of the operators that
// made it.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "sdk/src/stream/tape_records.h"

namespace cox::detail {

// Makes the dropped tensor `first` of the saved ones again, and with it those that the same
// operator saved, that share its storage, or that lie on the way: each is in Saved::found
// afterwards. Leaves random generators, modes and statistics as they were. Throws cox::Error when a
// tensor from outside was changed in a way that the stream did not show, and whatever an operator
// throws. REQUIRES: `first` is wanted, and nobody else uses the records meanwhile.
// Adds the nanoseconds that it takes to `spent_ns`, unless that is null.
void replay(TapeRecords& records, std::int32_t first, std::atomic<std::int64_t>* spent_ns);

// A tensor that a recorded operator returned; element 0 where the result is no list.
struct RecordedResult {
  TapeRecords::OperatorIndex maker = TapeRecords::kNone;
  std::int16_t output = 0;
  std::int16_t element = 0;
  friend bool operator==(const RecordedResult&, const RecordedResult&) = default;
};
// By operator, by output: the tensors of the output, undefined where they are let go.
using RerunResults = std::vector<std::vector<std::vector<at::Tensor>>>;

// Runs all recorded operators again as the program did: shown to the stream, with history, from
// the parameters as they are now. `ends` has results that the program let go of: an entry for those
// before each operator, and one for those after the last; the others are in `results` afterwards.
// Leaves random generators, modes, statistics and tensors from outside as they were. Throws
// cox::Error when a tensor's history is not made by operators, and whatever an operator throws.
void rerun(TapeRecords& records, const std::vector<std::vector<RecordedResult>>& ends,
           RerunResults& results);

}  // namespace cox::detail
