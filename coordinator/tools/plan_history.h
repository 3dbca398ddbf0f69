// PlanHistory: the plans of a job with what changed and why, read from the journal that lies in its
// run directory, for pages about the run. Bounded: the first plans and the newest ones are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace cox::tools {

struct PlanEvent {
  std::uint32_t incarnation = 0;     // start of the job, from 1
  std::uint64_t plan = 0;            // its number
  std::uint64_t round = 0;           // in which it went out; 0 = with the start
  std::uint64_t step = 0;            // newest one that a rank had closed then
  std::vector<std::string> changes;  // a line each
  std::vector<std::string> reasons;  // a sentence each
};

struct PlanHistory {
  std::vector<PlanEvent> events;  // in the order of the journal
  std::size_t left_out = 0;       // between the first and the newest ones
  std::string gap;                // why the journal could not be read to its end; empty = it was
};

// Reads all of the journal. One without plans, and a run directory without a journal, give no
// events and no gap.
PlanHistory plan_history(const std::filesystem::path& run);

}  // namespace cox::tools
