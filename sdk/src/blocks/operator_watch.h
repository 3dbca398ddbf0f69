// OperatorWatch is the actuator that counts the operators of forward passes one by one: in one step
// of many, the third one first, when what sets up is over and no block is measured otherwise.
//
//   sampled step -> OperatorTable -> StepOutput (the run directory and, on rank 0, the status page)
//                                 -> FLOPs of the rank's step (RankSignal) and of each block
//
// It counts in the visits of followed and adopted models. In other steps it does nothing. Training
// thread only.
#pragma once

#include <cstdint>

#include "coordinator/core/operator_table.h"
#include "sdk/src/blocks/actuator.h"

namespace cox::detail {

class BlockWatch;

class OperatorWatch final : public Actuator {
 public:
  // Steps 2, 66, 130, ... of the process are sampled: none in which a BlockWatch measures.
  static constexpr std::uint64_t kEverySteps = 64;
  static constexpr std::uint64_t kFirstStep = 2;

  // `blocks` must outlive this.
  explicit OperatorWatch(BlockWatch& blocks) : blocks_(blocks) {}

  const char* name() const override { return "operators"; }
  void release() override;
  void begin_step() override;
  void end_step(const StepEnd& step, StepOutput& output) override;
  void sign(RankSignal& signal) const override;

 private:
  // FLOPs of the newest sampled step that had operators, and its samples, by which they grow.
  struct Newest {
    double flops = 0;
    std::uint64_t samples = 0;
  };

  void take(const StepEnd& step, StepOutput& output);

  BlockWatch& blocks_;
  std::uint64_t steps_ = 0;
  bool is_sampled_ = false;  // the open step
  OperatorTable table_;
  Newest newest_;
};

}  // namespace cox::detail
