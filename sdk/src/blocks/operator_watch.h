// OperatorWatch is the actuator that counts the operators of forward passes one by one: in one step
// of many, the third one first, when what sets up is over and no block is measured otherwise.
//
//   sampled step -> OperatorTable -> StepOutput (the run directory and, on rank 0, the status page)
//                                 -> FLOPs of the rank's step (RankSignal) and of each block
//
// It counts in the visits of followed and adopted models. In other steps it does nothing. The end
// of a sampled step allocates only where an operator is new, or where all tables that it has given
// away are still read. Training thread only.
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
  // Steps 2, 66, 130, ... of the process are sampled: none in which a BlockWatch measures.
  static constexpr std::uint64_t kEverySteps = 64;
  static constexpr std::uint64_t kFirstStep = 2;

  // `blocks` must outlive this.
  explicit OperatorWatch(BlockWatch& blocks) : blocks_(blocks) {}

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

  // The run directory, the page and what it shows have one each, and another is written.
  static constexpr std::size_t kReaders = 4;

  void take(const StepEnd& step, StepOutput& output);
  void meet_blocks();
  std::shared_ptr<const OperatorTable> published();

  BlockWatch& blocks_;
  std::uint64_t steps_ = 0;
  bool is_sampled_ = false;  // the open step
  OperatorTable table_;
  std::vector<double> flops_;  // by block, of the newest sampled step
  Newest newest_;
  // Copies of the table. One that nobody else has is written again.
  std::vector<std::shared_ptr<OperatorTable>> given_;
};

}  // namespace cox::detail
