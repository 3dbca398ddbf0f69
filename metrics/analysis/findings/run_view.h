// RunView: the steps that all ranks of a run have, without the warm-up, as our own rules look at
// them: work apart from waiting, and waiting apart from communication.
//
//   RunRecord -> view_of() -> RunView -> own_findings(), budget_of()
//
// Whether time booked on communication contains waiting for the last rank depends on who wrote the
// record, so waiting is found from the work. In each step
//
//   wait     = longest own work of all ranks - own work of this rank
//   transfer = max(least communication of all ranks, communication - wait)
//
// as in run_model.h, and the wall time is work + wait + transfer. Where one rank saved before the
// step, the others waited for that in the step's communication; that time is told apart as saving,
// and is part of the wall time. A view takes eight bytes a step
// and rank beside the record, to which it refers. Pure; any thread.
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
  std::vector<std::uint32_t> rows;  // of the record; empty: row = step index + RunView::first
  std::vector<float> work;          // s, all phases but comm
  std::vector<float> comm;          // s
};

struct RunView {
  const RunRecord* run = nullptr;
  std::vector<RankView> ranks;
  std::vector<std::int64_t> steps;  // numbers
  std::vector<float> saving;  // s, [step]: before it, until the last rank had saved; empty: none
  std::vector<float> longest_work;  // [step] over the ranks
  std::vector<float> least_comm;    // [step]
  std::size_t first = 0;            // row of the first step, where rows are those of the record
  std::size_t warmup = 0;           // steps left out before
  std::size_t missing = 0;          // steps left out: not recorded by each rank that was at it
  std::size_t impossible = 0;       // steps left out: times below zero or not finite

  std::size_t size() const { return steps.size(); }
  // Seconds that a step takes, without saving: the longest work, then the communication that nobody
  // waited in.
  double wall(std::size_t step) const {
    return static_cast<double>(longest_work[step]) + static_cast<double>(least_comm[step]);
  }
  double wait(std::size_t rank, std::size_t step) const {
    return static_cast<double>(longest_work[step]) - static_cast<double>(ranks[rank].work[step]);
  }
  double transfer(std::size_t rank, std::size_t step) const;
  // Seconds of each step's backward pass in which the rank made activations again or waited for
  // them, 0 where it did not. Empty where its record has none.
  std::vector<double> recompute(std::size_t rank) const;
  // A column of a rank for the steps of the view; absent where the record has none.
  std::vector<double> column(std::size_t rank, const Columns& columns, std::string_view name) const;
};

// REQUIRES: the record has a rank, and outlives the view. `warmup` none: leading steps that took
// more than 1.3 times the median of all, 50 or a tenth of the run at most.
RunView view_of(const RunRecord& run, std::optional<std::size_t> warmup);

// Where the wall time of the ranks went, mean over the ranks; the lines sum to the wall time.
struct Budget {
  std::vector<BudgetLine> lines;
  double wall_seconds = 0;
  std::optional<double> mfu;
  std::optional<double> flops_per_step;
  std::optional<double> peak_flops;
};
// How time counts in which activations were made again or waited for, as the record tells it.
enum class RecomputeTime : std::uint8_t { apart, useful };
struct BudgetOptions {
  std::optional<double> flops_per_step;  // of a rank; those of the model, without recompute
  std::optional<double> peak_flops;
  RecomputeTime recompute = RecomputeTime::apart;
};
// The lines are useful_compute, compute_overhead, recompute, data_stall, exposed_communication,
// waiting, control (Coxswain's own work between steps), other and saving; recompute, control and
// saving only where there is any. The MFU knows no
// recompute, however it counts.
Budget budget_of(const RunView& view, const BudgetOptions& options);

}  // namespace cox::diagnosis
