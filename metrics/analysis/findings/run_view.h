// RunView is the input of our own rules: the steps common to all ranks of a run, without warm-up.
// docs/diagnosis.md ("Where the time goes") explains the split of a step's wall time:
//
//   wait     = longest own work of all ranks - own work of this rank
//   transfer = max(least communication of all ranks, communication - wait)
//   wall     = work + wait + transfer + saving
//
//   RunRecord -> view_of() -> RunView -> own_findings(), budget_of()
//
// A view refers to the record and takes eight bytes a step and rank beside it. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "metrics/analysis/findings/figures.h"
#include "metrics/records/run_record.h"

namespace cox::diagnosis {

struct RankView {
  std::vector<std::uint32_t> rows;  // the record's rows; empty: row = step index + RunView::first
  std::vector<float> work;          // s, all phases but comm
  std::vector<float> comm;          // s
};

struct RunView {
  const RunRecord* run = nullptr;
  std::vector<RankView> ranks;
  std::vector<std::int64_t> steps;  // numbers
  std::vector<float> saving;        // s, [step]: before it, until all ranks had saved; empty: none
  std::vector<float> longest_work;  // [step] over the ranks
  std::vector<float> least_comm;    // [step]
  std::size_t first = 0;            // row of the first step, if the ranks' `rows` are empty
  std::size_t warmup = 0;           // leading steps left out
  std::size_t missing = 0;          // steps left out: recorded by some ranks only
  std::size_t impossible = 0;       // steps left out: times below zero or not finite

  std::size_t size() const { return steps.size(); }
  // Returns the seconds of a step without saving: the longest work, then the communication in which
  // no rank waited.
  double wall(std::size_t step) const {
    return static_cast<double>(longest_work[step]) + static_cast<double>(least_comm[step]);
  }
  double wait(std::size_t rank, std::size_t step) const {
    return static_cast<double>(longest_work[step]) - static_cast<double>(ranks[rank].work[step]);
  }
  double transfer(std::size_t rank, std::size_t step) const;
  // Returns the seconds of each step's backward pass in which the rank recomputed activations or
  // waited for them, else 0. Empty if the rank's record has no such seconds.
  std::vector<double> recompute(std::size_t rank) const;
  // Returns a column of a rank for the steps of the view; all absent if the record has none.
  std::vector<double> column(std::size_t rank, const Columns& columns, std::string_view name) const;
};

// Builds the view. `warmup` nullopt: leaves out leading steps that took more than 1.3 times the
// median step, at most 50 steps or a tenth of the run. REQUIRES: the record has a rank, and
// outlives the view.
RunView view_of(const RunRecord& run, std::optional<std::size_t> warmup);

// The budget of the ranks' wall time, mean over the ranks. The lines sum to the wall time.
struct Budget {
  std::vector<BudgetLine> lines;
  double wall_seconds = 0;
  std::optional<double> mfu;
  std::optional<double> flops_per_step;
  std::optional<double> peak_flops;
};
// Selects how time counts in which activations were recomputed or waited for.
enum class RecomputeTime : std::uint8_t { apart, useful };
struct BudgetOptions {
  std::optional<double> flops_per_step;  // a rank's share of the model's FLOPs, without recompute
  std::optional<double> peak_flops;
  RecomputeTime recompute = RecomputeTime::apart;
};
// Returns the lines useful_compute, compute_overhead, recompute, data_stall, exposed_communication,
// waiting, control (Coxswain's own work between steps), other and saving. Leaves out empty lines of
// recompute, control and saving. The MFU never counts recompute.
Budget budget_of(const RunView& view, const BudgetOptions& options);

}  // namespace cox::diagnosis
