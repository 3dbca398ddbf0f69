// Writes JSON text piece by piece: commas, escapes and non-finite numbers are its business. The
// caller opens and closes objects and arrays in order. Value type, one thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace cox::metrics {

// `text` with quotes around it; control characters and bytes that are not UTF-8 are replaced.
std::string json_string(std::string_view text);

// Shortest form that reads back; "null" when not finite.
std::string json_number(double value);
std::string json_number(float value);

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
  JsonWriter& null() { return raw("null"); }

  template <class Value>
  JsonWriter& field(std::string_view name, const Value& v) {
    return key(name).value(v);
  }
  // `json` must be valid JSON.
  JsonWriter& raw(std::string_view json);

  std::string take() { return std::move(out_); }

 private:
  JsonWriter& open(char bracket);
  JsonWriter& close(char bracket);
  void separate();

  std::string out_;
  enum class Last { nothing, key, value } last_ = Last::nothing;
};

}  // namespace cox::metrics
