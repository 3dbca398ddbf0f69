#include <algorithm>
#include <cstdio>

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
  std::puts("| key | kind | range | unit | default | meaning |\n|---|---|---|---|---|---|");
  for (const ConfigOption& o : options) {
    std::printf("| %s | %s | %s | %s | %s | %s |\n", code(o.key).c_str(), o.kind.c_str(),
                cell(o.range).c_str(), o.unit.c_str(), code(o.fallback).c_str(),
                cell(o.help).c_str());
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
    const std::string unit = o.unit.empty() ? "" : " " + o.unit;
    std::printf("%-*s  %-*s  %s  [%s%s]\n", static_cast<int>(key_width), o.key.c_str(),
                static_cast<int>(default_width), o.fallback.c_str(), o.help.c_str(),
                o.range.c_str(), unit.c_str());
  }
  std::puts(
      "\nFrom a file (COX_CONFIG=FILE, lines of key = value), the environment (COX_GUARD_MODE=on)"
      "\nor flags (--cox.guard.mode=on); later ones win.");
}

}  // namespace

int config_command(Arguments arguments) {
  if (arguments.empty()) {
    print_table(config_options());
    return kDone;
  }
  if (arguments.size() == 1 && arguments[0] == "--markdown") {
    print_markdown(config_options());
    return kDone;
  }
  return complain("config: expected no argument or --markdown, found '" + arguments[0] + "'");
}

}  // namespace cox::tools
