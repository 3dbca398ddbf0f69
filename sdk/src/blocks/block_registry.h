// BlockRegistry: the blocks of one model, numbered in the order of their registration. It connects
// them to a sink and sets how much each call measures. Owned by a session; used between steps by
// the thread that trains. Destroying it stops all measuring; the model may be gone by then.
#pragma once

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
  // Finds what cox::Block and cox::wrap left in the model. The model itself, where it is a block,
  // is named "model". resource_exhausted when there are more than kMaxBlocks.
  static Result<BlockRegistry> discover(torch::nn::Module& model);

  BlockRegistry(BlockRegistry&&) = default;
  BlockRegistry& operator=(BlockRegistry&&) = delete;
  ~BlockRegistry();

  std::size_t size() const { return blocks_.size(); }
  // Requires: block < size().
  const std::string& name(BlockId block) const { return blocks_[block.value()]->name; }
  std::uint64_t parameters(BlockId block) const { return blocks_[block.value()]->parameters; }
  // nullptr when it is gone.
  std::shared_ptr<torch::nn::Module> module(BlockId block) const {
    return blocks_[block.value()]->module.lock();
  }

  // Measurements go to `sink`, which must stay until release(). Nothing is measured before
  // measure(). failed_precondition when another registry observes one of the blocks.
  Status attach(BlockSink& sink, BlockClock clock = &steady_now);
  // For all calls from now on. Requires: attached. For full without our autograd engine it measures
  // times and returns failed_precondition.
  Status measure(MeasureMode mode);
  void release();

  // The format of the block's calls from now on. Requires: block < size(). Those of a released
  // registry compute in whatever is in force where they are made.
  void set_precision(BlockId block, Precision format);
  void release_precision(BlockId block);
  // Where a block in fp8 keeps what it knows of its operands; without it such a block runs in bf16.
  void set_fp8(BlockId block, std::shared_ptr<Fp8Block> fp8);

  // Where all blocks write down what they see of their tensors; nullptr: nowhere. A released
  // registry's blocks do not.
  void set_health(const std::shared_ptr<HealthLedger>& ledger);

  // Memory actions. Those of a released registry are all keep again.
  // For all calls of the block from now on. Requires: block < size(). Where our autograd engine is
  // not in force nothing but keep is carried out: failed_precondition.
  Status set_action(BlockId block, MemoryAction action);
  // Each block's next call that can be differentiated is run again at once and compared bit for
  // bit. A block inside one that is being checked has its turn in the call after.
  void request_checks();
  // Whether some block has not had its turn; one that is never called never has.
  bool has_pending_checks() const;
  // Blocks that recompute and tile leave alone, with the reason, in ascending order.
  std::vector<PinnedBlock> pinned() const;
  // Its next call to be recomputed is checked anew.
  void unpin(BlockId block);
  // Where offloaded blocks get the frames of their calls from; without it they are kept.
  void set_offload(const OffloadFrames& frames);

 private:
  BlockRegistry() = default;
  void add(const std::string& name, const std::shared_ptr<BlockState>& state);

  std::vector<std::shared_ptr<BlockState>> blocks_;
  BlockSink* sink_ = nullptr;
};

}  // namespace cox::detail
