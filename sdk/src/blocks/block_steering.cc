#include "sdk/src/blocks/block_steering.h"

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coxswain/error.h"

namespace cox::detail {

void BlockSteering::add_block(std::string name) {
  blocks_.push_back({std::move(name)});
}

BlockId BlockSteering::find(std::string_view name) const {
  const auto named = std::ranges::find(blocks_, name, &Block::name);
  if (named != blocks_.end()) return BlockId(static_cast<BlockId::rep>(named - blocks_.begin()));
  std::vector<std::string> names;
  for (const Block& block : blocks_) names.push_back(block.name);
  throw Error(
      invalid_argument("cox::block: expected the name of a block, or one of blocks.scopes, found ",
                       shown(name), "; the nearest are ", nearest_names(names, name)));
}

void BlockSteering::release() {
  for (Block& block : blocks_) {
    block.action = MemoryAction::keep;
    block.format = Precision::fp32;
  }
  has_narrow_ = false;
}

MemoryAction BlockSteering::action(BlockId block) const {
  return at(block).pinned ? MemoryAction::keep : at(block).action;
}

void BlockSteering::set_levels(BlockId block, std::vector<HoldChoice> levels) {
  Block& it = at(block);
  it.levels = std::move(levels);
  it.levels_format = it.format;
}

HoldChoice BlockSteering::hold_choice(BlockId block) const {
  const Block& it = at(block);
  const unsigned level = level_of(it.action);
  if (level == 0 || level > it.levels.size()) return {};
  if (it.levels_format != it.format) return {};
  return [&choice = it.levels[level - 1]](const SavedValue& value) { return choice(value); };
}

std::vector<PinnedBlock> BlockSteering::pinned() const {
  std::vector<PinnedBlock> pinned;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    if (blocks_[b].pinned) pinned.push_back({block, *blocks_[b].pinned});
  }
  return pinned;
}

void BlockSteering::set_format(BlockId block, Precision format) {
  at(block).format = format;
  has_narrow_ = std::ranges::any_of(
      blocks_, [](const Block& each) { return each.format != Precision::fp32; });
}

std::optional<ProductFormat> BlockSteering::narrow_format(BlockId block) const {
  const Block& it = at(block);
  switch (it.format) {
    case Precision::fp32:
      return std::nullopt;
    case Precision::fp16:
      return ProductFormat{at::kHalf};
    case Precision::bf16:
      return ProductFormat{at::kBFloat16};
    case Precision::fp8:
      return ProductFormat{at::kBFloat16, it.fp8.get()};
  }
  return std::nullopt;
}

void set_actions(BlockSteering& steering, std::span<const MemoryAction> actions) {
  for (std::size_t b = 0; b < actions.size(); ++b)
    steering.set_action(BlockId(static_cast<BlockId::rep>(b)), actions[b]);
}

}  // namespace cox::detail
