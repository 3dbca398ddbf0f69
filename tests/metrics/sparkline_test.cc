#include "metrics/sparkline.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "metrics/format.h"
#include "metrics/pages/template.h"
#include "text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::string drawn(const Curve& curve) {
  return render("sparkline.html", sparkline(curve));
}

}  // namespace

TEST_SUITE("metrics") {
  TEST_CASE("a curve breaks where a value is not finite, and says so") {
    const std::string svg = drawn({"Loss", {3, 2, kNaN, 1, 1}, {}, seconds_text});
    CHECK(contains(svg, "class=\"gap\""));
    CHECK(contains(svg, "not finite in 1"));
    CHECK_FALSE(contains(svg, "nan"));
    CHECK_FALSE(contains(svg, "NaN"));
  }

  TEST_CASE("without two finite values there is a sentence instead of a curve") {
    for (const std::vector<double>& values :
         {std::vector<double>{}, std::vector<double>{1}, std::vector<double>{kNaN, kNaN, 1}})
      CHECK_FALSE(contains(drawn({"Loss", values, {}, seconds_text}), "<svg"));
  }

  TEST_CASE("a constant curve lies in the middle") {
    CHECK(contains(drawn({"Skew", {1, 1, 1}, {}, times_text}),
                   "d=\"M0.0 22.0L150.0 22.0L300.0 22.0\""));
    CHECK(contains(drawn({"Zero", {0, 0}, {}, times_text}), "22.0"));
  }

  TEST_CASE("plan changes are marked") {
    CHECK(contains(drawn({"Loss", {3, 2, 1}, {1}, seconds_text}), "class=\"plan\" d=\"M150.0 0"));
  }
}
