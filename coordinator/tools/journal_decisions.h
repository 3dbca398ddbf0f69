// read_decisions(): what the journal of a run directory says, for the commands of `cox` that judge
// or compare runs.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/diagnosis/run_record.h"

namespace cox::tools {

// quick: a journal of more than 256 MiB, which takes seconds to read, is passed over.
enum class JournalSize : std::uint8_t { quick, any };

// Reads journal.cox of the run directory once and adds to `run` the newest reasons of its policies
// and its plans. A directory without a journal adds nothing, a journal that is passed over or
// cannot be read to its end a gap.
void read_decisions(const std::string& directory, JournalSize size, diagnosis::RunRecord& run);

}  // namespace cox::tools
