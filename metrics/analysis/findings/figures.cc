#include "metrics/analysis/findings/figures.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr std::array<std::string_view, 7> kPhaseOrder = {
    "data", "forward", "backward", "optimizer", "compute", "comm", "other"};
constexpr std::size_t kLeastTrend = 4;
constexpr double kTrendTolerance = 0.02;
constexpr double kLeastZ = 3;
constexpr double kLeastSlowdown = 0.05;
constexpr std::size_t kLeastForInstability = 8;
constexpr std::size_t kEventGap = 2;
constexpr std::size_t kMostEvents = 3;

std::size_t rows_after(const RankRecord& rank, std::size_t first) {
  return rank.size() - std::min(first, rank.size());
}

// Returns the names of the phases of any step, in the order of a step.
std::vector<std::string> phase_names(const Columns& phases) {
  std::vector<std::string> names;
  for (const std::string_view name : kPhaseOrder) {
    if (phases.contains(name)) names.emplace_back(name);
  }
  for (const auto& [name, column] : phases) {
    if (std::ranges::find(kPhaseOrder, name) == kPhaseOrder.end()) names.push_back(name);
  }
  return names;
}

double column_sum(const RankRecord& rank, std::string_view phase, std::size_t first) {
  ExactSum sum;
  if (const Column* column = find(rank.phases, phase)) {
    column->each(first, [&sum](double value) {
      if (!is_absent(value)) sum.add(value);
    });
  }
  return sum.value();
}

Trend trend_of(const std::vector<double>& losses) {
  if (losses.size() < kLeastTrend) return Trend::unknown;
  const EndMedians ends = end_medians(losses);
  const double scale = ends.first != 0 ? std::fabs(ends.first) : 1;
  const double change = (ends.last - ends.first) / scale;
  if (change < -kTrendTolerance) return Trend::improving;
  return change > kTrendTolerance ? Trend::worsening : Trend::plateau;
}

// Returns the step numbers of these rows, counted from `first` on. REQUIRES: ascending rows.
std::vector<std::int64_t> step_numbers(const RankRecord& rank, std::size_t first,
                                       const std::vector<std::size_t>& rows) {
  std::vector<std::int64_t> out;
  std::vector<double> block;
  std::size_t of_block = rank.steps.blocks();
  for (const std::size_t row : rows) {
    const std::size_t at = first + row;
    if (at / Column::kBlock != of_block) rank.steps.read(of_block = at / Column::kBlock, block);
    out.push_back(static_cast<std::int64_t>(block[at % Column::kBlock]));
  }
  return out;
}

// Quantities that may spike in a row, as bits; in the order of their names.
constexpr std::array<std::string_view, 4> kAxes = {"grad_norm", "loss", "memory", "step_time"};
enum Axis : std::uint8_t { kGradientNorm = 1, kLoss = 2, kMemory = 4, kStepTime = 8 };
using Axes = std::vector<std::uint8_t>;  // one byte a row, whatever the number of spikes

void add_spikes(Axes& axes, Axis axis, std::span<const double> values) {
  for (const std::size_t row : local_spikes(values)) axes[row] |= axis;
}

Axes axes_of(const RankRecord& rank, std::size_t first, const std::vector<double>& loss) {
  const std::size_t n = rank.size();
  Axes axes(n - first);
  add_spikes(axes, kLoss, loss);
  for (std::size_t i = 0; i < loss.size(); ++i) {
    if (!is_absent(loss[i]) && !std::isfinite(loss[i])) axes[i] |= kLoss;
  }
  add_spikes(axes, kGradientNorm, values_of(rank.scalars, "grad_norm", n, first));
  add_spikes(axes, kStepTime, row_sums(rank.phases, n, first));
  add_spikes(axes, kMemory, values_of(rank.memory, "alloc", n, first));
  return axes;
}

// Rows close together in which several quantities spike.
struct EventRows {
  std::size_t first = 0;
  std::size_t last = 0;
  std::size_t peak = 0;  // with the largest loss
  std::uint8_t axes = 0;
};

