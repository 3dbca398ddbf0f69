#include "tests/bench/d1_overlap.h"

#include <algorithm>
#include <cstdio>

namespace cox::bench {
namespace {

std::string field(const char* name, double value) {
  char text[80];
  std::snprintf(text, sizeof text, "\"%s\":%.9g", name, value);
  return text;
}

}  // namespace

bool D1Overlap::has_layout_of(const ReductionReport& report) const {
  return std::equal(sums_.begin(), sums_.end(), report.buckets.begin(), report.buckets.end(),
                    [](const auto& a, const auto& b) { return a.bytes == b.bytes; });
}

void D1Overlap::add(const ReductionReport& report) {
  if (!has_layout_of(report)) {
    *this = {};
    for (const BucketReport& bucket : report.buckets) sums_.push_back({.bytes = bucket.bytes});
  }
  ++steps_;
  backward_ += report.backward_seconds;
  exposed_ += report.exposed_seconds;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const BucketReport& bucket = report.buckets[i];
    sums_[i].started_seconds += bucket.started_seconds;
    sums_[i].done_seconds += bucket.done_seconds;
    sums_[i].worked_seconds += bucket.worked_seconds;
    if (i + 1 == sums_.size()) break;
    due_ += bucket.done_seconds - bucket.started_seconds;
    hidden_ += std::max(
        0.0, std::min(bucket.done_seconds, report.backward_seconds) - bucket.started_seconds);
  }
}

std::string D1Overlap::text() const {
  const double steps = std::max(1.0, steps_);
  std::string out = "{" + field("backward", backward_ / steps) + "," +
                    field("exposed", exposed_ / steps) + "," + field("due", due_ / steps) + "," +
                    field("hidden", hidden_ / steps) + ",\"buckets\":[";
  for (const BucketReport& sum : sums_) {
    if (out.back() == '}') out += ',';
    out += "{" + field("bytes", static_cast<double>(sum.bytes)) + "," +
           field("started", sum.started_seconds / steps) + "," +
           field("done", sum.done_seconds / steps) + "," +
           field("worked", sum.worked_seconds / steps) + "}";
  }
  return out + "]}";
}

}  // namespace cox::bench
