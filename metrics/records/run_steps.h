// The steps of a run directory (docs/run-directory.md) as what ranks spent on phases, for `cox
// whatif`. Reads our own directories and those of other tools for the same layout, line by line: of
// long runs the newest steps are kept. Files may be hostile. Blocks on the disk; one thread.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/records/run_phases.h"

namespace cox::io {

// Of all ranks together, so that the answer takes less than 256 MiB.
inline constexpr std::size_t kMostPhaseSteps = std::size_t{3} << 18;

// What a steps.jsonl says about phases. A line that is cut off at the end of the file is ignored;
// the other counts are of lines that were skipped.
struct PhaseLines {
  std::vector<diagnosis::RunStep> steps;  // in the order of the file; the newest of many
  std::size_t older = 0;                  // steps before these, left out because there are so many
  std::size_t damaged = 0;                // no step, or seconds that are no numbers
  std::size_t without_phases = 0;
  std::size_t unknown_phases = 0;  // names that are not in kRunPhases; the rest of the line counts
  std::size_t clock_ran_back = 0;  // the timestamp of a later step is earlier
};

// Non-finite scalars may be the bare words NaN, Infinity and -Infinity. Pure.
// REQUIRES: most_steps > 0.
PhaseLines parse_phase_lines(std::string_view lines, std::size_t most_steps = kMostPhaseSteps);

// Reads all rank<k>/steps.jsonl of a run, or the steps.jsonl of a single rank. What was skipped is
// told in `gaps`. Errors: those of folders_of_run() and read_step_file(), and invalid_argument: the
// folder of a rank is missing, by the numbers of the others or the world size in rank0/run.json;
// its waiting would pass for communication.
Result<diagnosis::RunPhases> read_run_phases(const std::filesystem::path& run);

}  // namespace cox::io
