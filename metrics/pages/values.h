// Values of a page by name, for the templates of this folder (template.h). Topics and commands
// compute the values; a template places them. A record owns its values, but not the names. Pure;
// any thread.
#pragma once

#include <algorithm>
#include <concepts>
#include <initializer_list>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace cox::metrics {

// Markup is finished HTML. Values of this type alone are not escaped, and may stand only between
// tags.
struct Markup {
  std::string html;
};

class Record;
using List = std::vector<Record>;

// Value is text, markup, a flag or a list of records. A whole number becomes text.
class Value {
 public:
  // Defined where Record is complete.
  Value(std::string text);
  Value(std::string_view text);
  Value(const char* text);
  Value(Markup markup);
  Value(List records);
  Value(Record record);  // a list of one
  Value(std::integral auto number) requires(!std::same_as<decltype(number), bool>);
  Value(std::same_as<bool> auto flag);

  // Returns whether a section of this value is rendered.
  bool is_set() const { return is_set_ || !text_.empty() || !records_.empty(); }
  bool is_markup() const { return is_markup_; }
  const std::string& text() const { return text_; }
  const List& records() const { return records_; }

 private:
  std::string text_;
  List records_;
  bool is_markup_ = false;
  bool is_set_ = false;
};

struct Field {
  std::string_view name;  // must outlive the record; a literal
  mutable Value value;    // mutable, so that braces can move from it
};

// Record has the values of a template, or of one round of a section, by name. A section can use the
// names of the enclosing records too.
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

Value::Value(std::integral auto number) requires(!std::same_as<decltype(number), bool>)
    : text_(std::to_string(number)) {}

Value::Value(std::same_as<bool> auto flag) : is_set_(flag) {}

// Returns the values of tag.html, a short word on a coloured ground, and of the rows of notes.html.
// `css_class` is good, warn, bad, calm or empty.
Record tag(std::string_view css_class, std::string_view text);

// Returns a text with the number of rows after the first `shown`; empty if there are none.
std::string more_text(std::size_t rows, std::size_t shown);

// Returns make(item) of the first items.
template <class Range, class Make>
List list_of(const Range& items, Make make, std::size_t most = static_cast<std::size_t>(-1)) {
  List out;
  out.reserve(std::min(most, std::size(items)));
  for (const auto& item : items) {
    if (out.size() == most) break;
    out.push_back(make(item));
  }
  return out;
}

// Returns make(item) of the last items, the newest of a history, in reverse order.
template <class Range, class Make>
List newest_of(const Range& items, Make make, std::size_t most = static_cast<std::size_t>(-1)) {
  List out;
  out.reserve(std::min(most, std::size(items)));
  for (auto item = std::rbegin(items); item != std::rend(items) && out.size() < most; ++item)
    out.push_back(make(*item));
  return out;
}

// Returns one record for a section around rows: the `rows`, and the number of further rows as
// `more` if `all` is given. Returns an empty list if there are no rows.
List with_rows(List rows, std::size_t all = 0);

}  // namespace cox::metrics
