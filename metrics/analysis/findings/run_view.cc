#include "metrics/analysis/findings/run_view.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string>
#include <utility>

#include "metrics/records/statistics.h"

namespace cox::diagnosis {
namespace {

constexpr double kWarmupFactor = 1.3;
constexpr std::size_t kMostWarmup = 50;
constexpr std::array<std::string_view, 1> kCommunicationPhase = {"comm"};

std::vector<float> chosen(std::vector<double> values, const std::vector<std::uint32_t>& rows) {
  std::vector<float> out;
  out.reserve(rows.empty() ? values.size() : rows.size());
  const auto put = [&out](double value) {
    out.push_back(is_absent(value) ? 0 : static_cast<float>(value));
  };
  if (rows.empty()) std::ranges::for_each(values, put);
  for (const std::uint32_t row : rows) put(values[row]);
  return out;
}

// Keeps the steps for which `keeps` is true.
template <class Keeps>
void filter(RunView& view, const Keeps& keeps) {
  std::vector<std::size_t> kept;
  for (std::size_t s = 0; s < view.size(); ++s) {
    if (keeps(s)) kept.push_back(s);
  }
  const auto pick = [&kept](auto& list) {
    if (list.empty()) return;
    for (std::size_t i = 0; i < kept.size(); ++i) list[i] = list[kept[i]];
    list.resize(kept.size());
  };
  for (RankView& rank : view.ranks) {
    if (rank.rows.empty()) {
      for (std::size_t s = 0; s < view.size(); ++s)
        rank.rows.push_back(static_cast<std::uint32_t>(s + view.first));
    }
    pick(rank.rows);
    pick(rank.work);
    pick(rank.comm);
  }
  pick(view.steps);
  pick(view.saving);
}

// Moves time spent waiting for the saves of other ranks out of communication.
void find_saving(const RunRecord& run, RunView& view) {
  std::vector<std::vector<float>> saved(run.ranks.size());  // empty for ranks that never saved
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const Column* column = find(run.ranks[r].own, "save");
    if (column == nullptr) continue;
    saved[r] = chosen(column->values(), view.ranks[r].rows);
    view.saving.resize(view.size(), 0);
    for (std::size_t s = 0; s < view.size(); ++s) {
      if (saved[r][s] > view.saving[s]) view.saving[s] = saved[r][s];
    }
  }
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    std::vector<float>& comm = view.ranks[r].comm;
    for (std::size_t s = 0; s < view.saving.size(); ++s) {
      const float own = saved[r].empty() ? 0 : std::max(0.0F, saved[r][s]);
      const float waited = view.saving[s] - own;
      if (waited > 0 && comm[s] > 0) comm[s] -= std::min(waited, comm[s]);
    }
  }
}

void leave_out_impossible(RunView& view) {
  const auto is_possible = [&view](std::size_t s) {
    return std::ranges::all_of(view.ranks, [s](const RankView& r) {
      return std::isfinite(r.work[s]) && std::isfinite(r.comm[s]) && r.work[s] >= 0 &&
             r.comm[s] >= 0;
    });
  };
  for (std::size_t s = 0; s < view.size(); ++s) view.impossible += is_possible(s) ? 0u : 1u;
  if (view.impossible > 0) filter(view, is_possible);
}

void find_extremes(RunView& view) {
  view.longest_work.assign(view.size(), 0);
  view.least_comm.assign(view.size(), 0);
  for (std::size_t s = 0; s < view.size(); ++s) {
    float longest = 0;
    float least = view.ranks[0].comm[s];
    for (const RankView& rank : view.ranks) {
      longest = std::max(longest, rank.work[s]);
      least = std::min(least, rank.comm[s]);
    }
    view.longest_work[s] = longest;
    view.least_comm[s] = least;
  }
}

std::size_t slow_start(const RunView& view) {
  if (view.size() < 10) return 0;
  std::vector<double> walls;
  for (std::size_t s = 0; s < view.size(); ++s) walls.push_back(view.wall(s));
  const double middle = median_of(walls);
  const std::size_t most = std::min(kMostWarmup, view.size() / 10);
  std::size_t warmup = 0;
  while (warmup < most && walls[warmup] > kWarmupFactor * middle) ++warmup;
  return warmup;
}

