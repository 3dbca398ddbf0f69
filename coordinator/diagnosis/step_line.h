// StepLine: one line of a rank's steps.jsonl, as the readers of run directories pass it on.
//
//   steps.jsonl (io/step_lines.h) -> StepLine -> columns of a RankRecord (run_record.h)
//                                             -> lanes of a picture (rank_lanes.h)
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace cox::diagnosis {

// Where in a line a value stands; `own`: outside of the three objects that all tools write.
enum class StepSection : std::uint8_t { phases, scalars, memory, own };

// A number; true is 1, false 0, null absent() of run_record.h. Names are as they stand in the file.
struct StepValue {
  StepSection section = StepSection::own;
  std::string_view name;
  double value = 0;
};

// What a line says, valid during the call that passes it. `step` is a whole number of at most 2^53
// in magnitude; `timestamp` is Unix time in s, absent() where the line has none.
struct StepLine {
  double step = 0;
  double timestamp = 0;
  std::span<const StepValue> values;
};

// Returns the value of that name, or absent().
double value_in(const StepLine& line, StepSection section, std::string_view name);

}  // namespace cox::diagnosis
