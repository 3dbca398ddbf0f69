// BatchStatistics: what makes the running statistics of torch's BatchNorm and InstanceNorm modules
// independent of which rank ran which micro-batch, for reproducible mode:
//
//   statistics.begin_step();
//   each micro-batch:  begin_micro_batch(number); forward, backward; end_micro_batch();
//   at the end:        fold(...)                  // collective; or put_back(), to repeat the step
//
// Before a micro-batch statistics are set to 0, so that afterwards they hold that micro-batch's
// part alone; fold() gathers the parts of all ranks and folds them in ascending micro-batches from
// the values at the step's start (statistics_fold.h). One process that folds all has the same bits;
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
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"
#include "sdk/src/parallel/statistics_fold.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

class BatchStatistics {
 public:
  // Finds the modules that track statistics; `model` must outlive this.
  explicit BatchStatistics(torch::nn::Module& model);

  bool empty() const { return norms_.empty(); }  // nothing below does anything then
  // The tensors that fold() writes, which need no other care to be equal on all ranks.
  std::vector<at::Tensor> buffers() const;

  void begin_step();
  // `micro_batch`: its number in the step, counted over all ranks.
  void begin_micro_batch(std::uint64_t micro_batch);
  void end_micro_batch();

  // Statistics become those after all `micro_batches` of the step; counters rise. Collective:
  // waits, calling `pump` meanwhile. `most_on_a_rank`: how many micro-batches the rank with the
  // most of them had; equal on all ranks. Errors as of fold_statistics(), on every rank; statistics
  // are put back then.
  Status fold(transport::Communicator& ranks, const transport::WaitPolicy& wait,
              const std::function<void()>& pump, std::uint64_t micro_batches,
              std::uint64_t most_on_a_rank);
  // As they were at begin_step(); parts are forgotten. For a step that failed or is repeated.
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