void leave_out_warmup(RunView& view, std::size_t steps) {
  view.warmup = std::min(steps, view.size());
  const auto drop = [&view](auto& list) {
    list.erase(list.begin(),
               list.begin() + static_cast<std::ptrdiff_t>(std::min(view.warmup, list.size())));
  };
  bool has_rows = false;
  for (RankView& rank : view.ranks) {
    has_rows = has_rows || !rank.rows.empty();
    drop(rank.rows);
    drop(rank.work);
    drop(rank.comm);
  }
  drop(view.steps);
  drop(view.saving);
  drop(view.longest_work);
  drop(view.least_comm);
  if (!has_rows) view.first += view.warmup;
}

// Sums the values of a column for which `counts` is true, mean over the ranks.
double sum_of_column(const RunView& view, Columns RankRecord::*columns, std::string_view name,
                     bool (*counts)(double)) {
  ExactSum sum;
  for (std::size_t r = 0; r < view.ranks.size(); ++r) {
    const Columns& of_rank = view.run->ranks[r].*columns;
    if (find(of_rank, name) == nullptr) continue;
    for (const double value : view.column(r, of_rank, name)) {
      if (counts(value)) sum.add(value);
    }
  }
  return sum.value() / static_cast<double>(view.ranks.size());
}

double sum_of_phase(const RunView& view, std::string_view phase) {
  return sum_of_column(view, &RankRecord::phases, phase,
                       [](double value) { return !is_absent(value); });
}

// Returns phases other than computing, data and communication, on any rank.
std::set<std::string> other_phases(const RunView& view) {
  std::set<std::string> names;
  for (const RankRecord& rank : view.run->ranks) {
    for (const auto& [name, column] : rank.phases) names.insert(name);
  }
  for (const char* known : {"data", "forward", "backward", "compute", "optimizer", "comm"})
    names.erase(known);
  return names;
}

// Seconds of waiting and transfer, mean over the ranks.
struct CommSplit {
  double wait = 0;
  double transfer = 0;
};

CommSplit comm_split(const RunView& view) {
  ExactSum wait;
  ExactSum transfer;
  for (std::size_t r = 0; r < view.ranks.size(); ++r) {
    for (std::size_t s = 0; s < view.size(); ++s) {
      wait.add(view.wait(r, s));
      transfer.add(view.transfer(r, s));
    }
  }
  const auto ranks = static_cast<double>(view.ranks.size());
  return {wait.value() / ranks, transfer.value() / ranks};
}

// Returns the seconds of one of our own columns outside the phases, mean over the ranks.
double sum_of_own(const RunView& view, std::string_view name) {
  return sum_of_column(view, &RankRecord::own, name,
                       [](double value) { return value > 0 && std::isfinite(value); });
}

// Returns the seconds of backward in which ranks recomputed activations or waited for them, mean
// over the ranks.
double recompute_seconds(const RunView& view) {
  ExactSum sum;
  for (std::size_t r = 0; r < view.ranks.size(); ++r) {
    for (const double seconds : view.recompute(r)) sum.add(seconds);
  }
  return sum.value() / static_cast<double>(view.ranks.size());
}

// Returns the time for the model's FLOPs at the device's peak, or all compute time if either is
// unknown. Sets the figures behind the result.
double useful_seconds(const RunView& view, const BudgetOptions& options, double compute,
                      Budget& out) {
  const RunInfo& info = view.run->lowest().info;
  out.flops_per_step = options.flops_per_step ? options.flops_per_step : info.flops_per_step;
  out.peak_flops = options.peak_flops ? options.peak_flops : info.peak_flops;
  if (!out.flops_per_step || !out.peak_flops || !(out.wall_seconds > 0)) return compute;
  const double at_peak = *out.flops_per_step * static_cast<double>(view.size()) / *out.peak_flops;
  const double useful = std::min(compute, at_peak);
  out.mfu = useful / out.wall_seconds;
  return useful;
}

}  // namespace

