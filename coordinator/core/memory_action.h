// MemoryAction: what is done with the activations of a block between its forward and its backward.
// No action changes a bit of a gradient. Plain enum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace cox {

// Values are part of the mask: two bits each, never renumber.
enum class MemoryAction : std::uint8_t { keep = 0, recompute = 1, offload = 2, tile = 3 };

inline constexpr std::array<std::string_view, 4> kMemoryActionNames = {"keep", "recompute",
                                                                       "offload", "tile"};
constexpr std::string_view to_string(MemoryAction a) {
  return kMemoryActionNames[static_cast<std::size_t>(a)];
}

// A set of actions: bit a set = MemoryAction a is in it.
using ActionSet = std::uint8_t;
inline constexpr ActionSet kEveryAction = 0xF;
constexpr ActionSet only(MemoryAction a) {
  return static_cast<ActionSet>(1u << static_cast<unsigned>(a));
}
constexpr bool contains(ActionSet set, MemoryAction a) {
  return (static_cast<unsigned>(set) >> static_cast<unsigned>(a) & 1u) != 0;
}
constexpr ActionSet without(ActionSet set, MemoryAction a) {
  return static_cast<ActionSet>(set & ~only(a));
}

}  // namespace cox
