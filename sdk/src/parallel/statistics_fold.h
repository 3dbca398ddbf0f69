// Running statistics, folded over the micro-batches of a step in ascending order, whatever rank ran
// them: S = decay x S + part for each, where a part is momentum x the statistic of one micro-batch.
// So they are the same numbers at any world size. Pure functions on plain values, std only.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::detail {

// One module that keeps running statistics; all values of a step are laid out module by module.
struct StatisticsModule {
  std::size_t values = 0;          // running mean and variance together
  std::optional<double> momentum;  // none: the plain average over all micro-batches so far
  double tracked = 0;              // micro-batches before this step; counts without momentum only
  bool in_fp32 = true;             // rounded to fp32 after every micro-batch, as the module does
};

// What one micro-batch left behind where running statistics were 0 before it.
struct StatisticsPart {
  std::uint64_t micro_batch = 0;    // counted over all ranks of the step
  std::vector<std::uint32_t> runs;  // by module; 0: it did not run, its statistics stay
  std::vector<double> values;
};

// The statistics after the step. `parts`: in any order, every micro-batch from 0 on exactly once.
// Errors: internal when one is missing or there twice or has another size; failed_precondition for
// a module without momentum that ran in some micro-batches only, or several times in one.
Result<std::vector<double>> fold_statistics(std::span<const StatisticsModule> modules,
                                            std::vector<double> start,
                                            std::vector<StatisticsPart> parts);

// Parts as rows of doubles of one width, to be gathered: a row begins with its micro-batch, and
// rows that are not taken with -1.
std::size_t row_width(std::span<const StatisticsModule> modules);
std::vector<double> to_rows(std::span<const StatisticsPart> parts, std::size_t rows,
                            std::size_t width);
std::vector<StatisticsPart> from_rows(std::span<const double> rows, std::size_t width,
                                      std::size_t modules);

}  // namespace cox::detail
