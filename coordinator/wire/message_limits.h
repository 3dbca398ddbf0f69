// Counts the parts of a serialised message before anything is allocated for them: an empty part
// costs two bytes on the wire and hundreds in memory. Walks tags and lengths only. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::wire {

// At most `most` occurrences of a length-delimited field in one message; `inside` applies to each.
struct FieldLimit {
  std::uint32_t field = 0;
  std::size_t most = 0;
  std::span<const FieldLimit> inside = {};
};

// data_loss when the bytes are no fields, resource_exhausted when a limit is exceeded.
Status check_limits(std::string_view message, std::span<const FieldLimit> limits);

}  // namespace cox::wire
