// StageInterval records when a stage of a pipeline was busy. Plain value.
#pragma once

#include <cstdint>

namespace cox::diagnosis {

struct StageInterval {
  std::int32_t stage = 0;
  double start_seconds = 0;
  double end_seconds = 0;
};

}  // namespace cox::diagnosis
