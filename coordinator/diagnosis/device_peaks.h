// What devices can do in dense 16-bit matrix products, by the vendors' data sheets as of June 2026.
#pragma once

#include <optional>
#include <string_view>

namespace cox::diagnosis {

struct DevicePeak {
  std::string_view device;  // the name in the table
  double flops = 0;         // FLOP/s
};

// Returns the entry with the longest name that is part of `name`, in upper or lower case: "NVIDIA
// L40S" is no L40 and no L4.
std::optional<DevicePeak> device_peak(std::string_view name);

}  // namespace cox::diagnosis
