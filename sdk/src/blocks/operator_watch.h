// OperatorWatch is the actuator that counts single operators of forward passes in sampled steps.
// The first sample is the third step, when the setup is over and no block is measured otherwise.
//
//   sampled step -> OperatorTable -> StepOutput (the run directory and, on rank 0, the status page)
//                                 -> FLOPs of the rank's step (RankSignal) and of each block
//
// Counts in the visits of followed and adopted models. Does nothing in other steps. The end of a
// sampled step allocates only for a new operator, or if all published tables still have readers.
// Training thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "coordinator/core/operator_table.h"
#include "sdk/src/blocks/actuator.h"

namespace cox::detail {

class BlockWatch;

class OperatorWatch final : public Actuator, public Steering, public Reporting {
 public:
  // The sampled steps of the process are 2, 66, 130 and so on. A BlockWatch measures in none of
  // these.
  static constexpr std::uint64_t kEverySteps = 64;
  static constexpr std::uint64_t kFirstStep = 2;

  // `blocks` outlives the object.
  explicit OperatorWatch(BlockWatch& blocks) : blocks_(blocks) {}

  void release() override;
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  void sign(RankSignal& signal) const override;

 private:
  // FLOPs and samples of the newest sampled step with operators. FLOPs are in proportion to
  // samples.
  struct Newest {
    double flops = 0;
    std::uint64_t samples = 0;
  };

  // The run directory, the page and its current view have one each; the fourth is being written.
  static constexpr std::size_t kReaders = 4;

  void take(const StepEnd& step, StepOutput& output);
  void meet_blocks();
  std::shared_ptr<const OperatorTable> published();

  BlockWatch& blocks_;
  std::uint64_t steps_ = 0;
  bool is_sampled_ = false;  // the open step is sampled
  OperatorTable table_;
  std::vector<double> flops_;  // by block, of the newest sampled step
  Newest newest_;
  // Copies of the table. A copy without readers is reused.
  std::vector<std::shared_ptr<OperatorTable>> given_;
};

}  // namespace cox::detail
