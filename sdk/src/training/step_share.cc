#include "sdk/src/training/step_share.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace cox::detail {
namespace {

std::uint64_t unsigned_of(std::int64_t value) {
  return static_cast<std::uint64_t>(value);
}

Result<std::vector<std::int64_t>> units_of_ranks(const ShareRequest& request, std::int64_t units) {
  if (!request.shares.empty()) return SamplePlan::assign(units, request.shares);
  const std::vector<std::uint32_t> even(static_cast<std::size_t>(request.world_size), 1);
  return SamplePlan::assign(units, even);
}

}  // namespace

SampleSlice StepShare::part(std::uint64_t i) const {
  if (micro_batch == 0) return {0, slice.count};
  const std::int64_t first = static_cast<std::int64_t>(i) * micro_batch;
  return {first, std::min(micro_batch, slice.count - first)};
}

Result<StepShare> share_of(const SamplePlan& plan, const ShareRequest& request) {
  StepShare share;
  share.step = plan.batch_at(request.cursor, request.step_samples);
  share.micro_batch = request.micro_batch;
  const std::int64_t unit = std::max<std::int64_t>(1, request.micro_batch);
  const std::int64_t count = share.step.count;
  const auto counts = units_of_ranks(request, (count + unit - 1) / unit);
  if (!counts.ok()) return counts.status();
  const auto rank = static_cast<std::size_t>(request.rank.value());
  const SampleSlice mine = SamplePlan::slice(*counts, rank);
  const std::int64_t first = std::min(count, mine.first * unit);
  share.slice = {first, std::min(count, (mine.first + mine.count) * unit) - first};
  if (request.micro_batch == 0) {
    const auto with_work =
        std::count_if(counts->begin(), counts->end(), [](auto n) { return n > 0; });
    share.micro_batches = unsigned_of(with_work);
    share.most_on_a_rank = 1;
    share.first_micro_batch = unsigned_of(std::count_if(
        counts->begin(), counts->begin() + request.rank.value(), [](auto n) { return n > 0; }));
    share.own_micro_batches = share.slice.count > 0 ? 1 : 0;
    return share;
  }
  share.micro_batches =
      unsigned_of(std::accumulate(counts->begin(), counts->end(), std::int64_t{0}));
  share.most_on_a_rank = unsigned_of(*std::max_element(counts->begin(), counts->end()));
  share.first_micro_batch = unsigned_of(mine.first);
  share.own_micro_batches = unsigned_of(mine.count);
  return share;
}

}  // namespace cox::detail
