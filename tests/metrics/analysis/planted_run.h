// Runs with causes that were planted in them, for the rules: seeded, the same everywhere.
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
  std::set<std::string> codes;  // that are right
  std::set<std::int32_t> slow;  // ranks that are slow
};

// 240 runs: quiet ones, single causes, two at once, and causes just above and below what counts.
std::vector<PlantedRun> planted_runs(std::uint64_t seed);

// 8 runs of each kind with what only our own rules find, and of kinds just below it: plans, the
// memory budget, loss scales, withheld formats, pinned shares, saves, lost rows.
std::vector<PlantedRun> own_planted_runs(std::uint64_t seed);

// A run of every two of the causes above together. What is right of it is not known.
std::vector<PlantedRun> paired_planted_runs(std::uint64_t seed);

}  // namespace cox::test
