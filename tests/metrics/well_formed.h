// first_fault() checks the order of a page's tags, for tests of pages. Skips the text of scripts.
#pragma once

#include <cctype>
#include <cstddef>
#include <string>
#include <vector>

namespace cox::metrics {

// Returns "" if every tag is closed in order and every attribute is quoted.
inline std::string first_fault(const std::string& html) {
  std::vector<std::string> open;
  for (std::size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    if (html[at + 1] == '!') continue;
    std::size_t end = at + 1;
    for (char quote = 0; end < html.size() && (quote != 0 || html[end] != '>'); ++end) {
      if (html[end] == '<') return "< inside a tag near " + html.substr(at, 40);
      if (html[end] == '"') quote = quote == 0 ? '"' : 0;
    }
    if (end == html.size()) return "a tag without end";
    const bool closing = html[at + 1] == '/';
    std::size_t name_end = at + 1 + (closing ? 1 : 0);
    const std::size_t name_start = name_end;
    while (std::isalnum(static_cast<unsigned char>(html[name_end])) != 0) ++name_end;
    const std::string name = html.substr(name_start, name_end - name_start);
    if (closing) {
      if (open.empty() || open.back() != name) return "</" + name + "> closes nothing";
      open.pop_back();
    } else if (html[end - 1] != '/') {
      open.push_back(name);
      if (name == "script") at = html.find("</script>", end) - 1;
    }
  }
  return open.empty() ? "" : open.back() + " is never closed";
}

}  // namespace cox::metrics
