// Compares lists and tables of numbers: returns the worst deviation and its place. Std only; pure.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace gpt2 {

enum class Deviation { relative, absolute };

struct Worst {
  double deviation = 0;  // infinity if a number is missing or not finite
  std::string where = "nothing";
};

// Returns |found - expected|, divided by |expected| if relative and expected is not 0; infinity for
// NaN.
double deviation(double expected, double found, Deviation kind);

// `item` names one element in Worst::where, as "step 3".
Worst worst_of(const std::vector<double>& expected, const std::vector<double>& found,
               const std::string& item, Deviation kind = Deviation::relative);

// REQUIRES: the keys are the same on both sides.
Worst worst_of(const std::map<std::string, double>& expected,
               const std::map<std::string, double>& found);

}  // namespace gpt2
