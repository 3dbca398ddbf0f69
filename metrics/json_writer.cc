#include "metrics/json_writer.h"

#include <charconv>
#include <cmath>

#include "coordinator/core/text.h"

namespace cox::metrics {
namespace {

void append_escaped(std::string& out, unsigned char c) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  if (c < 0x20 || c == 0x7f) {
    out += "\\u00";
    out += kHex[c >> 4];
    out += kHex[c & 15];
  } else {
    out += static_cast<char>(c);
  }
}

template <class Number>
std::string shortest(Number value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value);
  return std::string(text, end.ptr);
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : valid_utf8(text)) append_escaped(out, static_cast<unsigned char>(c));
  return out + '"';
}

std::string json_number(double value) {
  return shortest(value);
}

std::string json_number(float value) {
  return shortest(value);
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  out_ += json_string(name);
  out_ += ':';
  last_ = Last::key;
  return *this;
}

JsonWriter& JsonWriter::raw(std::string_view json) {
  separate();
  out_ += json;
  last_ = Last::value;
  return *this;
}

JsonWriter& JsonWriter::open(char bracket) {
  separate();
  out_ += bracket;
  last_ = Last::nothing;
  return *this;
}

JsonWriter& JsonWriter::close(char bracket) {
  out_ += bracket;
  last_ = Last::value;
  return *this;
}

void JsonWriter::separate() {
  if (last_ == Last::value) out_ += ',';
}

}  // namespace cox::metrics
