#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "coordinator/core/json.h"
#include "coordinator/core/text.h"

namespace cox {
namespace {

constexpr std::size_t kMaxDepth = 64;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

void JsonReader::fail(const std::string& what) {
  if (!status_.ok()) return;
  status_ = data_loss("JSON, byte " + std::to_string(at_) + ": " + what);
}

void JsonReader::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') return;
    ++at_;
  }
}

bool JsonReader::take(char wanted) {
  skip_space();
  if (!ok() || at_ >= text_.size() || text_[at_] != wanted) return false;
  ++at_;
  return true;
}

void JsonReader::expect(char wanted) {
  if (take(wanted)) return;
  const std::string found = at_ < text_.size() ? "another byte" : "the end";
  fail("expected '" + std::string(1, wanted) + "', found " + found);
}

void JsonReader::expect_word(std::string_view word) {
  skip_space();
  if (text_.substr(at_, word.size()) != word) return fail("expected " + std::string(word));
  at_ += word.size();
}

JsonKind JsonReader::peek() {
  skip_space();
  if (at_ >= text_.size()) {
    fail("expected a value, found the end");
    return JsonKind::null;
  }
  const char c = text_[at_];
  if (c == '{') return JsonKind::object;
  if (c == '[') return JsonKind::array;
  if (c == '"') return JsonKind::string;
  if (c == 't' || c == 'f') return JsonKind::boolean;
  if (c == '-' || is_digit(c)) return JsonKind::number;
  if (c != 'n') fail("expected a value, found another byte");
  return JsonKind::null;
}

void JsonReader::begin(char open) {
  expect(open);
  if (used_.size() >= kMaxDepth)
    fail("nested deeper than " + std::to_string(kMaxDepth) + " levels");
  if (ok()) used_.push_back(false);
}

void JsonReader::begin_object() {
  begin('{');
}
void JsonReader::begin_array() {
  begin('[');
}

bool JsonReader::next_in(char close) {
  if (!ok() || used_.empty()) return false;
  if (take(close)) {
    used_.pop_back();
    return false;
  }
  if (used_.back()) expect(',');
  used_.back() = true;
  return ok();
}

bool JsonReader::next_item() {
  return next_in(']');
}

bool JsonReader::next_member(std::string& name) {
  if (!next_in('}')) return false;
  name = read_string();
  expect(':');
  return ok();
}

void JsonReader::finish() {
  skip_space();
  if (at_ != text_.size()) fail("expected the end, found more bytes behind the value");
}

bool JsonReader::read_bool() {
  const bool yes = take('t');
  if (yes) --at_;
  expect_word(yes ? "true" : "false");
  return yes && ok();
}

void JsonReader::read_null() {
  expect_word("null");
}

std::string_view JsonReader::number_token() {
  skip_space();
  const std::size_t first = at_;
  const auto digits = [&] {
    const std::size_t start = at_;
    while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
    if (at_ == start) fail("expected a digit");
  };
  const auto next_is = [&](char c) { return at_ < text_.size() && text_[at_] == c; };
  if (next_is('-')) ++at_;
  const bool leading_zero = next_is('0');
  const std::size_t integer = at_;
  digits();
  if (leading_zero && at_ - integer > 1) fail("a number must not start with 0");
  if (next_is('.')) {
    ++at_;
    digits();
  }
  if (next_is('e') || next_is('E')) {
    ++at_;
    if (next_is('+') || next_is('-')) ++at_;
    digits();
  }
  return ok() ? text_.substr(first, at_ - first) : std::string_view{};
}

double JsonReader::read_number() {
  if (!ok()) return 0;
  const std::string token(number_token());
  if (!ok()) return 0;
  const double value = std::strtod(token.c_str(), nullptr);
  if (!std::isfinite(value)) fail("number " + token.substr(0, 40) + " is beyond double precision");
  return value;
}

std::uint64_t JsonReader::read_uint64() {
  if (!ok()) return 0;
  const std::string_view token = number_token();
  std::uint64_t value = 0;
  for (const char c : token) {
    const std::uint64_t digit = static_cast<std::uint64_t>(c - '0');
    if (!is_digit(c)) {
      fail("expected a whole number of 0 or more, found " + std::string(token.substr(0, 40)));
      return 0;
    }
    if (value > (UINT64_MAX - digit) / 10) {
      fail("number " + std::string(token.substr(0, 40)) + " is beyond 64 bits");
      return 0;
    }
    value = value * 10 + digit;
  }
  return value;
}

std::string JsonReader::read_string() {
  std::string out;
  expect('"');
  while (ok()) {
    if (at_ >= text_.size()) {
      fail("a string has no end");
      break;
    }
    const unsigned char c = static_cast<unsigned char>(text_[at_]);
    if (c == '"') {
      ++at_;
      return out;
    }
    if (c < 0x20) {
      fail("a control character inside a string");
    } else if (c == '\\') {
      read_escape(out);
    } else {
      read_utf8(out);
    }
  }
  return {};
}

void JsonReader::read_utf8(std::string& out) {
  const std::size_t length = utf8_length(text_.substr(at_));
  if (length == 0) return fail("bytes that are not UTF-8");
  out.append(text_.substr(at_, length));
  at_ += length;
}

std::uint32_t JsonReader::read_hex4() {
  if (text_.size() - at_ < 4) {
    fail("expected four hexadecimal digits");
    return 0;
  }
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = text_[at_];
    const char lower = static_cast<char>(c | 0x20);
    if (!is_digit(c) && (lower < 'a' || lower > 'f')) {
      fail("expected four hexadecimal digits");
      return 0;
    }
    value = value * 16 + static_cast<std::uint32_t>(is_digit(c) ? c - '0' : lower - 'a' + 10);
  }
  return value;
}

void JsonReader::read_escape(std::string& out) {
  static constexpr std::string_view kNames = "\"\\/bfnrt";
  static constexpr std::string_view kBytes = "\"\\/\b\f\n\r\t";
  const char c = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
  at_ = std::min(at_ + 2, text_.size());
  if (const std::size_t i = kNames.find(c); i != std::string_view::npos) {
    out.push_back(kBytes[i]);
    return;
  }
  if (c != 'u') return fail("an unknown escape in a string");
  std::uint32_t code = read_hex4();
  if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const std::uint32_t low = read_hex4();
    if (low < 0xDC00 || low > 0xDFFF) return fail("half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xD800 && code < 0xE000) {
    return fail("half of a surrogate pair");
  }
  append_utf8(out, code);
}

}  // namespace cox
