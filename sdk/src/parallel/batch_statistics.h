// BatchStatistics makes the running statistics of torch's BatchNorm and InstanceNorm modules
// independent of which rank ran which micro-batch, for reproducible mode:
//
//   statistics.begin_step();
//   each micro-batch:  begin_micro_batch(number); forward, backward; end_micro_batch();
//   at the end:        fold(...)                  // collective; or put_back(), to repeat the step
//
// Before a micro-batch statistics are set to 0, so that afterwards they hold that micro-batch's
// part alone; fold() gathers the parts of all ranks and folds them in ascending micro-batches from
// the values at the step's start (fold_statistics). One process that folds all has the same bits;
// a module left alone differs from them by the rounding of a part, one ulp or so a micro-batch.
//
// Modules in evaluation mode are left alone. Recompute may run within a micro-batch: it puts
// buffers back by itself. A BatchNorm without momentum (a plain average) has to run once in every
// micro-batch, and an InstanceNorm at most once. Thread rule: the training thread.
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

// Running statistics are folded over the micro-batches of a step in ascending order, whatever rank
// ran them: S = decay x S + part for each, where a part is momentum x the statistic of one
// micro-batch. So they are the same values at any world size. Pure functions on plain values.
//
// StatisticsModule is one module that keeps running statistics; all values of a step are laid out
// module by module.
struct StatisticsModule {
  std::size_t values = 0;          // running mean and variance together
  std::optional<double> momentum;  // none: the plain average over all micro-batches so far
  double tracked = 0;              // micro-batches before this step; counts without momentum only
  bool in_fp32 = true;             // rounded to fp32 after every micro-batch, as the module does
};

// StatisticsPart is what one micro-batch left behind, where running statistics were 0 before it.
struct StatisticsPart {
  std::uint64_t micro_batch = 0;    // counted over all ranks of the step
  std::vector<std::uint32_t> runs;  // by module; 0: it did not run, its statistics stay
  std::vector<double> values;
};

// Returns the statistics after the step. `parts` has every micro-batch from 0 on exactly once, in
// any order. Returns internal when one is missing, there twice or of another size;
// failed_precondition for a module without momentum that ran in some micro-batches only, or several
// times in one.
Result<std::vector<double>> fold_statistics(std::span<const StatisticsModule> modules,
                                            std::vector<double> start,
                                            std::vector<StatisticsPart> parts);

// Convert parts to rows of doubles of one width, which can be gathered, and back. A row begins with
// its micro-batch, an unused row with -1.
std::size_t row_width(std::span<const StatisticsModule> modules);
std::vector<double> to_rows(std::span<const StatisticsPart> parts, std::size_t rows,
                            std::size_t width);
std::vector<StatisticsPart> from_rows(std::span<const double> rows, std::size_t width,
                                      std::size_t modules);

class BatchStatistics {
 public:
  // Finds the modules that track statistics; `model` must outlive this.
  explicit BatchStatistics(torch::nn::Module& model);

  bool empty() const { return norms_.empty(); }  // nothing below does anything then
  // Returns the tensors that fold() writes, which are equal on all ranks without anything else.
  std::vector<at::Tensor> buffers() const;

  void begin_step();
  // `micro_batch`: its number in the step, counted over all ranks.
  void begin_micro_batch(std::uint64_t micro_batch);
  void end_micro_batch();

  // Sets statistics to those after all `micro_batches` of the step, and raises the counters.
  // Collective: waits, calling `pump` meanwhile. `most_on_a_rank`: how many micro-batches the rank
  // with the most of them had; equal on all ranks. Returns the errors of fold_statistics(), on
  // every rank, and then puts statistics back.
  Status fold(transport::Communicator& ranks, const transport::WaitPolicy& wait,
              const std::function<void()>& pump, std::uint64_t micro_batches,
              std::uint64_t most_on_a_rank);
  // Puts statistics back as they were at begin_step() and forgets the parts, for a step that failed
  // or is repeated.
  void put_back();

 private:
  struct Norm {
    torch::nn::Module* module = nullptr;
    at::Tensor mean;
    at::Tensor variance;
    at::Tensor tracked;  // counts its runs in training mode, where `counts`
    std::function<std::optional<double>()> momentum;
    bool counts = false;
    std::int64_t mark = 0;    // of the open micro-batch: the count or version before it
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
  std::optional<std::uint64_t> open_;  // the micro-batch that runs
};

}  // namespace cox::detail
