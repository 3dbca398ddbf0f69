// BlockRegistry is the list of a model's blocks, numbered in the order of their registration. It
// connects them to a sink, sets how much each call measures and hands the plan's formats and memory
// actions to them. A session owns it; the thread that trains uses it between steps. Its destructor
// stops all measuring and steering; the model may be gone by then.
#pragma once

#include <cassert>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/blocks/block_state.h"

namespace cox::detail {

Nanoseconds steady_now();

struct PinnedBlock {
  BlockId block;
  std::string reason;
};

class Fp8Block;
class HealthLedger;

class BlockRegistry {
 public:
  // Finds the marks that cox::Block and cox::wrap left in the model. The model itself, where it is
  // a block, is named "model". Returns resource_exhausted for more than kMaxBlocks blocks.
  static Result<BlockRegistry> discover(torch::nn::Module& model);

  BlockRegistry(BlockRegistry&&) = default;
  BlockRegistry& operator=(BlockRegistry&&) = delete;
  ~BlockRegistry();

  std::size_t size() const { return blocks_.size(); }
  // REQUIRES for this and every other function with a block: block < size().
  const std::string& name(BlockId block) const { return at(block).name; }
  std::uint64_t parameters(BlockId block) const { return at(block).parameters; }
  // Returns null when the module is gone.
  std::shared_ptr<torch::nn::Module> module(BlockId block) const { return at(block).module.lock(); }

  // Sends measurements to `sink`; nothing is measured before measure(). Returns
  // failed_precondition when another registry observes one of the blocks. REQUIRES: `sink` stays
  // until release().
  Status attach(BlockSink& sink, BlockClock clock = &steady_now);
  // Sets what all later calls measure. Without our autograd engine, full measures times only and
  // returns failed_precondition. REQUIRES: attached.
  Status measure(MeasureMode mode);
  void release();

  // Sets the format of the block's later calls. After release() calls compute in whatever is in
  // force where they are made.
  void set_precision(BlockId block, Precision format);
  void release_precision(BlockId block);
  // Gives a block in fp8 the state of its operands; without it such a block runs in bf16.
  void set_fp8(BlockId block, std::shared_ptr<Fp8Block> fp8);

  // Lets all blocks report their tensors to `ledger`, until release(). Null stops that.
  void set_health(const std::shared_ptr<HealthLedger>& ledger);

  // Sets the memory action of the block's later calls; release() makes all of them keep again.
  // Where our autograd engine is not in force, returns failed_precondition and sets keep.
  Status set_action(BlockId block, MemoryAction action);
  // Makes each block run its next call that can be differentiated again at once and compare the two
  // bit for bit. A block inside one that is being checked has its turn in the call after.
  void request_checks();
  // Returns whether some block has not had its turn; one that is never called never has.
  bool has_pending_checks() const;
  // Returns the blocks that recompute and tile leave alone, with the reason, in ascending order.
  std::vector<PinnedBlock> pinned() const;
  // Checks the block's next call to be recomputed anew.
  void unpin(BlockId block);
  // Sets who makes the frames of offloaded calls; without it they are kept in memory.
  void set_offload(const OffloadFrames& frames);

 private:
  BlockState& at(BlockId block) const {
    assert(block.value() < blocks_.size());
    return *blocks_[block.value()];
  }

  BlockRegistry() = default;
  void add(const std::string& name, const std::shared_ptr<BlockState>& state);

  std::vector<std::shared_ptr<BlockState>> blocks_;
  BlockSink* sink_ = nullptr;
};

}  // namespace cox::detail
