// How wide a terminal is and whether it shows colours, for the commands of `cox` that draw panels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cox::tools {

enum class ColourWish : std::uint8_t { automatic, always, never };

struct Terminal {
  enum class Colour : std::uint8_t { none, ansi };
  std::size_t columns = 80;
  Colour colour = Colour::none;
};

// Returns what standard output and the variables COLUMNS, NO_COLOR and FORCE_COLOR say. A wish for
// colours counts most, then the variables.
Terminal terminal_of(ColourWish wish);

}  // namespace cox::tools
