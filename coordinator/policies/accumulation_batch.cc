#include "coordinator/policies/accumulation_batch.h"

#include <algorithm>
#include <cmath>

namespace cox {
namespace {

constexpr std::uint64_t kMostSamples = std::uint64_t{1} << 31;  // of a plan
constexpr double kLargestRatio = 1000;

std::uint64_t whole(std::uint64_t samples, std::uint64_t micro_batch) {
  return (samples + micro_batch - 1) / micro_batch;
}

}  // namespace

RankRatios ratios_of(const Plan& plan, const JobFacts& job) {
  RankRatios ratios(static_cast<std::size_t>(job.world_size), 1.0);
  if (plan.shares.size() != ratios.size()) return ratios;
  std::uint32_t least = 0;  // of those who work
  for (const std::uint32_t share : plan.shares) {
    if (share > 0 && (least == 0 || share < least)) least = share;
  }
  if (least == 0) return ratios;
  for (std::size_t r = 0; r < ratios.size(); ++r) {
    ratios[r] = std::min(plan.shares[r] / static_cast<double>(least), kLargestRatio);
  }
  return ratios;
}

RankRatios ratios_of(std::span<const double> work_seconds, std::span<const double> samples) {
  RankRatios ratios(work_seconds.size(), 1.0);
  double slowest = 0;  // seconds a sample
  for (std::size_t r = 0; r < ratios.size(); ++r) {
    if (samples[r] > 0) slowest = std::max(slowest, work_seconds[r] / samples[r]);
  }
  for (std::size_t r = 0; r < ratios.size(); ++r) {
    if (!(samples[r] > 0) || !(work_seconds[r] > 0)) continue;
    ratios[r] = std::clamp(slowest / (work_seconds[r] / samples[r]), 1.0, kLargestRatio);
  }
  return ratios;
}

std::uint64_t job_micro_batches(const JobFacts& job) {
  return whole(job.global_batch, job.micro_batch);
}

std::uint64_t micro_batches_of(const Plan& plan, const JobFacts& job) {
  return plan.step_samples == 0 ? job_micro_batches(job)
                                : whole(plan.step_samples, job.micro_batch);
}

std::uint64_t step_micro_batches(std::uint64_t anchor, std::span<const double> ratios,
                                 const JobFacts& job, const SharesConfig& shares) {
  std::uint64_t sum = 0;
  for (std::size_t r = 0; r < ratios.size(); ++r) {
    if (ratios[r] == 0) continue;
    auto part = std::max<std::uint64_t>(1, std::llround(static_cast<double>(anchor) * ratios[r]));
    const auto cap = shares.max_samples.find(static_cast<std::int32_t>(r));
    if (cap != shares.max_samples.end()) part = std::min(part, cap->second / job.micro_batch);
    sum += part;
  }
  const std::uint64_t most = std::max<std::uint64_t>(1, kMostSamples / job.micro_batch);
  return std::max(std::min(sum, most), job_micro_batches(job));
}

}  // namespace cox