// Returns the first few events.
std::vector<EventRows> events_of(const Axes& axes, const std::vector<double>& loss) {
  const auto known = [&loss](std::size_t row) { return is_absent(loss[row]) ? 0.0 : loss[row]; };
  std::vector<EventRows> out;
  for (std::size_t row = 0; row < axes.size(); ++row) {
    if (std::popcount(axes[row]) < 2) continue;
    if (out.empty() || row - out.back().last > kEventGap) {
      if (out.size() == kMostEvents) break;
      out.push_back({row, row, row, 0});
    }
    EventRows& event = out.back();
    event.last = row;
    event.axes |= axes[row];
    if (known(row) > known(event.peak)) event.peak = row;
  }
  return out;
}

Instability event_of(const RankRecord& rank, std::size_t first, const EventRows& rows) {
  const auto shown_value = [&rows](Axis axis, double value) {
    return (rows.axes & axis) == 0 || is_absent(value) ? std::nullopt : std::optional(value);
  };
  const std::size_t peak = first + rows.peak;
  Instability out;
  const std::vector<std::int64_t> ends = step_numbers(rank, first, {rows.first, rows.last});
  out.first_step = ends[0];
  out.last_step = ends[1];
  for (std::size_t i = 0; i < kAxes.size(); ++i) {
    if ((rows.axes >> i & 1) != 0) out.axes.emplace_back(kAxes[i]);
  }
  out.loss = shown_value(kLoss, value_at(rank.scalars, "loss", peak));
  out.gradient_norm = shown_value(kGradientNorm, value_at(rank.scalars, "grad_norm", peak));
  out.step_seconds = shown_value(kStepTime, row_sums(rank.phases, peak + 1, peak).front());
  out.alloc_bytes = shown_value(kMemory, value_at(rank.memory, "alloc", peak));
  return out;
}

std::vector<Instability> instabilities_of(const RankRecord& rank, std::size_t first) {
  if (rows_after(rank, first) < kLeastForInstability) return {};
  const std::vector<double> loss = values_of(rank.scalars, "loss", rank.size(), first);
  std::vector<Instability> out;
  for (const EventRows& rows : events_of(axes_of(rank, first, loss), loss))
    out.push_back(event_of(rank, first, rows));
  return out;
}

// One rank's steps in common with all ranks, by step number.
struct AlignedRank {
  std::vector<double> compute;  // all but communication; later relative to the median
  std::vector<double> comm;
};

std::vector<double> picked(std::vector<double> values, const std::vector<std::uint32_t>& rows) {
  std::vector<double> out;
  out.reserve(rows.size());
  for (const std::uint32_t row : rows) out.push_back(values[row]);
  return out;
}

std::vector<AlignedRank> aligned(const RunRecord& run) {
  constexpr std::array<std::string_view, 1> kComm = {"comm"};
  const std::vector<std::vector<std::uint32_t>> rows = common_steps(run).rows;
  std::vector<AlignedRank> out;
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const RankRecord& rank = run.ranks[r];
    std::vector<std::string_view> left_out(kComm.begin(), kComm.end());
    for (const auto& [name, column] : rank.phases) {
      if (std::ranges::find(kPhaseOrder, name) == kPhaseOrder.end()) left_out.push_back(name);
    }
    AlignedRank each{row_sums(rank.phases, rank.size(), 0, left_out),
                     values_of(rank.phases, "comm", rank.size())};
    for (double& value : each.comm) value = is_absent(value) ? 0 : value;
    if (!rows.empty()) each = {picked(each.compute, rows[r]), picked(each.comm, rows[r])};
    out.push_back(std::move(each));
  }
  return out;
}

// The spread of one step over the ranks.
struct StepSpread {
  double longest = 0;
  double mean = 0;
  double median = 0;
  double variation = 0;
  std::size_t slowest = 0;
};

StepSpread spread_of(const std::vector<double>& compute) {
  StepSpread out;
  out.slowest = static_cast<std::size_t>(std::ranges::max_element(compute) - compute.begin());
  out.longest = compute[out.slowest];
  out.mean = mean_of(compute);
  out.median = median_of(compute);
  ExactSum squares;
  for (const double value : compute) squares.add((value - out.mean) * (value - out.mean));
  if (out.mean > 0)
    out.variation = std::sqrt(squares.value() / static_cast<double>(compute.size())) / out.mean;
  return out;
}

