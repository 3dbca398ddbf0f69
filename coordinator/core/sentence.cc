#include <cassert>
#include <charconv>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <string_view>

#include "coordinator/core/text.h"

namespace cox {
namespace {

// One conversion of a format: "%08.3f".
struct Conversion {
  bool has_plus = false;
  bool has_zeros = false;  // in front, instead of blanks
  std::size_t width = 0;
  int precision = -1;  // -1 = none
  int longs = 0;       // letters l; the length z counts as one
  char letter = '\0';
};
static_assert(sizeof(std::size_t) == sizeof(long));

constexpr int kFromArgument = -2;  // a precision written as '*'

// Parses the conversion behind a '%', and moves `at` behind the conversion.
Conversion read_conversion(const char*& at) {
  const auto number = [&at] {
    int value = 0;
    for (; *at >= '0' && *at <= '9'; ++at) value = 10 * value + (*at - '0');
    return value;
  };
  Conversion found;
  for (; *at == '+' || *at == '0'; ++at) (*at == '+' ? found.has_plus : found.has_zeros) = true;
  found.width = static_cast<std::size_t>(number());
  if (*at == '.') {
    ++at;
    const bool is_given = *at == '*';
    if (is_given) ++at;
    found.precision = is_given ? kFromArgument : number();
  }
  for (; *at == 'l' || *at == 'z'; ++at) ++found.longs;
  found.letter = *at;
  if (*at != '\0') ++at;
  return found;
}

template <class Number>
std::string whole_text(Number value, int base) {
  char digits[72];
  const auto end = std::to_chars(digits, digits + sizeof digits, value, base);
  return std::string(digits, end.ptr);
}

std::string number_text(double value, const Conversion& how) {
  constexpr int kUsualPrecision = 6;
  constexpr std::size_t kMostDigits = 330;  // before the point of a double
  const std::chars_format format = how.letter == 'f'   ? std::chars_format::fixed
                                   : how.letter == 'e' ? std::chars_format::scientific
                                                       : std::chars_format::general;
  const int precision = how.precision < 0 ? kUsualPrecision : how.precision;
  std::string text(kMostDigits + static_cast<std::size_t>(precision), '\0');
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, format, precision);
  text.resize(static_cast<std::size_t>(end.ptr - text.data()));
  return text;
}

std::string padded(std::string text, const Conversion& how) {
  const bool is_text = how.letter == 's' || how.letter == 'c';
  if (how.has_plus && !is_text && !text.starts_with('-')) text.insert(0, "+");
  if (text.size() >= how.width) return text;
  const std::size_t missing = how.width - text.size();
  const bool has_sign = text.starts_with('-') || text.starts_with('+');
  if (!how.has_zeros || is_text) return text.insert(0, missing, ' ');
  return text.insert(has_sign ? 1 : 0, missing, '0');
}

// Arguments is the rest of a call's arguments. REQUIRES: the types match the format, which the
// compiler checks at each call.
class Arguments {
 public:
  explicit Arguments(std::va_list& list) : list_(list) {}

  int next_precision() { return va_arg(list_, int); }

  // Zeros in front belong to finite numbers only.
  std::string next(Conversion& how) {
    switch (how.letter) {
      case 'd':
      case 'i':
        return whole_text(next_signed(how.longs), 10);
      case 'u':
        return whole_text(next_unsigned(how.longs), 10);
      case 'x':
        return whole_text(next_unsigned(how.longs), 16);
      case 'c':
        return std::string(1, static_cast<char>(va_arg(list_, int)));
      case 's':
        return next_text(how.precision);
      case 'f':
      case 'e':
      case 'g':
        return next_number(how);
      default:
        assert(how.letter == '%');
        return "%";
    }
  }

 private:
  std::int64_t next_signed(int longs) {
    if (longs == 0) return va_arg(list_, int);
    return longs == 1 ? va_arg(list_, long) : va_arg(list_, long long);
  }
  std::uint64_t next_unsigned(int longs) {
    if (longs == 0) return va_arg(list_, unsigned);
    return longs == 1 ? va_arg(list_, unsigned long) : va_arg(list_, unsigned long long);
  }
  std::string next_text(int precision) {
    const std::string_view text = va_arg(list_, const char*);
    return std::string(precision < 0 ? text : text.substr(0, static_cast<std::size_t>(precision)));
  }
  std::string next_number(Conversion& how) {
    const double value = va_arg(list_, double);
    how.has_zeros = how.has_zeros && std::isfinite(value);
    return number_text(value, how);
  }

  std::va_list& list_;
};

}  // namespace

std::string sentence(const char* format, ...) {
  std::va_list list;
  va_start(list, format);
  Arguments arguments(list);
  std::string out;
  while (*format != '\0') {
    const char* at = format;
    while (*at != '\0' && *at != '%') ++at;
    out.append(format, at);
    format = at;
    if (*at == '\0') break;
    Conversion how = read_conversion(++format);
    if (how.precision == kFromArgument) how.precision = arguments.next_precision();
    const std::string text = arguments.next(how);
    out += padded(text, how);
  }
  va_end(list);
  return out;
}

}  // namespace cox