double RunView::transfer(std::size_t rank, std::size_t step) const {
  const auto comm = static_cast<double>(ranks[rank].comm[step]);
  return std::max(static_cast<double>(least_comm[step]), comm - wait(rank, step));
}

std::vector<double> RunView::recompute(std::size_t rank) const {
  const RankRecord& record = run->ranks[rank];
  if (find(record.own, "recompute") == nullptr) return {};
  std::vector<double> out = column(rank, record.own, "recompute");
  const std::vector<double> backward = column(rank, record.phases, "backward");
  for (std::size_t s = 0; s < size(); ++s) {
    // At most the backward phase. Absent values are NaN and compare as false.
    out[s] = out[s] > 0 && backward[s] > 0 ? std::min(out[s], backward[s]) : 0;
  }
  return out;
}

std::vector<double> RunView::column(std::size_t rank, const Columns& columns,
                                    std::string_view name) const {
  const std::vector<std::uint32_t>& rows = ranks[rank].rows;
  const std::size_t all_rows = run->ranks[rank].size();
  if (rows.empty()) {
    std::vector<double> out = values_of(columns, name, all_rows, first);
    out.resize(size());
    return out;
  }
  const std::vector<double> all = values_of(columns, name, all_rows);
  std::vector<double> out;
  out.reserve(size());
  for (const std::uint32_t row : rows) out.push_back(all[row]);
  return out;
}

RunView view_of(const RunRecord& run, std::optional<std::size_t> warmup) {
  RunView view;
  view.run = &run;
  view.ranks.resize(run.ranks.size());
  CommonSteps common = common_steps(run);
  view.steps = std::move(common.numbers);
  view.missing = common.missing;
  for (std::size_t r = 0; r < common.rows.size(); ++r)
    view.ranks[r].rows = std::move(common.rows[r]);
  for (std::size_t r = 0; r < run.ranks.size() && view.size() > 0; ++r) {
    const RankRecord& rank = run.ranks[r];
    RankView& out = view.ranks[r];
    out.work = chosen(row_sums(rank.phases, rank.size(), 0, kCommunicationPhase), out.rows);
    out.comm = chosen(values_of(rank.phases, "comm", rank.size()), out.rows);
  }
  if (view.size() > 0) find_saving(run, view);
  leave_out_impossible(view);
  find_extremes(view);
  leave_out_warmup(view, warmup.value_or(slow_start(view)));
  return view;
}

Budget budget_of(const RunView& view, const BudgetOptions& options) {
  Budget out;
  const CommSplit comm = comm_split(view);
  const double recompute = recompute_seconds(view);
  const double compute = sum_of_phase(view, "forward") + sum_of_phase(view, "backward") +
                         sum_of_phase(view, "compute") + sum_of_phase(view, "optimizer") -
                         recompute;
  const double data = sum_of_phase(view, "data");
  double other = 0;
  for (const std::string& phase : other_phases(view)) other += sum_of_phase(view, phase);
  ExactSum saved;
  for (const float seconds : view.saving) saved.add(static_cast<double>(seconds));
  const double saving = saved.value();
  const double control = sum_of_own(view, "host");
  out.wall_seconds =
      compute + recompute + data + other + comm.wait + comm.transfer + control + saving;
  const double model = useful_seconds(view, options, compute, out);
  const bool is_apart = options.recompute == RecomputeTime::apart;
  const auto add = [&out](const char* name, double seconds) {
    const double share = out.wall_seconds > 0 ? seconds / out.wall_seconds : 0;
    out.lines.push_back({name, seconds, share, !out.lines.empty()});
  };
  add("useful_compute", is_apart ? model : model + recompute);
  add("compute_overhead", compute - model);
  if (is_apart && recompute > 0) add("recompute", recompute);
  add("data_stall", data);
  add("exposed_communication", comm.transfer);
  add("waiting", comm.wait);
  if (control > 0) add("control", control);
  add("other", other);
  if (saving > 0) add("saving", saving);
  return out;
}

}  // namespace cox::diagnosis
