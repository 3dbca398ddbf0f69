// Strict JSON: the reader of files from outside, and the one writer of JSON. Files may be hostile:
// safetensors headers, model configurations, memory profiles, recorded runs. nlohmann-json does the
// lexing; only json.cc includes its headers.
//
// Strict means RFC 8259 and no more: UTF-8 only, no duplicate names in an object, no comments, no
// trailing commas, no NaN, only white space after the value, at most 64 levels of nesting. Errors
// are data_loss and name the byte. Pure functions and values; one thread per object.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/io/file.h"

namespace cox::io {

enum class JsonKind { null, boolean, number, string, array, object };

// Returns "null", "a truth value", "a number", "a text", "an array" or "an object", for messages.
std::string_view to_string(JsonKind kind);

// JsonScalar is a value other than an array or object. `string` is valid during the call that
// passes the scalar.
struct JsonScalar {
  JsonKind kind = JsonKind::null;
  bool boolean = false;
  double number = 0;
  // Set if the number has digits only (no sign, fraction or exponent) and is below 2^64.
  std::optional<std::uint64_t> whole{};
  std::string_view string{};
};

// JsonEvents receives a document piece by piece, in document order. A reader can thus check a
// hostile document early and keep only the parts that it needs. Each call returns ok or an error,
// which ends the reading. Names within one object are already checked to be different.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual Status begin(JsonKind kind) = 0;  // array or object
  virtual Status name(std::string_view name) = 0;
  virtual Status value(const JsonScalar& scalar) = 0;
  virtual Status end() = 0;  // ends the innermost array or object
};

// Reads all of `text`. Errors of `events` are returned with the byte's position in front.
Status read_json(std::string_view text, JsonEvents& events);

// Reads a document that is not in memory as a whole. Holds one piece and the open arrays and
// objects. Returns data_loss for a single name, text or number of more than kMaxJsonTokenBytes.
inline constexpr std::size_t kMaxJsonTokenBytes = std::size_t{16} << 20;
Status read_json(const NextBytes& next, JsonEvents& events);

struct JsonMember;

// Json is a parsed document. Numbers are doubles; read_json() gives integers beyond 2^53 exactly.
struct Json {
  JsonKind kind = JsonKind::null;
  bool boolean = false;
  double number = 0;
  std::string string;
  std::vector<Json> items;          // if an array
  std::vector<JsonMember> members;  // if an object, in document order

  // Returns the member with the name, or null if there is none or the value is not an object.
  const Json* find(std::string_view name) const;
};

struct JsonMember {
  std::string name;
  Json value;
};

// Parses a whole document of at most `max_bytes` and about a million values.
Result<Json> parse_json(std::string_view text, std::size_t max_bytes = std::size_t{16} << 20);

// JsonStream names a list too long for a tree: the member `array` of the root object. Each item
// goes to `take` as it is read. An error of `take` ends the reading.
struct JsonStream {
  std::string_view array;
  std::function<Status(const Json& item)> take;
};

// Parses a document and leaves the streamed array empty. The limit of values applies to the rest of
// the document, and to each item separately.
Result<Json> parse_json(std::string_view text, std::size_t max_bytes, const JsonStream& stream);

// Returns the text with null in place of the bare words NaN, Infinity and -Infinity. Other writers
// use the words for numbers that are not finite.
std::string strict_json(std::string_view text);

// Returns `text` as a quoted JSON string. Escapes control characters, and replaces each byte that
// is not UTF-8 with U+FFFD.
std::string json_string(std::string_view text);

// Returns the shortest text that reads back as the same number, or "null" if the number is not
// finite.
std::string json_number(double value);
std::string json_number(float value);

// JsonWriter writes JSON text piece by piece, with commas and escapes, and null for non-finite
// numbers. REQUIRES: the caller opens and closes objects and arrays in order.
class JsonWriter {
 public:
  JsonWriter& begin_object() { return open('{'); }
  JsonWriter& end_object() { return close('}'); }
  JsonWriter& begin_array() { return open('['); }
  JsonWriter& end_array() { return close(']'); }
  JsonWriter& key(std::string_view name);

  JsonWriter& value(std::string_view text) { return raw(json_string(text)); }
  JsonWriter& value(const char* text) { return raw(json_string(text)); }
  JsonWriter& value(double number) { return raw(json_number(number)); }
  JsonWriter& value(float number) { return raw(json_number(number)); }
  JsonWriter& value(bool flag) { return raw(flag ? "true" : "false"); }
  template <std::integral Number>
  JsonWriter& value(Number number) {
    return raw(std::to_string(number));
  }
  template <class Tag, class Rep>
  JsonWriter& value(StrongId<Tag, Rep> id) {
    return value(id.value());
  }
  // Writes null for an empty optional.
  template <class Value>
  JsonWriter& value(const std::optional<Value>& v) {
    return v ? value(*v) : null();
  }
  JsonWriter& null() { return raw("null"); }

  template <class Value>
  JsonWriter& field(std::string_view name, const Value& v) {
    return key(name).value(v);
  }
  // REQUIRES: `json` is valid JSON.
  JsonWriter& raw(std::string_view json);

  // Starts a new line, indented by `indent` blanks, before the next piece.
  JsonWriter& new_line(std::size_t indent = 0);

  std::string take() { return std::move(out_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();

  std::string out_;
  std::string line_break_;  // written before the next piece
  enum class Last { nothing, key, value } last_ = Last::nothing;
};

}  // namespace cox::io
