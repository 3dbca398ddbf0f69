// The dtypes that safetensors files and torch have in common. Pure functions.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>

namespace cox::detail {

// The format's spelling, or an empty text if the format has none that this writer uses.
std::string_view dtype_name(c10::ScalarType type);

std::optional<c10::ScalarType> dtype_from_name(std::string_view name);

}  // namespace cox::detail
