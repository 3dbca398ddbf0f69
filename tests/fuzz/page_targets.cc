// Values on a page: text from a job or a run directory, in every place of a template.
#include <algorithm>
#include <array>
#include <string>

#include "coordinator/core/never_destroyed.h"
#include "coordinator/core/text.h"
#include "metrics/pages/template.h"
#include "tests/fuzz/targets.h"

namespace cox::fuzz {
namespace {

using metrics::PageFile;
using metrics::Templates;

constexpr std::array<PageFile, 4> kPages = {{{"text", "{{v}}"},
                                             {"attribute", "<p title=\"{{v}}\"></p>"},
                                             {"url", "<a href=\"{{v}}\"></a>"},
                                             {"style", "<p style=\"width:{{v}}\"></p>"}}};

// Returns what stands on the page in the place of the value.
std::string shown(const PageFile& page, std::string_view value) {
  static const Templates& templates = never_destroyed(Templates::parse(kPages).value());
  const std::size_t begin = page.text.find("{{");
  const std::size_t behind = page.text.size() - page.text.find("}}") - 2;
  std::string out;
  templates.render(page.name, {{"v", value}}, out);
  expect(out.size() >= begin + behind, "the page around a value to stay");
  expect(out.starts_with(page.text.substr(0, begin)), "a page to begin as its template");
  expect(out.ends_with(page.text.substr(page.text.size() - behind)), "a page to end so, too");
  return out.substr(begin, out.size() - begin - behind);
}

}  // namespace

Taken fuzz_page(std::string_view bytes) {
  for (const PageFile& page : kPages) {
    const std::string text = shown(page, bytes);
    expect(is_utf8(text), "valid text");
    expect(text.find_first_of("<>\"'") == std::string::npos, "no markup from a value");
    expect(std::ranges::none_of(text, [](signed char c) { return c >= 0 && c < ' '; }),
           "no control characters");
    if (page.name == "style")
      expect(text.find_first_not_of("0123456789.-") == std::string::npos, "a number in a style");
    const std::string scheme = text.substr(0, text.find_first_of(":/?#"));
    if (page.name == "url" && scheme.size() < text.size() && text[scheme.size()] == ':')
      expect(scheme == "http" || scheme == "https", "no other scheme in an address");
  }
  return Taken::yes;
}

}  // namespace cox::fuzz
