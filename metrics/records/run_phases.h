// RunPhases: the seconds that each rank of a run spent on the phases of its steps, as a run
// directory records them. Plain values.
//
//   steps.jsonl (records/run_steps.h) -> RunPhases -> whatif/run_model.h
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cox::diagnosis {

// In the order of a step, as run directories call them.
inline constexpr std::array<std::string_view, 7> kRunPhases = {
    "data", "forward", "backward", "compute", "optimizer", "other", "comm"};

struct RunStep {
  std::int64_t step = 0;
  std::array<double, kRunPhases.size()> seconds{};
};

struct RunPhases {
  std::vector<std::vector<RunStep>> of_ranks;  // [rank], in the order of the file
  std::vector<std::string> gaps;
};

}  // namespace cox::diagnosis
