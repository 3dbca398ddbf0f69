// What delayed FP8 scaling remembers of all blocks of one rank, as one row of numbers: for saves
// and snapshots, between steps. Thread rule: the thread that trains.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/precision/fp8_block.h"

namespace cox::detail {

using Fp8Blocks = std::vector<std::shared_ptr<Fp8Block>>;

// Number of blocks, then for each the length of its state and the state. Empty where no block
// remembers anything.
std::vector<double> pack_fp8(const Fp8Blocks& blocks);

// Takes over what pack_fp8() gave; an empty row makes all blocks forget. invalid_argument for other
// blocks, another recipe, or a damaged row; then nothing changes.
Status unpack_fp8(std::span<const double> row, const Fp8Blocks& blocks);

}  // namespace cox::detail
