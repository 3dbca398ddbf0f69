// BatchStatistics makes the running statistics of torch's BatchNorm and InstanceNorm modules
// independent of the ranks that ran the micro-batches, for reproducible mode. Training thread.
//
//   statistics.begin_step();
//   each micro-batch:  begin_micro_batch(number); forward, backward; end_micro_batch();
//   at the end:        fold(...)                  // collective; or put_back(), to repeat the step
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

// Running statistics are folded over a step's micro-batches in ascending order, whatever the ranks:
// S = decay x S + part for each, with part = momentum x the statistic of one micro-batch. So the
// result is the same at any world size. Pure functions on plain values.
//
// StatisticsModule is one module with running statistics. A step's values are laid out module by
// module.
struct StatisticsModule {
  std::size_t values = 0;          // running mean and variance together
  std::optional<double> momentum;  // none: plain average over all micro-batches so far
  double tracked = 0;              // micro-batches before this step; used only without momentum
  bool in_fp32 = true;             // rounds to fp32 after every micro-batch, as the module does
};

// StatisticsPart is the result of one micro-batch that began with running statistics of 0.
struct StatisticsPart {
  std::uint64_t micro_batch = 0;    // counted over all ranks of the step
  std::vector<std::uint32_t> runs;  // by module; 0: it did not run, and its statistics stay
  std::vector<double> values;
};

// Returns the statistics after the step. `parts` has every micro-batch from 0 on exactly once, in
// any order. Returns internal for a part that is missing, duplicate or of another size. Returns
// failed_precondition for a module without momentum that ran in only some micro-batches, or several
// times in one.
Result<std::vector<double>> fold_statistics(std::span<const StatisticsModule> modules,
                                            std::vector<double> start,
                                            std::vector<StatisticsPart> parts);

// Convert parts to rows of doubles with one width, for gathering, and back. A row begins with its
// micro-batch, an unused row with -1.
std::size_t row_width(std::span<const StatisticsModule> modules);
std::vector<double> to_rows(std::span<const StatisticsPart> parts, std::size_t rows,
                            std::size_t width);
std::vector<StatisticsPart> from_rows(std::span<const double> rows, std::size_t width,
                                      std::size_t modules);

// BatchStatistics sets statistics to 0 before a micro-batch, so that they afterwards hold only the
// micro-batch's part. fold() gathers all ranks' parts and folds them in ascending micro-batches
// onto the values at the step's start (fold_statistics). One process that folds all parts has the
// same bits. A plain module differs by the rounding of a part, about one ulp a micro-batch.
//
// Modules in evaluation mode are left alone. Recompute may run within a micro-batch, because it
// restores buffers. A BatchNorm without momentum (a plain average) must run once in every
// micro-batch, and an InstanceNorm at most once.
class BatchStatistics {
 public:
  // Finds the modules that track statistics. `model` outlives the object.
  explicit BatchStatistics(torch::nn::Module& model);

  bool empty() const { return norms_.empty(); }  // then all functions below are no-ops
  // Returns the tensors written by fold(), equal on all ranks without further synchronisation.
  std::vector<at::Tensor> buffers() const;

  void begin_step();
  // `micro_batch`: the number in the step, counted over all ranks.
  void begin_micro_batch(std::uint64_t micro_batch);
  void end_micro_batch();

  // Sets statistics to their values after all `micro_batches` of the step, and raises the counters.
  // Collective: waits and calls `pump` meanwhile. `most_on_a_rank`: the largest number of
  // micro-batches on a rank; equal on all ranks. Returns the errors of fold_statistics() on every
  // rank, after restoring the statistics.
  Status fold(transport::Communicator& ranks, const transport::WaitPolicy& wait,
              const std::function<void()>& pump, std::uint64_t micro_batches,
              std::uint64_t most_on_a_rank);
  // Restores the statistics of begin_step() and drops the parts, for a step that failed or is
  // repeated.
  void put_back();

 private:
  struct Norm {
    torch::nn::Module* module = nullptr;
    at::Tensor mean;
    at::Tensor variance;
    at::Tensor tracked;  // counts runs in training mode, if `counts`
    std::function<std::optional<double>()> momentum;
    bool counts = false;
    std::int64_t mark = 0;    // count or version before the open micro-batch
    bool is_training = true;  // in the open micro-batch
  };
  template <class Module>
  void add(torch::nn::Module& module);
  std::uint32_t runs_of(const Norm& norm) const;
  std::vector<double> values() const;
  void write(std::span<const double> values);
  void restore(std::size_t index);
  Result<std::vector<StatisticsPart>> gather(transport::Communicator& ranks,
                                             const transport::WaitPolicy& wait,
                                             const std::function<void()>& pump,
                                             std::uint64_t most_on_a_rank);
  void count_runs(std::span<const StatisticsPart> parts);

  std::vector<Norm> norms_;
  std::vector<StatisticsModule> modules_;  // as of the step's start
  std::vector<double> start_;
  std::vector<std::int64_t> start_tracked_;
  std::vector<StatisticsPart> parts_;
  std::optional<std::uint64_t> open_;  // the running micro-batch
};

}  // namespace cox::detail
