#include "sdk/src/shard/update_sequences.h"

#include <utility>

#include "coordinator/core/split_mix.h"

namespace cox::detail {

void UpdateSequences::begin() {
  if (written_ != 0) ends_.insert(written_);
  if (beginnings_.size() > kMost) {
    beginnings_.clear();
    ends_.clear();
  }
  written_ = 0;
  departed_ = false;
}

bool UpdateSequences::note(std::uint64_t what) {
  written_ = (written_ ^ what) * kGolden + 1;
  const bool is_known = !beginnings_.insert(written_).second;
  if (is_known && !departed_) return ends_.contains(written_);
  if (!std::exchange(departed_, true)) ++departures_;
  return true;
}

}  // namespace cox::detail
