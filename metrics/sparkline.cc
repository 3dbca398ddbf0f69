#include "metrics/sparkline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "metrics/format.h"

namespace cox::metrics {
namespace {

constexpr double kWidth = 300;
constexpr double kHeight = 44;
constexpr double kMargin = 3;

struct Extent {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  std::size_t count = 0;
};

Extent extent_of(const std::vector<double>& values) {
  Extent extent;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    extent.low = std::min(extent.low, value);
    extent.high = std::max(extent.high, value);
    ++extent.count;
  }
  return extent;
}

class Scale {
 public:
  Scale(const Extent& extent, const Curve& curve)
      : extent_(extent), points_(curve.values.size()), flat_ratio_(curve.flat_ratio) {}

  std::string x(std::size_t index) const {
    return fixed(kWidth * static_cast<double>(index) / static_cast<double>(points_ - 1), 1);
  }
  // Draws a curve that hardly moves as a flat line in the middle, because magnified noise misleads.
  std::string y(double value) const {
    const double centre = (extent_.low + extent_.high) / 2;
    const double span =
        std::max(extent_.high - extent_.low, std::abs(centre) * flat_ratio_ + 1e-12);
    return fixed(kHeight / 2 - (value - centre) / span * (kHeight - 2 * kMargin), 1);
  }

 private:
  Extent extent_;
  std::size_t points_;
  double flat_ratio_;
};

struct Paths {
  std::string curve;
  std::string area;
  std::string gaps;
};

void close_area(Paths& paths, const Scale& scale, std::size_t index) {
  if (!paths.area.empty() && paths.area.back() != 'Z')
    paths.area += fmt::format("V{}H{}Z", fixed(kHeight, 0), scale.x(index));
}

Paths paths_of(const std::vector<double>& values, const Scale& scale) {
  Paths paths;
  std::size_t start = values.size();  // start of the stretch being drawn; size() = none
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) {
      if (start != values.size()) close_area(paths, scale, start);
      start = values.size();
      paths.gaps += fmt::format("M{} {}v-6", scale.x(i), fixed(kHeight, 0));
      continue;
    }
    const bool first = start == values.size();
    const std::string at =
        fmt::format("{}{} {}", first ? "M" : "L", scale.x(i), scale.y(values[i]));
    if (first) start = i;
    paths.curve += at;
    paths.area += at;
  }
  if (start != values.size()) close_area(paths, scale, start);
  return paths;
}

std::string description(const Curve& curve, const Extent& extent) {
  std::string text =
      fmt::format("{} over the last {} rounds, between {} and {}", curve.name, curve.values.size(),
                  curve.format(extent.low), curve.format(extent.high));
  const std::size_t broken = curve.values.size() - extent.count;
  if (broken > 0) text += ", not finite in " + std::to_string(broken);
  return text;
}

}  // namespace

Record sparkline(const Curve& curve) {
  const Extent extent = extent_of(curve.values);
  const bool is_drawn = curve.values.size() >= 2 && extent.count >= 2;
  if (!is_drawn) return {{"is_drawn", false}};
  const Scale scale(extent, curve);
  const Paths paths = paths_of(curve.values, scale);
  const double last = curve.values.back();
  return {{"is_drawn", true},
          {"description", description(curve, extent)},
          {"marks", list_of(curve.marks,
                            [&](std::size_t mark) {
                              return Record{{"x", scale.x(mark)}};
                            })},
          {"area", paths.area},
          {"curve", paths.curve},
          {"gaps", paths.gaps},
          {"dot", std::isfinite(last)
                      ? "M" + scale.x(curve.values.size() - 1) + " " + scale.y(last) + "h0"
                      : ""},
          {"low", curve.format(extent.low)},
          {"high", curve.format(extent.high)},
          {"rounds", curve.values.size()}};
}

}  // namespace cox::metrics