// Accumulates the steps of distributed_of().
class RankComparison {
 public:
  explicit RankComparison(std::vector<AlignedRank> ranks)
      : ranks_(std::move(ranks)), slowest_(ranks_.size()) {
    for (const AlignedRank& rank : ranks_)
      out_.ranks.push_back({0, mean_of(rank.compute), median_of(rank.compute)});
  }

  Distributed figures() {
    out_.steps = ranks_[0].compute.size();
    for (std::size_t s = 0; s < out_.steps; ++s) add(s);
    out_.mean_wall_seconds = mean_of(walls_);
    out_.mean_comm_fraction = mean_of(fractions_);
    out_.variation = median_of(std::move(variations_));
    out_.skew_seconds = median_of(std::move(skews_));
    out_.lost_fraction = sum_longest_ > 0 ? sum_lost_ / sum_longest_ : 0;
    for (std::size_t r = 0; r < ranks_.size(); ++r) judge(r);
    return std::move(out_);
  }

 private:
  void add(std::size_t s) {
    std::vector<double> compute;
    double comm = 0;
    for (const AlignedRank& rank : ranks_) {
      compute.push_back(rank.compute[s]);
      comm = std::max(comm, rank.comm[s]);
    }
    const StepSpread spread = spread_of(compute);
    const double wall = spread.longest + comm;
    walls_.push_back(wall);
    fractions_.push_back(wall > 0 ? comm / wall : 0);
    variations_.push_back(spread.variation);
    skews_.push_back(spread.longest - spread.median);
    sum_longest_ += spread.longest;
    sum_lost_ += spread.longest - spread.mean;
    ++slowest_[spread.slowest];
    // Replaces times by ratios in place, because another column would double the memory.
    for (AlignedRank& rank : ranks_)
      rank.compute[s] = spread.median > 0 ? rank.compute[s] / spread.median - 1 : absent();
  }

  void judge(std::size_t r) {
    const double steps = static_cast<double>(out_.steps);
    const double chance = 1 / static_cast<double>(ranks_.size());
    const double deviation = std::sqrt(steps * chance * (1 - chance));
    RankFigures& rank = out_.ranks[r];
    rank.slowest_count = slowest_[r];
    rank.slowest_fraction = static_cast<double>(slowest_[r]) / steps;
    rank.z = (static_cast<double>(slowest_[r]) - steps * chance) / deviation;
    rank.slowdown = median_of(present(std::move(ranks_[r].compute)));
    if (rank.z < kLeastZ || rank.slowdown < kLeastSlowdown) return;
    ++significant_;
    out_.straggler = significant_ == 1 ? std::optional(r) : std::nullopt;
  }

  std::vector<AlignedRank> ranks_;
  std::vector<std::size_t> slowest_;
  std::vector<double> walls_, fractions_, variations_, skews_;
  double sum_longest_ = 0;
  double sum_lost_ = 0;
  std::size_t significant_ = 0;
  Distributed out_;
};

std::optional<Efficiency> efficiency_of(const RankRecord& rank, const FigureOptions& options) {
  const std::size_t first = options.warmup_steps;
  Efficiency out;
  out.steps = rows_after(rank, first);
  out.compute_seconds = exact_sum(
      std::array{column_sum(rank, "forward", first), column_sum(rank, "backward", first),
                 column_sum(rank, "optimizer", first), column_sum(rank, "compute", first)});
  const double data = column_sum(rank, "data", first);
  const double comm = column_sum(rank, "comm", first);
  const double other = column_sum(rank, "other", first);
  out.wall_seconds = out.compute_seconds + data + comm + other;
  if (!(out.wall_seconds > 0)) return std::nullopt;
  out.flops_per_step = options.flops_per_step ? options.flops_per_step : rank.info.flops_per_step;
  out.peak_flops = options.peak_flops ? options.peak_flops : rank.info.peak_flops;
  double useful = out.compute_seconds;
  if (out.flops_per_step.value_or(0) > 0 && out.peak_flops.value_or(0) > 0) {
    out.ideal_seconds = *out.flops_per_step * static_cast<double>(out.steps) / *out.peak_flops;
    useful = std::min(useful, *out.ideal_seconds);
    out.mfu = useful / out.wall_seconds;
  }
  const auto add = [&out](const char* name, double seconds, bool is_recoverable) {
    out.lines.push_back({name, seconds, seconds / out.wall_seconds, is_recoverable});
  };
  add("useful_compute", useful, false);
  add("compute_overhead", out.compute_seconds - useful, true);
  add("data_stall", data, true);
  add("communication", comm, true);
  add("other", other, true);
  return out;
}

