// One number per rank, packed: which class a rank is in, which share of the batch it gets. Ranks
// are many and their numbers few, so the writer takes the shortest of three forms: runs of equal
// numbers, a pattern that repeats (rank modulo GPUs of a node), or all numbers in as few bits as
// they need. Pure; the reader treats its bytes as hostile.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/bytes.h"

namespace cox::wire {

enum class SequenceForm : std::uint8_t { runs = 1, packed = 2, repeated = 3 };

// Appends the count, the form and the numbers. Linear in their count.
void write_sequence(ByteWriter& out, std::span<const std::uint32_t> values);

// Reads one sequence. Empty on malformed bytes or a count above `max_count`; never allocates more
// than max_count numbers.
std::optional<std::vector<std::uint32_t>> read_sequence(ByteReader& in, std::size_t max_count);

}  // namespace cox::wire
