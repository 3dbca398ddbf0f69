#include "coordinator/policies/accumulation_notes.h"

#include <algorithm>
#include <cmath>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kSaid = 0;
constexpr std::size_t kPlan = 1;
constexpr std::size_t kRounds = 2;
constexpr std::size_t kRings = 3;  // index of the first one, and their number
constexpr double kMostRounds = 1e9;
constexpr double kMostSaid = 3;

// Journals and saves come from outside: numbers that index or are selected from must be sane.
bool is_ours(const NumbersState& state, std::size_t size) {
  if (state.version != kVersion || state.values.size() != size) return false;
  const bool all_sane = std::all_of(state.values.begin(), state.values.end(),
                                    [](double v) { return v >= 0 && v <= 1e300; });
  const double rounds = state.values[kRounds];
  const double said = state.values[kSaid];
  return all_sane && rounds <= kMostRounds && rounds == std::floor(rounds) && said <= kMostSaid;
}

// A value that was measured: the mean of two in the middle is neither, right after a change.
double lower_median(std::span<const double> values) {
  return select(values, (values.size() - 1) / 2).lower;
}

}  // namespace

AccumulationNotes::AccumulationNotes(NumbersState state, std::size_t ranks)
    : ranks_(ranks), state_(std::move(state)) {
  const std::size_t size = kRings + kRings * kWindow + 2 * ranks;
  if (is_ours(state_, size)) return;
  state_.version = kVersion;
  state_.values.assign(size, 0.0);
}

bool AccumulationNotes::has_said(Said what) const {
  return (static_cast<unsigned>(state_.values[kSaid]) & static_cast<unsigned>(what)) != 0;
}

bool AccumulationNotes::say_once(Said what) {
  if (has_said(what)) return false;
  state_.values[kSaid] += static_cast<double>(what);
  return true;
}

void AccumulationNotes::take_back(Said what) {
  if (has_said(what)) state_.values[kSaid] -= static_cast<double>(what);
}

void AccumulationNotes::start_plan(std::uint64_t number) {
  const auto plan = static_cast<double>(number);
  if (state_.values[kPlan] == plan) return;
  state_.values[kPlan] = plan;
  forget_rounds();
}

void AccumulationNotes::forget_rounds() {
  std::fill(state_.values.begin() + kRounds, state_.values.end(), 0.0);
}

void AccumulationNotes::add(const SyncCost& cost) {
  const auto place = static_cast<std::size_t>(state_.values[kRounds]) % kWindow;
  double* rings = state_.values.data() + kRings + place;
  rings[0] = cost.anchor;
  rings[kWindow] = cost.sync_seconds;
  rings[2 * kWindow] = cost.work_seconds;
  // Counting on from a multiple of the window keeps the place and bounds the number.
  double& rounds = state_.values[kRounds];
  rounds = rounds + 1 < kMostRounds ? rounds + 1 : rounds + 1 - static_cast<double>(kWindow);
}

double AccumulationNotes::rounds() const {
  return state_.values[kRounds];
}

SyncCost AccumulationNotes::middle() const {
  return {lower_median(filled(0)), lower_median(filled(1)), lower_median(filled(2))};
}

std::span<double> AccumulationNotes::work_seconds() {
  return column(0);
}

std::span<double> AccumulationNotes::samples() {
  return column(1);
}

std::span<double> AccumulationNotes::column(std::size_t index) {
  return std::span(state_.values).subspan(kRings + kRings * kWindow + index * ranks_, ranks_);
}

std::span<const double> AccumulationNotes::filled(std::size_t index) const {
  const std::size_t count = std::min(kWindow, static_cast<std::size_t>(state_.values[kRounds]));
  return std::span(state_.values).subspan(kRings + index * kWindow, count);
}

}  // namespace cox
