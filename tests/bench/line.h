// Prints benchmark results: one JSON object a line on stdout, and no other output there.
// scripts/bench passes the lines on; report.py turns them into pages. A line without a limit
// explains the goal and is not judged. Any thread; plain values.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace cox::bench {

enum class Better { lower, higher };

class Line {
 public:
  Line(std::string_view goal, double value, std::string_view unit);

  Line& limit(double value, Better better = Better::lower);
  // Sets the better direction of a line without a limit.
  Line& better(Better better);
  // Adds a fact or setting of the measurement. Keys keep the order of the calls.
  Line& with(std::string_view key, std::string_view text);
  Line& with(std::string_view key, double value);

  std::string text() const;
  // Writes text() and a line feed to stdout.
  void print() const;

 private:
  void add(std::string_view key, const std::string& value);

  std::string head_;
  std::string limit_ = "null";
  std::string unit_;
  Better better_ = Better::lower;
  std::string config_;
};

// Returns the value at or below which the fraction `part` (0 .. 1) of the samples lies. REQUIRES:
// `samples` is not empty.
double quantile(std::vector<double> samples, double part);

// A centre with a 95 % confidence interval of the true one.
struct Median {
  double value = 0;
  double low = 0;
  double high = 0;
};

// Returns the median with an interval from order statistics, which assumes nothing about the
// distribution. REQUIRES: `samples` is not empty.
Median median_of(std::vector<double> samples);

// Returns the centre of a symmetric distribution with outliers: the median of the means of all
// pairs, and its 95 % interval (Hodges and Lehmann 1963, by the signed-rank statistic). About as
// sharp as the mean, and as robust as a trimmed mean. Quadratic. REQUIRES: `samples` is not empty.
Median centre_of(const std::vector<double>& samples);

enum class Effort { full, quick };
// Returns Effort::quick when `--quick` is among the arguments.
Effort effort_of(int argc, const char* const* argv);

}  // namespace cox::bench
