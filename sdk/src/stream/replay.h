// replay() runs recorded operators again: those that the wanted tensors depend on, in their order,
// each in the modes that it ran in. What is kept of a storage serves in place of the operators that
// made it.
#pragma once

#include "sdk/src/stream/tape_records.h"

namespace cox::detail {

// Makes the dropped tensor `first` again, and with it those that the same operator saved, that
// share its storage, or that lie on the way: each is in Wanted::found afterwards. Leaves random
// generators, modes and statistics as they were. Throws cox::Error when a tensor from outside was
// changed in a way that the stream did not show, and whatever an operator throws. REQUIRES: `first`
// is wanted, and nobody else uses the records meanwhile.
void replay(TapeRecords& records, TapeRecords::SavedKey first);

}  // namespace cox::detail
