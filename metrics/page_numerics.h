// The parts of the status page's section on numerics. Of this folder only. Pure.
#pragma once

#include <string>

#include "metrics/snapshot.h"

namespace cox::metrics {

// "q1": the colour of a format.
std::string format_class(Precision format);
// "bf16", "bf16, fp16 next".
std::string format_text(const BlockNumerics& block);

// One cell a block with its format as letters and colour, and the key to them.
std::string numerics_cells(const Snapshot& snapshot);

// What is known of every block. In large models neighbours of one format share a row, for which
// the worst of them speaks; a block that overflowed lately has a row of its own.
std::string numerics_table(const Snapshot& snapshot);

}  // namespace cox::metrics
