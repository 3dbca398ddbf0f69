// sparkline() computes a curve of recent rounds for inline SVG. Values that are not finite leave
// gaps with marks, and a dashed line marks each change of plan. A sentence describes the curve for
// readers who do not see it. Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "metrics/pages/values.h"

namespace cox::metrics {

struct Curve {
  std::string_view name;           // "Loss"
  std::vector<double> values;      // oldest first
  std::vector<std::size_t> marks;  // indexes of the first values under another plan
  std::string (*format)(double) = nullptr;
  double flat_ratio = 0.1;  // curves that move less than this part of their level look flatter
};

// Returns the values of sparkline.html: the SVG and the curve's range below, or a sentence if fewer
// than two values are finite.
Record sparkline(const Curve& curve);

}  // namespace cox::metrics