// Returns the largest peak. A step without a peak counts with its value of `instead`.
double largest(const RankRecord& rank, std::string_view peaks, std::size_t first,
               const std::vector<double>& instead) {
  double most = 0;
  std::size_t i = 0;
  const auto take = [&](double peak) {
    const double value = is_absent(peak) ? instead[i] : peak;
    if (!is_absent(value)) most = std::max(most, value);
    ++i;
  };
  if (const Column* column = find(rank.memory, peaks)) {
    column->each(first, take);
  } else {
    for (std::size_t row = 0; row < instead.size(); ++row) take(absent());
  }
  return most;
}

double fragmentation_of(const std::vector<double>& allocs, const std::vector<double>& reserved) {
  ExactSum shares;
  std::size_t count = 0;
  for (std::size_t i = 0; i < std::min(allocs.size(), reserved.size()); ++i) {
    if (!(reserved[i] > 0)) continue;
    shares.add((reserved[i] - allocs[i]) / reserved[i]);
    ++count;
  }
  return count == 0 ? 0 : shares.value() / static_cast<double>(count);
}

}  // namespace

std::vector<double> present(std::vector<double> values) {
  std::erase_if(values, is_absent);
  return values;
}

std::string_view to_string(Trend trend) {
  constexpr std::array<std::string_view, 5> kNames = {"unknown", "improving", "plateau",
                                                      "worsening", "diverged"};
  return kNames[static_cast<std::size_t>(trend)];
}

const PhaseTime* Timing::find(std::string_view name) const {
  const auto found = std::ranges::find(phases, name, &PhaseTime::name);
  return found == phases.end() ? nullptr : &*found;
}

std::vector<BudgetLine> Efficiency::recoverable() const {
  std::vector<BudgetLine> out;
  for (const BudgetLine& line : lines) {
    if (line.is_recoverable && line.seconds > 0) out.push_back(line);
  }
  std::ranges::stable_sort(out, std::greater<>(), &BudgetLine::seconds);
  return out;
}

std::optional<double> Pipeline::excess() const {
  if (!ideal_bubble) return std::nullopt;
  return std::max(0.0, bubble - *ideal_bubble);
}

Timing timing_of(const RankRecord& rank, std::size_t first) {
  Timing out;
  out.steps = rows_after(rank, first);
  if (out.steps == 0) return out;
  const auto n = static_cast<double>(out.steps);
  ExactSum total;
  for (const std::string& name : phase_names(rank.phases)) {
    const double sum = column_sum(rank, name, first);
    total.add(sum);
    out.phases.push_back({name, sum / n, sum});
  }
  out.total_seconds = total.value();
  for (PhaseTime& phase : out.phases)
    phase.fraction /= out.total_seconds > 0 ? out.total_seconds : 1;
  out.mean_seconds = out.total_seconds / n;
  std::vector<double> times = row_sums(rank.phases, rank.size(), first);
  ExactSum squares;
  for (const double time : times)
    squares.add((time - out.mean_seconds) * (time - out.mean_seconds));
  out.deviation_seconds = std::sqrt(squares.value() / n);
  std::ranges::sort(times);
  out.p50_seconds = percentile_of(times, 0.5);
  out.p95_seconds = percentile_of(times, 0.95);
  return out;
}

MemoryUse memory_of(const RankRecord& rank, std::size_t first) {
  MemoryUse out;
  out.steps = rows_after(rank, first);
  const std::size_t n = rank.size();
  std::vector<double> alloc = values_of(rank.memory, "alloc", n, first);
  std::vector<double> reserved = values_of(rank.memory, "reserved", n, first);
  out.is_there = !std::ranges::all_of(alloc, is_absent);
  if (!out.is_there) return out;
  out.peak_alloc_bytes = largest(rank, "peak_alloc", first, alloc);
  out.peak_reserved_bytes = largest(rank, "peak_reserved", first, reserved);
  alloc = present(std::move(alloc));
  reserved = present(std::move(reserved));
  out.mean_alloc_bytes = mean_of(alloc);
  out.fragmentation = fragmentation_of(alloc, reserved);
  const EndMedians ends = end_medians(alloc);
  if (alloc.size() > 1)
    out.growth_bytes_per_step = (ends.last - ends.first) / static_cast<double>(alloc.size() - 1);
  return out;
}

