// BlockSteering holds what each block was told to do in its later visits: its memory action with
// the levels of recompute, its number format with who runs FP8, and the reason to keep it after
// all.
//
//   plan, trial, rules -> BlockSteering -> SteeredRegion (memory) and product formats
//
// A memory action holds for regions (steered_region.h); a format holds for every visit, from its
// first operator to the next visit's. Training thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/precision_format.h"
#include "coordinator/core/units.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/tape.h"

namespace cox::detail {

struct PinnedBlock {
  BlockId block;
  std::string reason;
};

class BlockSteering {
 public:
  // Adds a block, which is kept and computes as the program wrote it.
  void add_block(std::string name);
  std::size_t size() const { return blocks_.size(); }
  const std::string& name(BlockId block) const { return at(block).name; }
  // Returns the block of that name. Throws cox::Error, which names the nearest, where there is
  // none.
  BlockId find(std::string_view name) const;
  // All blocks are kept and compute as the program wrote them.
  void release();

  // Sets the memory action of the block's later regions: keep, offload, tile, or recompute in full
  // or at a level that the block has. A pinned block is kept.
  void set_action(BlockId block, MemoryAction action) { at(block).action = action; }
  // Returns the memory action that holds for the block.
  MemoryAction action(BlockId block) const;
  // Sets what is kept at each level of recompute, from level 1 on. In another format than now the
  // block has other operators: a level is then recompute in full.
  void set_levels(BlockId block, std::vector<HoldChoice> levels);
  // Returns what a recomputed region of the block keeps. The choice refers to this, until the next
  // set_levels() of the block.
  HoldChoice hold_choice(BlockId block) const;
  void pin(BlockId block, std::string reason) { at(block).pinned = std::move(reason); }
  std::vector<PinnedBlock> pinned() const;

  // Sets the format that products of the block's later visits run in; fp32 is what the program
  // wrote.
  void set_format(BlockId block, Precision format);
  // Sets who runs the block's products in fp8; what he declines, and all without him, is bf16.
  void set_fp8(BlockId block, std::shared_ptr<ProductCaller> caller) {
    at(block).fp8 = std::move(caller);
  }
  // Whether a block computes in a narrow format.
  bool has_narrow() const { return has_narrow_; }
  // Returns the format of the block's products where it is narrow.
  std::optional<ProductFormat> narrow_format(BlockId block) const;

 private:
  struct Block {
    std::string name;
    MemoryAction action = MemoryAction::keep;
    std::vector<HoldChoice> levels{};
    Precision format = Precision::fp32;
    Precision levels_format = Precision::fp32;  // in which the levels were chosen
    std::shared_ptr<ProductCaller> fp8{};
    std::optional<std::string> pinned{};
  };

  Block& at(BlockId block) { return blocks_[block.value()]; }
  const Block& at(BlockId block) const { return blocks_[block.value()]; }

  std::vector<Block> blocks_;
  bool has_narrow_ = false;
};

// Sets the memory actions of all blocks, in their order.
void set_actions(BlockSteering& steering, std::span<const MemoryAction> actions);

}  // namespace cox::detail
