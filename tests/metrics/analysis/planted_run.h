// Runs with planted causes for the rules: seeded, the same everywhere.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "metrics/records/run_record.h"

namespace cox::test {

struct PlantedRun {
  std::string kind;
  diagnosis::RunRecord run;
  std::set<std::string> codes;  // the right codes
  std::set<std::int32_t> slow;  // ranks that are slow
};

// Returns 240 runs: quiet ones, single causes, two at once, and causes just above and below the
// limits.
std::vector<PlantedRun> planted_runs(std::uint64_t seed);

// Returns 8 runs of each kind that only our own rules find, and of kinds just below the limits.
// Kinds: plans, the memory budget, loss scales, withheld formats, pinned shares, saves, lost rows.
std::vector<PlantedRun> own_planted_runs(std::uint64_t seed);

// Returns a run for every pair of the causes above. The right findings are unknown.
std::vector<PlantedRun> paired_planted_runs(std::uint64_t seed);

}  // namespace cox::test
