#include "metrics/format.h"

#include <limits>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

TEST_SUITE("metrics") {
  TEST_CASE("numbers read as people write them") {
    CHECK(grouped(0) == "0");
    CHECK(grouped(999) == "999");
    CHECK(grouped(1234567) == "1,234,567");
    CHECK(seconds_text(0) == "0 s");
    CHECK(seconds_text(0.412) == "412 ms");
    CHECK(seconds_text(1.834) == "1.83 s");
    CHECK(seconds_text(4.1e-5) == "41.0 µs");
    CHECK(duration_text(43.9) == "43 s");
    CHECK(duration_text(95) == "1 min 35 s");
    CHECK(duration_text(7500) == "2 h 05 min");
    CHECK(duration_text(200000) == "2 d 07 h");
    CHECK(bytes_text(0) == "0 B");
    CHECK(bytes_text(1536) == "1.50 KiB");
    CHECK(bytes_text(std::uint64_t{5} << 40) == "5.00 TiB");
    CHECK(percent_text(0.416, 0) == "42 %");
    CHECK(times_text(1.236) == "1.24×");
    CHECK(rate_text(12340.4) == "12,340");
    CHECK(rate_text(8.43) == "8.4");
    CHECK(significant(0.01234, 3) == "0.0123");
    CHECK(significant(5.4e-9, 2) == "5.4e-09");
    CHECK(significant(2.47123, 4) == "2.471");
  }

  TEST_CASE("values that are not finite become words") {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double inf = std::numeric_limits<double>::infinity();
    CHECK(fixed(nan, 2) == "NaN");
    CHECK(significant(-inf, 3) == "-inf");
    CHECK(seconds_text(inf) == "inf");
    CHECK(rate_text(nan) == "–");
    CHECK(duration_text(nan) == "–");
  }

  TEST_CASE("times are in UTC") {
    CHECK(utc_text(UnixTime{0}) == "1970-01-01 00:00:00 UTC");
    CHECK(utc_text(UnixTime{1'780'000'000.9}) == "2026-05-28 20:26:40 UTC");
    CHECK(utc_text(UnixTime{3661}) == "1970-01-01 01:01:01 UTC");
    CHECK(utc_text(UnixTime{std::numeric_limits<double>::quiet_NaN()}) ==
          "1970-01-01 00:00:00 UTC");
  }
}
