#include "metrics/step_row.h"

#include <algorithm>

namespace cox::metrics {

bool StepRow::add_scalar(std::string_view name, double value) {
  name = name.substr(0, std::tuple_size_v<decltype(NamedScalar::name)> - 1);
  if (name.empty()) return false;
  for (NamedScalar& scalar : scalars) {
    const std::string_view taken(scalar.name.data());
    if (!taken.empty() && taken != name) continue;
    std::copy(name.begin(), name.end(), scalar.name.begin());
    scalar.value = value;
    return true;
  }
  return false;
}

}  // namespace cox::metrics
