#include "sdk/src/parallel/statistics_fold.h"

#include <algorithm>
#include <string>

namespace cox::detail {
namespace {

constexpr double kNoPart = -1;

Status check(std::span<const StatisticsPart> parts, std::size_t modules, std::size_t values) {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].micro_batch != i) {
      return internal_error("running statistics: expected micro-batch " + std::to_string(i) +
                            " next, found " + std::to_string(parts[i].micro_batch));
    }
    if (parts[i].runs.size() != modules || parts[i].values.size() != values) {
      return internal_error("running statistics: micro-batch " + std::to_string(i) + " has " +
                            std::to_string(parts[i].values.size()) + " values, expected " +
                            std::to_string(values));
    }
  }
  return ok_status();
}

// A plain average counts micro-batches, so it has to see each once.
Status check_average(std::span<const StatisticsPart> parts, std::size_t module) {
  for (const StatisticsPart& part : parts) {
    const std::uint32_t runs = part.runs[module];
    if (runs == parts[0].runs[module] && runs <= 1) continue;
    return failed_precondition(
        "running statistics: expected a norm without momentum to run once in every micro-batch, "
        "found " +
        std::to_string(runs) + " runs in micro-batch " + std::to_string(part.micro_batch) +
        "; give it a momentum");
  }
  return ok_status();
}

double decay_of(const StatisticsModule& module, const StatisticsPart& part, std::uint32_t runs) {
  const double average =
      1.0 / (module.tracked + static_cast<double>(part.micro_batch) + 1);  // as the module's own
  const double once = 1 - module.momentum.value_or(average);
  double decay = 1;
  for (std::uint32_t i = 0; i < runs; ++i) decay *= once;
  return decay;
}

}  // namespace

Result<std::vector<double>> fold_statistics(std::span<const StatisticsModule> modules,
                                            std::vector<double> start,
                                            std::vector<StatisticsPart> parts) {
  std::sort(parts.begin(), parts.end(),
            [](const auto& a, const auto& b) { return a.micro_batch < b.micro_batch; });
  if (Status whole = check(parts, modules.size(), start.size()); !whole.ok()) return whole;
  std::size_t first = 0;
  for (std::size_t m = 0; m < modules.size(); first += modules[m++].values) {
    Status average = modules[m].momentum ? ok_status() : check_average(parts, m);
    if (!average.ok()) return average;
    for (const StatisticsPart& part : parts) {
      if (part.runs[m] == 0) continue;
      const double decay = decay_of(modules[m], part, part.runs[m]);
      for (std::size_t i = first; i < first + modules[m].values; ++i) {
        const double value = part.values[i] + decay * start[i];
        start[i] = modules[m].in_fp32 ? static_cast<double>(static_cast<float>(value)) : value;
      }
    }
  }
  return start;
}

std::size_t row_width(std::span<const StatisticsModule> modules) {
  std::size_t width = 1 + modules.size();
  for (const StatisticsModule& module : modules) width += module.values;
  return width;
}

std::vector<double> to_rows(std::span<const StatisticsPart> parts, std::size_t rows,
                            std::size_t width) {
  std::vector<double> made(rows * width, kNoPart);
  auto row = made.begin();
  for (const StatisticsPart& part : parts) {
    auto next = row;
    *next++ = static_cast<double>(part.micro_batch);
    next = std::copy(part.runs.begin(), part.runs.end(), next);
    std::copy(part.values.begin(), part.values.end(), next);
    row += static_cast<std::ptrdiff_t>(width);
  }
  return made;
}

std::vector<StatisticsPart> from_rows(std::span<const double> rows, std::size_t width,
                                      std::size_t modules) {
  std::vector<StatisticsPart> parts;
  for (; rows.size() >= width; rows = rows.subspan(width)) {
    if (rows[0] == kNoPart) continue;
    StatisticsPart part{
        .micro_batch = static_cast<std::uint64_t>(rows[0]), .runs = {}, .values = {}};
    for (const double runs : rows.subspan(1, modules)) {
      part.runs.push_back(static_cast<std::uint32_t>(runs));
    }
    const auto values = rows.subspan(1 + modules, width - 1 - modules);
    part.values.assign(values.begin(), values.end());
    parts.push_back(std::move(part));
  }
  return parts;
}

}  // namespace cox::detail
