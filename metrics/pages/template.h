// Templates of the pages: the HTML, CSS, JavaScript and SVG files of this folder. The build embeds
// the files (cmake/embed_pages.cmake). The parser follows the HTML around each value, so that each
// value is escaped for its place. Templates are immutable; any thread may render them.
//
//   {{name}}               a value
//   {{#name}}...{{/name}}  once per record of a list, or once if a flag or text is set
//   {{^name}}...{{/name}}  once if the flag, text or list is not set
//   {{>file}}              the contents of another file
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/pages/values.h"

namespace cox::metrics {

struct PageFile {
  std::string_view name;
  std::string_view text;
};

class Templates {
 public:
  // Returns invalid_argument, with the file in the message, for unclosed marks, parts that are
  // unknown or include themselves, sections that leave a tag open, and values in scripts, styles,
  // handlers, tags and unquoted attributes.
  static Result<Templates> parse(std::span<const PageFile> files);

  // Appends the page. A name without a value appears as "{{name}}", for which tests search.
  // REQUIRES: the page is one of the files.
  void render(std::string_view page, const Record& values, std::string& to) const;

  // Place is the position of a value in the HTML, which decides the escaping. A url keeps only
  // http, https and relative addresses. A style accepts only a number.
  enum class Place : std::uint8_t { text, attribute, url, style };
  enum class Kind : std::uint8_t { text, value, section, inverted };
  struct Node {
    Kind kind = Kind::text;
    std::string text;  // the name, or the text itself
    Place place = Place::text;
    std::size_t end = 0;  // of a section: the node after its last one
  };

 private:
  std::map<std::string_view, std::vector<Node>> pages_;
};

// Returns all files of this folder.
std::span<const PageFile> page_files();

// Returns a page of this folder.
std::string render(std::string_view page, const Record& values);

}  // namespace cox::metrics
