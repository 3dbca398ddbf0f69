// BlockSteering holds the orders for each block's later visits: the memory action with the levels
// of recompute, the number format with its ProductCaller for FP8, and the reason to keep the block
// after all.
//
//   plan, trial, rules -> BlockSteering -> SteeredRegion (memory) and product formats
//
// A memory action applies to regions (steered_region.h); a format applies to every visit, from its
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
  // Adds a block, kept and in the program's own formats.
  void add_block(std::string name);
  std::size_t size() const { return blocks_.size(); }
  const std::string& name(BlockId block) const { return at(block).name; }
  // Returns the block of the name. Throws cox::Error with the nearest name for an unknown one.
  BlockId find(std::string_view name) const;
  // Resets all blocks: kept and in the program's own formats.
  void release();

  // Sets the memory action of the block's later regions: keep, offload, tile, or recompute in full
  // or at one of the block's levels. A pinned block is kept.
  void set_action(BlockId block, MemoryAction action) { at(block).action = action; }
  // Returns the memory action in force for the block.
  MemoryAction action(BlockId block) const;
  // Sets the tensors kept at each level of recompute, from level 1 on. In a format other than the
  // current one the block has other operators, and a level is recompute in full.
  void set_levels(BlockId block, std::vector<HoldChoice> levels);
  // Returns the choice of a recomputed region of the block. The choice refers to this object, until
  // the next set_levels() of the block.
  HoldChoice hold_choice(BlockId block) const;
  void pin(BlockId block, std::string reason) { at(block).pinned = std::move(reason); }
  std::vector<PinnedBlock> pinned() const;

  // Sets the format of products in the block's later visits; fp32 means as the program wrote them.
  void set_format(BlockId block, Precision format);
  // Sets the caller of the block's products in fp8. A declined product, or any without one, is
  // bf16.
  void set_fp8(BlockId block, std::shared_ptr<ProductCaller> caller) {
    at(block).fp8 = std::move(caller);
  }
  // Returns whether a block computes in a narrow format.
  bool has_narrow() const { return has_narrow_; }
  // Returns the format of the block's products if it is narrow.
  std::optional<ProductFormat> narrow_format(BlockId block) const;

 private:
  struct Block {
    std::string name;
    MemoryAction action = MemoryAction::keep;
    std::vector<HoldChoice> levels{};
    Precision format = Precision::fp32;
    Precision levels_format = Precision::fp32;  // in force when the levels were chosen
    std::shared_ptr<ProductCaller> fp8{};
    std::optional<std::string> pinned{};
  };

  Block& at(BlockId block) { return blocks_[block.value()]; }
  const Block& at(BlockId block) const { return blocks_[block.value()]; }

  std::vector<Block> blocks_;
  bool has_narrow_ = false;
};

// Sets the memory actions of all blocks, in order.
void set_actions(BlockSteering& steering, std::span<const MemoryAction> actions);

}  // namespace cox::detail
