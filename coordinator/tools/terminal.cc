#include "coordinator/tools/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <string_view>

namespace cox::tools {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::size_t columns_of_terminal() {
  const std::string_view text = variable("COLUMNS");
  std::size_t columns = 0;
  std::from_chars(text.data(), text.data() + text.size(), columns);
  if (columns > 0) return columns;
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : Terminal().columns;
}

}  // namespace

Terminal terminal_of(ColourWish wish) {
  Terminal out{columns_of_terminal(), Terminal::Colour::none};
  const bool is_wanted = !variable("FORCE_COLOR").empty() ||
                         (variable("NO_COLOR").empty() && isatty(STDOUT_FILENO) == 1);
  if (wish == ColourWish::always || (wish == ColourWish::automatic && is_wanted))
    out.colour = Terminal::Colour::ansi;
  return out;
}

}  // namespace cox::tools
