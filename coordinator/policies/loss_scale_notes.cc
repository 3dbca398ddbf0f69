#include "coordinator/policies/loss_scale_notes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <utility>

namespace cox {
namespace {

constexpr std::uint32_t kVersion = 1;
using Values = std::array<double, sizeof(LossScaleNotes::Numbers) / sizeof(double)>;

}  // namespace

LossScaleNotes::LossScaleNotes(const NumbersState& state, std::size_t blocks) : quiet(blocks) {
  const std::vector<double>& v = state.values;
  const auto sane = [](double value) { return value >= 0 && value <= 1e38; };
  Values numbers{};
  if (state.version != kVersion || v.size() != numbers.size() + blocks) return;
  if (!std::all_of(v.begin(), v.end(), sane)) return;
  const auto end = v.begin() + static_cast<std::ptrdiff_t>(numbers.size());
  std::copy(v.begin(), end, numbers.begin());
  now = std::bit_cast<Numbers>(numbers);
  quiet.assign(end, v.end());
}

PolicyState LossScaleNotes::state() const {
  const auto numbers = std::bit_cast<Values>(now);
  NumbersState state{kVersion, {numbers.begin(), numbers.end()}};
  state.values.insert(state.values.end(), quiet.begin(), quiet.end());
  return PolicyState::of(std::move(state));
}

}  // namespace cox
