#include "sdk/src/training/epoch_book.h"

#include <cmath>
#include <limits>

namespace cox::detail {

void EpochBook::add(std::uint64_t from, std::uint64_t to, double loss) {
  const std::uint64_t epoch = from / size_;
  if (steps_.empty() || steps_.back().from / size_ != epoch) {
    std::erase_if(steps_, [&](const Step& step) { return step.from / size_ + 1 < epoch; });
  }
  if (std::isfinite(loss)) steps_.push_back({from, static_cast<double>(to - from), loss});
}

void EpochBook::rewind(std::uint64_t cursor) {
  std::erase_if(steps_, [&](const Step& step) { return step.from >= cursor; });
  std::erase_if(epochs_, [&](const FitEpoch& epoch) { return (epoch.epoch + 1) * size_ > cursor; });
}

double EpochBook::loss_of_epoch_before(std::uint64_t cursor) const {
  double sum = 0;
  double samples = 0;
  for (const Step& step : steps_) {
    if (step.from / size_ + 1 != cursor / size_) continue;
    sum += step.samples * step.loss;
    samples += step.samples;
  }
  return samples > 0 ? sum / samples : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace cox::detail
