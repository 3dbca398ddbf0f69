#include "sdk/src/precision/fp8_history.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace cox::detail {
namespace {

constexpr std::size_t kNumbersBefore = 4;  // next, filled, extra, clean steps

Status bad_state(const std::string& found) {
  return invalid_argument("state of FP8 scaling: " + found +
                          "; it was saved by another version or is damaged");
}

bool is_count(double value, double most) {
  return value >= 0 && value <= most && value == std::floor(value);
}

}  // namespace

float fp8_multiplier(FloatFormat format, float amax, std::uint32_t margin) {
  if (amax == 0) return 1;
  int exponent = 0;
  std::frexp(static_cast<double>(largest_finite(format)) / amax, &exponent);
  return std::ldexp(1.0f, std::clamp(exponent - 1 - static_cast<int>(margin), -126, 126));
}

void AmaxHistory::see(const QuantizeCounts& counts) {
  merge_into(step_, counts);
}

void AmaxHistory::end_step() {
  if (step_.sampled == 0) return;
  const auto steps = static_cast<std::uint32_t>(amax_.size());
  amax_[next_] = step_.amax;
  next_ = (next_ + 1) % steps;
  filled_ = std::min(filled_ + 1, steps);
  if (step_.saturated > 0) {
    extra_ = std::min(extra_ + 1, kMostExtra);
    clean_steps_ = 0;
  } else if (++clean_steps_ == kStepsToForgive) {
    extra_ -= extra_ > 0 ? 1 : 0;
    clean_steps_ = 0;
  }
  step_ = {};
}

float AmaxHistory::amax() const {
  return *std::max_element(amax_.begin(), amax_.end());
}

void AmaxHistory::append_to(std::vector<double>& state) const {
  for (const std::uint32_t count : {next_, filled_, extra_, clean_steps_}) state.push_back(count);
  state.insert(state.end(), amax_.begin(), amax_.end());
}

Status AmaxHistory::read(std::span<const double>& state) {
  const std::size_t needed = kNumbersBefore + amax_.size();
  if (state.size() < needed) {
    return bad_state("expected " + std::to_string(needed) + " more numbers, found " +
                     std::to_string(state.size()));
  }
  const auto steps = static_cast<double>(amax_.size());
  if (!is_count(state[0], steps - 1) || !is_count(state[1], steps) ||
      !is_count(state[2], kMostExtra) || !is_count(state[3], kStepsToForgive)) {
    return bad_state("a count is out of range");
  }
  const std::span<const double> amax = state.subspan(kNumbersBefore, amax_.size());
  for (const double value : amax) {
    if (!(value >= 0) || !std::isfinite(static_cast<float>(value))) {
      return bad_state("a magnitude is not finite");
    }
  }
  next_ = static_cast<std::uint32_t>(state[0]);
  filled_ = static_cast<std::uint32_t>(state[1]);
  extra_ = static_cast<std::uint32_t>(state[2]);
  clean_steps_ = static_cast<std::uint32_t>(state[3]);
  std::transform(amax.begin(), amax.end(), amax_.begin(),
                 [](double value) { return static_cast<float>(value); });
  step_ = {};
  state = state.subspan(needed);
  return {};
}

}  // namespace cox::detail
