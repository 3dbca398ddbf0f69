// A seeded job for the tests of telemetry: ranks with blocks, a falling loss, a straggler, plans
// that are published and become active, reasons of several policies. Deterministic; no clock, no
// threads.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "coordinator/core/operator_table.h"
#include "coordinator/decide/record.h"
#include "simulated_numerics.h"

namespace cox::metrics {

struct SimulatedSetup {
  std::string name = "gpt2-dictionary";
  std::int32_t ranks = 4;
  std::size_t blocks = 14;
  std::uint64_t seed = 1;
  std::int32_t slow_rank = 2;  // -1 = none
  double start = 1'780'000'000;
  double step_seconds = 0.41;
  bool plans_memory = true;  // blocks 1 to 4 have measurements of a second action
  MemoryAction saving = MemoryAction::recompute;  // the second action
  bool ranks_differ = false;                      // in actions: only the upper half recomputes
  bool uneven = false;    // ranks compute 2, 4, 6, 2, ... micro-batches of a larger batch
  bool numerics = false;  // formats, a loss scaler, overflows (simulated_numerics.h)
  bool troubled = false;  // all ranks wait for data, and rank 1 leaks memory
};

// Bytes of every rank if memory is planned: the budget, the peak with every block kept, and the
// part of the peak saved by recomputing.
inline constexpr std::int64_t kSimulatedBudget = std::int64_t{13} << 29;    // 6.5 GiB
inline constexpr std::int64_t kSimulatedKeepPeak = std::int64_t{15} << 29;  // 7.5 GiB
inline constexpr std::int64_t kSimulatedSaving = std::int64_t{1} << 30;
inline constexpr std::size_t kSimulatedBlocks = 4;  // from the second on, these can save memory

inline constexpr float kSimulatedFlops = 1e9f;         // for each sample
inline constexpr double kSimulatedPeakFlops = 2.5e11;  // a device's, in a second

// Returns rank 0's operators in two blocks.
std::shared_ptr<const OperatorTable> simulated_operators();

class SimulatedJob {
 public:
  explicit SimulatedJob(SimulatedSetup setup);

  const JobFacts& job() const { return job_; }

  // Plays one round into `sink`.
  void step(StepSink& sink);
  void steps(StepSink& sink, int count);

  // Changes for the next rounds.
  std::int32_t missing_rank = -1;
  bool repeating = false;  // a sum was out of range
  bool nonfinite = false;
  bool finishing = false;  // all ranks send their last reports
  double now() const { return now_; }
  void set_now(double now) { now_ = now; }
  std::uint64_t round() const { return round_; }

 private:
  RankSignal signal_of(std::int32_t rank);
  void samples_of(std::int32_t rank, RankSignal& signal) const;
  void phases_of(std::int32_t rank, RankSignal& signal);
  void decide(Decision& decision);
  void toggle_recompute(Decision& decision);
  void publish(Decision& decision, Reason reason);
  void split_ranks();
  void change_formats(Decision& decision);
  bool is_overflow() const { return setup_.numerics && numerics_.overflows_in(round_); }

  SimulatedSetup setup_;
  JobFacts job_;
  std::vector<std::int64_t> budgets_;
  Plan plan_;
  ControlCounters counters_;
  SimulatedNumerics numerics_;
  std::mt19937_64 random_;
  std::uint64_t round_ = 0;
  double now_;
};

}  // namespace cox::metrics
