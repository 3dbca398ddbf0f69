// Templates of the pages: the HTML, CSS, JavaScript and SVG files of this folder, embedded when the
// library is built (cmake/embed_pages.cmake). {{name}} is a value; {{#name}}...{{/name}} stands
// once for each record of a list, or once where a flag or a text is set; {{^name}}...{{/name}}
// stands where it is not; {{>file}} is another file. The parser follows the HTML around each value,
// so that a value is escaped for its place. Templates are immutable; any thread may render them.
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
  // Returns invalid_argument, with the file in the message, for marks that do not close, parts that
  // do not exist or include themselves, sections that leave a tag open, and values in scripts,
  // styles, handlers, tags and attributes without quotes.
  static Result<Templates> parse(std::span<const PageFile> files);

  // Appends the page. A name that the values lack appears as "{{name}}", which tests search for.
  // REQUIRES: the page is one of the files.
  void render(std::string_view page, const Record& values, std::string& to) const;

  // A place decides how a value is escaped: a url keeps http, https and relative addresses, a style
  // takes a number.
  enum class Place : std::uint8_t { text, attribute, url, style };
  enum class Kind : std::uint8_t { text, value, section, inverted };
  struct Node {
    Kind kind = Kind::text;
    std::string text;  // the name, or the text itself
    Place place = Place::text;
    std::size_t end = 0;  // of a section: the node behind its last one
  };

 private:
  std::map<std::string_view, std::vector<Node>> pages_;
};

// Returns all files of this folder.
std::span<const PageFile> page_files();

// Returns a page of this folder.
std::string render(std::string_view page, const Record& values);

}  // namespace cox::metrics
