// PolicyMode: how far a policy may go. Part of Config.
#pragma once

#include <cstdint>

namespace cox {

// observe: it decides and gives reasons, and changes nothing.
enum class PolicyMode : std::uint8_t { off = 0, observe = 1, on = 2 };

}  // namespace cox
