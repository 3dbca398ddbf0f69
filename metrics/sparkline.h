// sparkline() computes a curve of recent rounds for inline SVG: gaps and marks where a value is not
// finite, dashed lines where another plan took over, and a sentence for readers who do not see it.
// Pure.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "metrics/pages/values.h"

namespace cox::metrics {

struct Curve {
  std::string_view name;           // "Loss"
  std::vector<double> values;      // oldest first
  std::vector<std::size_t> marks;  // indexes at which another plan took over
  std::string (*format)(double) = nullptr;
  double flat_ratio = 0.1;  // a curve that moves less than this part of its level looks flatter
};

// Returns the values of sparkline.html: the SVG and, below it, the range that it covers; a sentence
// instead for fewer than two finite values.
Record sparkline(const Curve& curve);

}  // namespace cox::metrics
