#include <fmt/core.h>

#include <algorithm>

#include "coordinator/core/config.h"
#include "coordinator/tools/commands.h"

namespace cox::tools {
namespace {

// A bar within a cell would end it.
std::string cell(std::string text) {
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2) {
    text.insert(at, 1, '\\');
  }
  return text;
}

std::string code(const std::string& text) {
  return text.empty() ? "" : "`" + cell(text) + "`";
}

void print_markdown(const std::vector<ConfigOption>& options) {
  fmt::print("| key | kind | range | unit | default | meaning |\n|---|---|---|---|---|---|\n");
  for (const ConfigOption& o : options) {
    fmt::print("| {} | {} | {} | {} | {} | {} |\n", code(o.key), o.kind, cell(o.range), o.unit,
               code(o.fallback), cell(o.help));
  }
}

void print_table(const std::vector<ConfigOption>& options) {
  std::size_t key_width = 0;
  std::size_t default_width = 0;
  for (const ConfigOption& o : options) {
    key_width = std::max(key_width, o.key.size());
    default_width = std::max(default_width, o.fallback.size());
  }
  for (const ConfigOption& o : options) {
    fmt::print("{:<{}}  {:<{}}  {}  [{}{}{}]\n", o.key, key_width, o.fallback, default_width,
               o.help, o.range, o.unit.empty() ? "" : " ", o.unit);
  }
  fmt::print(
      "\nFrom a file (COX_CONFIG=FILE, lines of key = value), the environment (COX_GUARD_MODE=on)"
      "\nor flags (--cox.guard.mode=on); later ones win.\n");
}

}  // namespace

int config_command(ListFormat format) {
  const std::vector<ConfigOption> options = config_options();
  if (format == ListFormat::markdown)
    print_markdown(options);
  else
    print_table(options);
  return kDone;
}

}  // namespace cox::tools
