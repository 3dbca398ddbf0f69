#include "metrics/records/step_row.h"

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

void StepBuckets::add(const Span& bucket, std::size_t all) {
  const std::size_t share = (all + kSpans - 1) / kSpans;
  const bool starts_one = count == 0 || spans[count - 1].buckets >= share;
  if (starts_one && count < kSpans) {
    spans[count++] = bucket;
    return;
  }
  Span& last = spans[count - 1];
  last.buckets += bucket.buckets;
  last.bytes += bucket.bytes;
  last.begin_seconds = std::min(last.begin_seconds, bucket.begin_seconds);
  last.end_seconds = std::max(last.end_seconds, bucket.end_seconds);
}

void StepRow::set_overflow(std::string_view block, OverflowPass pass) {
  const std::size_t most = overflow_block.size() - 1;
  if (block.size() > most) block.remove_prefix(block.size() - most);
  overflow_block = {};
  std::copy(block.begin(), block.end(), overflow_block.begin());
  overflow_pass = pass;
}

}  // namespace cox::metrics
