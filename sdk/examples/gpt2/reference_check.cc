#include "sdk/examples/gpt2/reference_check.h"

#include <cmath>
#include <limits>

namespace gpt2 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

void raise(Worst& worst, double found, const std::string& where) {
  if (found <= worst.deviation && worst.where != "nothing") return;
  worst = {.deviation = found, .where = where};
}

}  // namespace

double deviation(double expected, double found, Deviation kind) {
  const double difference = std::abs(found - expected);
  if (!std::isfinite(difference)) return kInfinity;
  const double size = std::abs(expected);
  return kind == Deviation::relative && size > 0 ? difference / size : difference;
}

Worst worst_of(const std::vector<double>& expected, const std::vector<double>& found,
               const std::string& item, Deviation kind) {
  if (expected.size() != found.size()) {
    return {.deviation = kInfinity, .where = "the number of values"};
  }
  Worst worst;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    raise(worst, deviation(expected[i], found[i], kind), item + " " + std::to_string(i));
  }
  return worst;
}

Worst worst_of(const std::map<std::string, double>& expected,
               const std::map<std::string, double>& found) {
  Worst worst;
  for (const auto& [name, value] : expected) {
    const auto other = found.find(name);
    const bool missing = other == found.end();
    raise(worst, missing ? kInfinity : deviation(value, other->second, Deviation::relative), name);
  }
  for (const auto& [name, value] : found) {
    if (!expected.contains(name)) raise(worst, kInfinity, name);
  }
  return worst;
}

}  // namespace gpt2
