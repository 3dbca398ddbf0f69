// ExactReduction: averaging in reproducible mode. The gradient of every micro-batch is deposited in
// fp64 accumulators that add without error (exact_sum.h), so the average has the same bits for any
// number of ranks, any shares in whole micro-batches and any order of arrival. Buckets start during
// the backward pass of the last micro-batch, as in the ordinary way. A magnitude out of its bin
// makes merge() ask for the step to be repeated; the bins then fit. Thread rule: the thread that
// trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/parallel/exact_sum.h"
#include "sdk/src/parallel/gradient_layout.h"
#include "sdk/src/parallel/gradient_reduction.h"
#include "sdk/src/parallel/step_exchange.h"

namespace cox::detail {

// Every gradient takes an fp64 accumulator. `needed`: one a parameter, whether it has one.
std::vector<GradientShape> exact_shapes(const std::vector<at::Tensor>& parameters,
                                        const std::vector<bool>& needed);
// invalid_argument for parameters that this way cannot sum (fp64, or not on the CPU).
Status check_exact(const std::vector<at::Tensor>& parameters);

class ExactReduction final : public GradientReduction {
 public:
  // `bins`: one a parameter, from first_bin() or an earlier run; equal on all ranks.
  ExactReduction(const std::vector<at::Tensor>& parameters, GradientLayout layout,
                 std::unique_ptr<StepExchange> exchange, std::vector<ExactBin> bins);

  double factor(const MicroBatchFacts& facts) const override { return facts.loss_scale; }
  void begin(const MicroBatchFacts& facts) override;
  void ready(std::size_t parameter) override;
  void end() override;
  void flush() override;
  StepBallot merge(StepBallot mine, const std::function<void()>& pump) override;
  double hand_back(double total, double loss_scale) override;
  const std::vector<std::int64_t>& nonfinite() const override { return nonfinite_; }

  const std::vector<ExactBin>& bins() const { return bins_; }
  StepExchange* exchange() override { return exchange_.get(); }
  std::span<const std::uint32_t> order() const override { return order_; }

 private:
  void add(std::size_t parameter);
  void complete(std::size_t parameter);
  std::span<double> accumulator(std::size_t parameter);
  // Of the step just merged, over all ranks: micro-batches, and whether the bins had room for them.
  std::uint64_t deposits_of_all() const;
  bool has_room() const;
  void learn_bins();

  const std::vector<at::Tensor>& parameters_;
  BucketQueue queue_;
  std::unique_ptr<StepExchange> exchange_;
  std::vector<ExactBin> bins_;
  std::vector<at::Tensor> averages_;     // what .grad becomes
  std::vector<std::int64_t> nonfinite_;  // of the step just merged ...
  std::vector<std::int64_t> seen_;       // ... and of the open one
  std::vector<double> amax_;
  std::vector<std::uint32_t> order_;
  std::vector<bool> has_deposit_;
  std::uint64_t micro_batches_ = 0;
  std::thread::id thread_;
  MicroBatchFacts facts_;
  bool fits_ = true;
  bool is_open_ = false;  // in a backward pass of the reducer's own
};

}  // namespace cox::detail
