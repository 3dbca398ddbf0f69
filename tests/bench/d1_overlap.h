// Measures how much of averaging the gradients lies behind the backward pass, over the steps of a
// turn. Plain value; std only.
#pragma once

#include <string>
#include <vector>

#include "coxswain/reducer.h"

namespace cox::bench {

class D1Overlap {
 public:
  // Adds a step. A new layout of buckets discards the steps before.
  void add(const ReductionReport& report);
  // Returns a JSON object of means over the steps, in seconds. "due" is the time from the start of
  // each bucket but the last until it was done; "hidden" is the part of "due" within the backward
  // pass.
  std::string text() const;

 private:
  bool has_layout_of(const ReductionReport& report) const;

  std::vector<BucketReport> sums_;
  double steps_ = 0;
  double backward_ = 0;
  double exposed_ = 0;
  double due_ = 0;
  double hidden_ = 0;
};

}  // namespace cox::bench
