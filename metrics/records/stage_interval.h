// StageInterval: when a stage of a pipeline was busy, as files of pipelines say it. Plain value.
#pragma once

#include <cstdint>

namespace cox::diagnosis {

// A stage of a pipeline is busy from one moment to another.
struct StageInterval {
  std::int32_t stage = 0;
  double start_seconds = 0;
  double end_seconds = 0;
};

}  // namespace cox::diagnosis
