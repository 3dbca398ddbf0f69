// Our texts under a program's locale with decimal commas.
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <limits>
#include <random>
#include <string>

#include "coordinator/core/config.h"
#include "coordinator/core/text.h"
#include "tests/support/decimal_comma.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

[[gnu::format(printf, 1, 2)]] std::string printed(const char* format, ...) {
  char text[1500];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

}  // namespace

TEST_SUITE("core.text") {
  TEST_CASE("numbers in texts have points whatever the program's locale is") {
    const test::DecimalComma commas;
    if (!commas.has_c_locale()) MESSAGE("skipped for the C locale: none with a decimal comma here");
    if (commas.has_c_locale()) CHECK(printed("%.1f", 1.5) == "1,5");
    CHECK(concat(fixed(1.5, 1), " of ", general(2.5, 6), ", ", general(0.125, 3), ", ",
                 general(1e9, 3)) == "1.5 of 2.5, 0.125, 1e+09");
    CHECK(concat("weight ", 0.5, " of ", 1.25F) == "weight 0.500000 of 1.250000");
    CHECK(fixed(1234.5, 1) == "1234.5");
    CHECK(significant(1234.5678, 6) == "1234.57");
  }

  TEST_CASE("settings are read and written with points whatever the program's locale is") {
    const test::DecimalComma commas;
    Config config;
    REQUIRE(apply_text(config, "memory.budget = 0.75\n", "test").ok());
    CHECK(text(config).find("memory.budget = 0.75\n") != std::string::npos);
    CHECK_FALSE(apply_text(config, "run.price_per_device_hour = 0,75\n", "test").ok());
  }

  TEST_CASE("numbers are what printf makes of them") {
    std::mt19937_64 random(7);
    const double special[] = {0.0,
                              -0.0,
                              1e-300,
                              1.7976931348623157e308,
                              999999.5,
                              0.5,
                              std::numeric_limits<double>::infinity(),
                              -std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()};
    for (int i = 0; i < 3000; ++i) {
      const double value = i < 9 ? special[i]
                                 : std::ldexp(static_cast<double>(random()) - 9e18,
                                              static_cast<int>(random() % 160) - 140);
      const int digits = static_cast<int>(random() % 18);
      const auto whole = random() >> (random() % 64);
      CAPTURE(value);
      CAPTURE(digits);
      CHECK(concat(value) == printed("%f", value));
      CHECK(general(value, digits) == printed("%.*g", digits, value));
      if (!std::isnan(value)) CHECK(fixed(value, digits) == printed("%.*f", digits, value));
      CHECK(concat(whole, " ", -digits, " ", static_cast<long>(whole)) ==
            printed("%zu %d %ld", whole, -digits, static_cast<long>(whole)));
      CHECK(zero_padded(whole, 12) == printed("%012zu", whole));
    }
    CHECK(fixed(std::numeric_limits<double>::quiet_NaN(), 1) == "NaN");
  }
}