Convergence convergence_of(const RankRecord& rank, std::size_t first) {
  Convergence out;
  out.steps = rows_after(rank, first);
  const auto column = [&](const char* name) {
    return values_of(rank.scalars, name, rank.size(), first);
  };
  const auto is_there = [](double value) { return !is_absent(value); };
  std::vector<std::size_t> gradient_spikes;
  {
    const std::vector<double> norms = column("grad_norm");
    out.has_gradient_norm = std::ranges::any_of(norms, is_there);
    gradient_spikes = local_spikes(norms);
  }
  std::vector<double> losses = column("loss");
  out.has_loss = std::ranges::any_of(losses, is_there);
  if (!out.has_loss) return out;
  out.gradient_spikes = step_numbers(rank, first, gradient_spikes);
  out.loss_spikes = step_numbers(rank, first, local_spikes(losses));
  const auto is_diverged = [](double value) { return !is_absent(value) && !std::isfinite(value); };
  const auto diverged = std::ranges::find_if(losses, is_diverged);
  if (diverged != losses.end())
    out.diverged_at =
        step_numbers(rank, first, {static_cast<std::size_t>(diverged - losses.begin())}).front();
  std::erase_if(losses, [](double value) { return !std::isfinite(value); });
  if (!losses.empty()) {
    out.final_loss = losses.back();
    out.best_loss = *std::ranges::min_element(losses);
  }
  out.trend = out.diverged_at ? Trend::diverged : trend_of(losses);
  return out;
}

std::optional<Distributed> distributed_of(const RunRecord& run) {
  if (run.ranks.size() < 2) return std::nullopt;
  std::vector<AlignedRank> ranks = aligned(run);
  if (ranks[0].compute.empty()) return std::nullopt;
  Distributed out = RankComparison(std::move(ranks)).figures();
  for (std::size_t r = 0; r < run.ranks.size(); ++r) out.ranks[r].rank = run.ranks[r].rank;
  return out;
}

Figures figures_of(const RunRecord& run, const FigureOptions& options) {
  const std::size_t first = options.warmup_steps;
  Figures out;
  out.timing = timing_of(run.lowest(), first);
  out.memory = memory_of(run.lowest(), first);
  out.convergence = convergence_of(run.lowest(), first);
  out.instabilities = instabilities_of(run.lowest(), first);
  out.distributed = distributed_of(run);
  out.efficiency = efficiency_of(run.lowest(), options);
  return out;
}

std::optional<Pipeline> pipeline_of(const std::vector<StageInterval>& intervals,
                                    std::optional<std::size_t> microbatches) {
  std::map<std::int32_t, double> busy;
  double first = std::numeric_limits<double>::infinity();
  double last = -first;
  for (const StageInterval& each : intervals) {
    busy[each.stage] += std::max(0.0, each.end_seconds - each.start_seconds);
    first = std::min(first, each.start_seconds);
    last = std::max(last, each.end_seconds);
  }
  if (busy.size() < 2 || !(last > first)) return std::nullopt;
  Pipeline out;
  out.makespan_seconds = last - first;
  const auto stages = static_cast<double>(busy.size());
  ExactSum sum;
  for (const auto& [stage, seconds] : busy) sum.add(seconds);
  out.busy_seconds = sum.value();
  out.bubble = std::clamp(1 - out.busy_seconds / (stages * out.makespan_seconds), 0.0, 1.0);
  out.busiest_stage = out.idlest_stage = busy.begin()->first;
  for (const auto& [stage, seconds] : busy) {
    out.stage_bubbles[stage] = std::clamp(1 - seconds / out.makespan_seconds, 0.0, 1.0);
    if (seconds > busy[out.busiest_stage]) out.busiest_stage = stage;
    if (seconds < busy[out.idlest_stage]) out.idlest_stage = stage;
  }
  out.microbatches = microbatches;
  if (microbatches.value_or(0) > 0)
    out.ideal_bubble = (stages - 1) / (static_cast<double>(*microbatches) + stages - 1);
  return out;
}

}  // namespace cox::diagnosis
