#include "coordinator/core/portable_math.h"

namespace cox {

// Taylor's series of x / 256, squared eight times.
double portable_exp(double x) {
  const double r = x / 256;
  double series = 1;
  for (int n = 14; n >= 1; --n) series = 1 + r / n * series;
  for (int i = 0; i < 8; ++i) series *= series;
  return series;
}

}  // namespace cox
