#include "coordinator/policies/memory_notes.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <utility>

namespace cox {
namespace {

constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeader = 5;  // ranks, digest, told, retrying, resting actions
constexpr std::size_t kRestingValues = 3;
constexpr double kLargest = 1e18;

class Digest {
 public:
  void add(std::uint64_t value) { hash_ = (hash_ ^ value) * 1099511628211ull; }
  void add(const MemoryBudget& budget) {
    add(static_cast<std::uint64_t>(budget.kind));
    add(static_cast<std::uint64_t>(budget.bytes));
    add(std::bit_cast<std::uint64_t>(budget.fraction));
  }
  double value() const { return static_cast<double>((hash_ ^ hash_ >> 40) & ((1ull << 48) - 1)); }

 private:
  std::uint64_t hash_ = 14695981039346656037ull;
};

double digest_of(const JobFacts& job, const MemoryConfig& config) {
  Digest digest;
  for (const MemoryModel& model : job.memory.models) {
    digest.add(model.front.size());
    for (const MemoryPoint& point : model.front) {
      digest.add(static_cast<std::uint64_t>(point.peak_bytes));
      digest.add(static_cast<std::uint64_t>(point.added_us));
    }
  }
  for (const std::uint32_t model : job.memory.model_of_rank) digest.add(model);
  digest.add(config.budget);
  for (const auto& [rank, budget] : config.budget_of_rank) {
    digest.add(static_cast<std::uint64_t>(rank));
    digest.add(budget);
  }
  return digest.value();
}

}  // namespace

template <class Self>
auto MemoryNotes::columns(Self& self) {
  return std::array{&self.correction, &self.plan_seen,     &self.measured, &self.limit,
                    &self.ceiling,    &self.ceiling_until, &self.slowness, &self.timed_rounds,
                    &self.straggles,  &self.room_rounds};
}

MemoryNotes::MemoryNotes(const NumbersState& state, const JobFacts& job, const MemoryConfig& config)
    : ranks_(static_cast<std::size_t>(job.world_size)), digest_(digest_of(job, config)) {
  if (read(state, job.blocks.size())) return;
  told = retrying = 0;
  resting.clear();
  for (std::vector<double>* column : columns(*this)) column->assign(ranks_, 0);
}

bool MemoryNotes::read(const NumbersState& state, std::size_t blocks) {
  const std::vector<double>& v = state.values;
  const auto sane = [](double value) { return std::fabs(value) <= kLargest; };
  if (state.version != kVersion || v.size() < kHeader) return false;
  if (!std::all_of(v.begin(), v.end(), sane)) return false;
  if (v[0] != static_cast<double>(ranks_) || v[1] != digest_) return false;
  const std::size_t left = v.size() - kHeader;
  const std::size_t in_columns = columns(*this).size() * ranks_;
  if (left < in_columns || (left - in_columns) % kRestingValues != 0) return false;
  if (v[4] != static_cast<double>((left - in_columns) / kRestingValues)) return false;
  told = v[2];
  retrying = v[3];
  auto at = v.begin() + kHeader;
  for (std::vector<double>* column : columns(*this)) {
    column->assign(at, at + static_cast<std::ptrdiff_t>(ranks_));
    at += static_cast<std::ptrdiff_t>(ranks_);
  }
  for (; at != v.end(); at += kRestingValues) {
    if (at[0] < 0 || at[0] >= static_cast<double>(blocks) || at[1] < 1 || at[1] > 3 || at[2] < 0) {
      return false;
    }
    resting.push_back({static_cast<std::size_t>(at[0]),
                       static_cast<MemoryAction>(static_cast<int>(at[1])),
                       static_cast<std::uint64_t>(at[2])});
  }
  return true;
}

PolicyState MemoryNotes::state() const {
  NumbersState state;
  state.version = kVersion;
  state.values = {static_cast<double>(ranks_), digest_, told, retrying,
                  static_cast<double>(resting.size())};
  for (const std::vector<double>* column : columns(*this)) {
    state.values.insert(state.values.end(), column->begin(), column->end());
  }
  for (const RestingAction& rest : resting) {
    state.values.push_back(static_cast<double>(rest.block));
    state.values.push_back(static_cast<double>(rest.action));
    state.values.push_back(static_cast<double>(rest.until));
  }
  return PolicyState::of(std::move(state));
}

}  // namespace cox
