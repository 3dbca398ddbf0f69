// Templates of the pages: the HTML, CSS, JavaScript and SVG files of this folder, embedded when the
// library is built (cmake/embed_pages.cmake). {{name}} is a value; {{#name}}...{{/name}} stands
// once for each record of a list, or once where a flag or a text is set; {{^name}}...{{/name}}
// stands where it is not; {{>file}} is another file. The parser follows the HTML around each value,
// so that a value is escaped for its place. Templates are immutable; any thread may render them.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::metrics {

// Markup is HTML already. Only a value of this type is not escaped, and only between tags.
struct Markup {
  std::string html;
};

class Record;
using List = std::vector<Record>;

// Value is text, markup, a flag or a list of records. A whole number becomes text.
class Value {
 public:
  Value(std::string text) : held_(std::move(text)) {}
  Value(std::string_view text) : held_(std::string(text)) {}
  Value(const char* text) : held_(std::string(text)) {}
  Value(Markup markup) : held_(std::move(markup)) {}
  Value(std::integral auto number) requires(!std::same_as<decltype(number), bool>)
      : held_(std::to_string(number)) {}
  Value(std::same_as<bool> auto flag) : held_(flag) {}
  Value(List records);
  Value(Record record);  // a list of one

  bool is_set() const;  // whether a section of this value stands
  const std::string* text() const { return std::get_if<std::string>(&held_); }
  const Markup* markup() const { return std::get_if<Markup>(&held_); }
  const List* records() const { return std::get_if<List>(&held_); }

 private:
  std::variant<bool, std::string, Markup, List> held_;
};

struct Field {
  std::string_view name;  // must outlive the record; a literal
  mutable Value value;    // moved out of the braces that a record is made of
};

// Record is the values of a template, or of one round of a section, by name. A section sees the
// names of the records around it too.
class Record {
 public:
  Record() = default;
  Record(std::initializer_list<Field> fields);

  void add(std::string_view name, Value value) { fields_.push_back({name, std::move(value)}); }
  const Value* find(std::string_view name) const;
  const std::vector<Field>& fields() const { return fields_; }

 private:
  std::vector<Field> fields_;
};

// Returns make(item) of each item.
template <class Range, class Make>
List list_of(const Range& items, Make make) {
  List out;
  out.reserve(std::size(items));
  for (const auto& item : items) out.push_back(make(item));
  return out;
}

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

// Returns the values of tag.html, a short word on a coloured ground, and of the rows of notes.html;
// `css_class` is good, warn, bad, calm or empty.
Record tag(std::string_view css_class, std::string_view text);

// Returns one record with the rows, for a section around them; none where there are none.
List with_rows(List rows);

// Returns how many rows more than the first `shown` exist; empty where there are none.
std::string more_text(std::size_t rows, std::size_t shown);

// Returns `text` so that it is safe as text and inside quoted attributes; replaces invalid UTF-8.
std::string escape(std::string_view text);

}  // namespace cox::metrics
