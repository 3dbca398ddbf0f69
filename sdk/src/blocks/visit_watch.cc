#include "sdk/src/blocks/visit_watch.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coxswain/error.h"
#include "sdk/src/device/bits_hash.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {

// Counts what autograd saved, and notes when it is asked for. What becomes of the tensor is the
// visit's tape's business; without one it is kept. Hooks switch off autograd's own check of
// versions, so they make it themselves.
class VisitWatch::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  Hooks(std::shared_ptr<VisitWatch> watch, Place place,
        std::unique_ptr<SavedVariableHooks> deciding)
      : watch_(std::move(watch)), place_(place), deciding_(std::move(deciding)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    watch_->count(place_.block, tensor);
    if (deciding_ != nullptr) return deciding_->call_pack_hook(tensor);
    version_ = version_of(tensor);
    kept_ = is_parameter(tensor) ? tensor : tensor.detach();
  }

  at::Tensor call_unpack_hook() override {
    watch_->unpack(place_);
    if (deciding_ != nullptr) return deciding_->call_unpack_hook();
    if (version_of(kept_) == version_) return kept_;
    throw Error(failed_precondition(changed_in_place(kept_.sizes(), version_, version_of(kept_))));
  }

 private:
  const std::shared_ptr<VisitWatch> watch_;
  const Place place_;
  const std::unique_ptr<SavedVariableHooks> deciding_;
  at::Tensor kept_;
  std::int64_t version_ = 0;
};

namespace {

// Whether its bytes can be read as they lie.
bool is_comparable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.element_size() <= 8 &&
         tensor.is_non_overlapping_and_dense();
}

// As the bytes lie, too: two tensors of the same strides are compared. Needs little memory, as the
// step in which it happens has a budget.
at::Tensor bits_on_device(const at::Tensor& tensor) {
  constexpr std::int64_t kElementsAtOnce = 1L << 16;
  const at::Tensor flat = tensor.detach().as_strided({tensor.numel()}, {1});
  return bits_hash_on(tensor.device(), {{flat}}, kElementsAtOnce);
}

// Looks at tensors on a device. What goes wrong (its memory is full, say) costs this look, never
// the step.
template <class Look>
void look_only(const Look& look) noexcept {
  try {
    look();
  } catch (const std::exception&) {
  }
}

}  // namespace

// Compares what the hooks that decide give back with what they were given. An operator may save a
// result before it is written, so the hash is taken when it has ended.
class VisitWatch::Compared final : public torch::autograd::SavedVariableHooks {
 public:
  Compared(std::shared_ptr<VisitWatch> watch, BlockId region,
           std::unique_ptr<SavedVariableHooks> deciding)
      : watch_(std::move(watch)), region_(region), deciding_(std::move(deciding)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    deciding_->call_pack_hook(tensor);
    if (!is_comparable(tensor) || is_parameter(tensor)) return;
    bits_ = std::make_shared<Bits>(tensor.detach());
    watch_->dropped_.push_back(bits_);
  }

  at::Tensor call_unpack_hook() override {
    at::Tensor found = deciding_->call_unpack_hook();
    if (bits_ != nullptr && is_comparable(found)) watch_->compare_bits(region_, *bits_, found);
    return found;
  }

 private:
  const std::shared_ptr<VisitWatch> watch_;
  const BlockId region_;
  const std::unique_ptr<SavedVariableHooks> deciding_;
  std::shared_ptr<Bits> bits_;
};

void VisitWatch::add_block(std::string name, std::uint64_t elements) {
  blocks_.push_back({std::move(name), elements});
  const std::lock_guard lock(mutex_);
  seen_.emplace_back();
}

void VisitWatch::release() {
  leave_block();
  mode_ = MeasureMode::off;
  meters_ = false;
  for (Block& block : blocks_) {
    block.action = MemoryAction::keep;
    block.format = Precision::fp32;
  }
  has_narrow_ = false;
  observer_ = nullptr;
  open_offload_ = nullptr;
  const std::lock_guard lock(mutex_);
  sink_ = nullptr;
}

void VisitWatch::set_action(BlockId block, MemoryAction action) {
  blocks_[block.value()].action = action;
}

void VisitWatch::set_format(BlockId block, Precision format) {
  blocks_[block.value()].format = format;
  has_narrow_ = std::ranges::any_of(
      blocks_, [](const Block& each) { return each.format != Precision::fp32; });
}

void VisitWatch::set_fp8(BlockId block, std::shared_ptr<ProductCaller> caller) {
  blocks_[block.value()].fp8 = std::move(caller);
}

std::optional<ProductFormat> VisitWatch::product_format() const {
  if (!current_) return std::nullopt;
  const std::optional<ProductFormat> narrow = narrow_format();
  return narrow || !has_narrow_ ? narrow : ProductFormat{at::kFloat};
}

std::optional<ProductFormat> VisitWatch::narrow_format() const {
  const Block& block = blocks_[current_->value()];
  switch (block.format) {
    case Precision::fp32:
      return std::nullopt;
    case Precision::fp16:
      return ProductFormat{at::kHalf};
    case Precision::bf16:
      return ProductFormat{at::kBFloat16};
    case Precision::fp8:
      return ProductFormat{at::kBFloat16, block.fp8.get()};
  }
  return std::nullopt;
}

void VisitWatch::set_levels(BlockId block, std::vector<HoldChoice> levels) {
  Block& it = blocks_[block.value()];
  it.levels = std::move(levels);
  it.levels_format = it.format;
}

void VisitWatch::begin_regions(RegionMeter::ReadMemory memory) {
  read_memory_ = std::move(memory);
  measures_regions_ = true;
  regions_.assign(blocks_.size(), std::nullopt);
}

std::vector<std::optional<MeasuredRegion>> VisitWatch::end_regions() {
  measures_regions_ = false;
  read_memory_ = nullptr;
  for (std::optional<MeasuredRegion>& region : regions_) {
    if (region) learn_backward(*region);
  }
  return std::exchange(regions_, {});
}

void VisitWatch::pin(BlockId block, std::string reason) {
  blocks_[block.value()].pinned = std::move(reason);
}

std::vector<PinnedBlock> VisitWatch::pinned() const {
  std::vector<PinnedBlock> pinned;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    if (blocks_[b].pinned) pinned.push_back({block, *blocks_[b].pinned});
  }
  return pinned;
}

void VisitWatch::read_parameter(const BlockMap& map, BlockId::rep first,
                                const c10::StorageImpl* storage, Told observer) {
  const std::optional<BlockId> local = map.block_of(storage);
  if (!scopes_.empty()) {
    if (current_ != scopes_.back().block) enter(scopes_.back().block);
  } else if (local || !current_) {
    const BlockId::rep number = local ? local->value() : map.owner(storage)->value();
    const BlockId block(static_cast<BlockId::rep>(first + number));
    if (current_ != block) enter(block);
  }
  if (offload_ != nullptr) offload_->leave_alone(storage);
  if (observer_ != nullptr && observer == Told::yes)
    observer_->parameter(*current_, narrow_format());
}

void VisitWatch::enter(BlockId block) {
  book_forward();
  current_ = block;
  if (!blocks_[block.value()].is_entered) open_region(block);
  if (mode_ == MeasureMode::off) return;
  since_ = now_();
  const std::lock_guard lock(mutex_);
  seen_[block.value()].is_visited = true;
}

void VisitWatch::steer_anew() {
  if (region_ && region_ == current_) open_region(*region_);
}

void VisitWatch::leave_block() {
  book_forward();
  close_region();
  hash_dropped();
  current_.reset();
  for (Block& block : blocks_) block.is_entered = false;
}

void VisitWatch::hash_dropped() {
  const StreamPause unseen;
  for (const std::shared_ptr<Bits>& bits : dropped_) {
    if (bits->tensor.is_cpu()) {
      bits->hash = bits_hash(bits->tensor);
    } else {
      look_only([&] { bits->hash_on_device = bits_on_device(bits->tensor); });
    }
    bits->tensor.reset();
  }
  dropped_.clear();
}

void VisitWatch::compare_bits(BlockId region, const Bits& bits, const at::Tensor& found) {
  if (found.is_cpu() && bits.hash && bits_hash(found) != *bits.hash) {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(unequal_, region) == unequal_.end()) unequal_.push_back(region);
  }
  if (found.is_cpu() || !bits.hash_on_device.defined()) return;
  const StreamPause unseen;
  look_only([&] {
    const at::Tensor differs = bits_on_device(found) != bits.hash_on_device;
    const std::lock_guard lock(mutex_);
    comparisons_.push_back({region, differs});
  });
}

// The device is waited for once.
void VisitWatch::read_comparisons() {
  const std::vector<DeviceComparison> comparisons = std::exchange(comparisons_, {});
  if (comparisons.empty()) return;
  const StreamPause unseen;
  look_only([&] {
    std::vector<at::Tensor> differ;
    for (const DeviceComparison& it : comparisons) differ.push_back(it.differs);
    const at::Tensor read = at::stack(differ).cpu();
    for (std::size_t c = 0; c < comparisons.size(); ++c) {
      const BlockId region = comparisons[c].region;
      const bool is_new = std::ranges::find(unequal_, region) == unequal_.end();
      if (read.const_data_ptr<bool>()[c] && is_new) unequal_.push_back(region);
    }
  });
}

void VisitWatch::pin_unequal() {
  std::vector<BlockId> regions;
  {
    const std::lock_guard lock(mutex_);
    read_comparisons();
    regions = std::exchange(unequal_, {});
  }
  for (const BlockId region : regions)
    pin(region, "backward got other bits than forward had, found by memory.verify_steps");
}

void VisitWatch::book_forward() {
  if (!current_ || mode_ == MeasureMode::off) return;
  const Nanoseconds spent = now_() - since_;
  const std::lock_guard lock(mutex_);
  seen_[current_->value()].forward += spent;
}

void VisitWatch::open_region(BlockId block) {
  close_region();
  Block& entered = blocks_[block.value()];
  entered.is_entered = true;
  region_ = block;
  if (is_recompute(entered.action) && !entered.pinned) {
    tape_ = Tape::make("block " + entered.name, choice_of_action(entered));
    tape_->time_replays(replay_ns_);
    if (measures_regions_) {
      tape_->measure(
          std::make_shared<RegionMeter>([now = now_] { return now().count(); }, read_memory_));
    }
  }
  if (entered.action == MemoryAction::offload && !entered.pinned && open_offload_)
    offload_ = open_offload_(entered.name);
  awaits_shape_ = mode_ != MeasureMode::off;
  tell(block, BlockEdge::forward_begin);
}

// The first operand stands for the shapes of all.
void VisitWatch::note_shape(const at::Tensor& tensor) {
  if (!region_ || tensor.dim() == 0) return;
  awaits_shape_ = false;
  Fnv1a64 hash;
  const std::lock_guard lock(mutex_);
  std::uint64_t& key = seen_[region_->value()].shape_key;
  hash.add(key);
  hash.add(static_cast<std::uint64_t>(tensor.scalar_type()));
  for (const std::int64_t size : tensor.sizes()) hash.add(static_cast<std::uint64_t>(size));
  key = hash.value();
}

bool VisitWatch::begin_tile(std::string_view name, TileDrop drop) {
  has_tiles_ = has_tiles_ || (region_ && drop == TileDrop::where_planned);
  if (recording() != nullptr) return false;  // what covers the region covers the tile
  const Block* block = region_ ? &blocks_[region_->value()] : nullptr;
  const bool is_planned = block != nullptr && block->action == MemoryAction::tile && !block->pinned;
  if (!is_planned && drop == TileDrop::where_planned) return false;
  tile_ =
      Tape::make(block != nullptr ? concat("block ", block->name, ", ", name) : std::string(name));
  tile_->time_replays(replay_ns_);
  return true;
}

void VisitWatch::end_tile() noexcept {
  std::exchange(tile_, nullptr)->close();
}

// A forward pass that has not begun does so with the first parameter, in the scope's block.
bool VisitWatch::begin_block(std::string_view name) {
  const auto named = std::ranges::find(blocks_, name, &Block::name);
  if (named == blocks_.end()) throw Error(no_such_block(name));
  const BlockId block(static_cast<BlockId::rep>(named - blocks_.begin()));
  scopes_.push_back({block, current_});
  if (current_ && current_ != block) enter(block);
  return true;
}

void VisitWatch::end_block() noexcept {
  const Scope ended = scopes_.back();
  scopes_.pop_back();
  const std::optional<BlockId> next = scopes_.empty() ? ended.around : scopes_.back().block;
  if (current_ && next && current_ != next) enter(*next);
}

Status VisitWatch::no_such_block(std::string_view name) const {
  std::vector<std::string> names;
  for (const Block& block : blocks_) names.push_back(block.name);
  return invalid_argument(
      "cox::block: expected the name of a block, or one of blocks.scopes, found ", shown(name),
      "; the nearest are ", nearest_names(names, name));
}

void VisitWatch::close_region() {
  if (tape_ != nullptr) {
    tape_->close();
    if (measures_regions_) note_region(*region_);
  }
  tape_.reset();
  if (offload_ != nullptr) std::exchange(offload_, nullptr)->leave();
  if (region_) tell(*region_, BlockEdge::forward_end);
  region_.reset();
}

// The tape of a visit asks only while the visit lasts, so it may refer to the block's choice.
HoldChoice VisitWatch::choice_of_action(const Block& block) const {
  const unsigned level = level_of(block.action);
  if (level == 0 || level > block.levels.size()) return {};
  if (block.levels_format != block.format) return {};
  return [&choice = block.levels[level - 1]](const SavedValue& value) { return choice(value); };
}

void VisitWatch::note_region(BlockId block) {
  std::optional<MeasuredRegion>& known = regions_[block.value()];
  MeasuredRegion now = measured_region(*tape_);
  if (known && is_alike(known->graph, now.graph)) {
    take_lesser(*known, now);
  } else {
    known = std::move(now);
  }
}

void VisitWatch::tell(BlockId block, BlockEdge edge) {
  if (sink_ != nullptr && mode_ != MeasureMode::off) sink_->block_edge(block, edge);
}

void VisitWatch::backward_begins() {
  leave_block();
  storages_.clear();
  const std::lock_guard lock(mutex_);
  is_backward_ = true;
  backward_in_.reset();
  backward_region_.reset();
}

void VisitWatch::backward_ended() {
  const std::lock_guard lock(mutex_);
  if (backward_region_) tell(*backward_region_, BlockEdge::backward_end);
  book_backward(now_());
  is_backward_ = false;
  backward_in_.reset();
  backward_region_.reset();
}

void VisitWatch::book_backward(Nanoseconds now) {
  if (backward_in_) seen_[backward_in_->value()].backward += now - backward_since_;
  backward_since_ = now;
}

void VisitWatch::end_step() {
  leave_block();
  storages_.clear();
  pin_unequal();
  const std::lock_guard lock(mutex_);
  for (std::size_t b = 0; b < seen_.size(); ++b) {
    const Seen seen = std::exchange(seen_[b], {});
    if (!seen.is_visited) continue;
    BlockMeasurement measurement;
    measurement.mode = mode_;
    measurement.parameters = blocks_[b].elements;
    measurement.forward = seen.forward;
    measurement.backward = seen.backward;
    measurement.shape_key = seen.shape_key;
    measurement.saved_bytes = mode_ == MeasureMode::full ? seen.saved_bytes : 0;
    if (sink_ != nullptr) sink_->block_measured(BlockId(static_cast<BlockId::rep>(b)), measurement);
  }
}

void VisitWatch::forget_step() {
  leave_block();
  pin_unequal();
  meter_.forget();
  storages_.clear();
  const std::lock_guard lock(mutex_);
  seen_.assign(blocks_.size(), {});
  is_backward_ = false;
  backward_in_.reset();
  backward_region_.reset();
}

// The meter is the last before the operator and the first after it.
void VisitWatch::begin(const OperatorCall& call) {
  if (Tape* tape = recording()) tape->begin(call);
  if (meters_ && current_) meter_.begin(call, *current_);
}

void VisitWatch::end(std::span<const c10::IValue> results) {
  if (meter_.is_running()) meter_.end(results);
  if (Tape* tape = recording()) tape->end(results);
  if (!dropped_.empty()) hash_dropped();
}

void VisitWatch::failed() noexcept {
  if (meter_.is_running()) meter_.failed();
  if (Tape* tape = recording()) tape->failed();
  dropped_.clear();
}

std::unique_ptr<torch::autograd::SavedVariableHooks> VisitWatch::make_hooks() {
  if (!current_) return tile_ != nullptr ? tile_->make_hooks() : nullptr;
  auto deciding = recording() != nullptr ? recording()->make_hooks()
                  : offload_ != nullptr  ? offload_->make_hooks()
                                         : nullptr;
  if (compares_ && deciding != nullptr && region_)
    deciding = std::make_unique<Compared>(shared_from_this(), *region_, std::move(deciding));
  if (mode_ == MeasureMode::off) return deciding;
  return std::make_unique<Hooks>(shared_from_this(), Place{*current_, *region_},
                                 std::move(deciding));
}

void VisitWatch::count(BlockId block, const at::Tensor& tensor) {
  if (is_parameter_or_view(tensor) || !tensor.has_storage()) return;
  auto storage = tensor.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl();
  if (!storages_.try_emplace(storage_of(tensor), std::move(storage)).second) return;
  const std::lock_guard lock(mutex_);
  seen_[block.value()].saved_bytes += storage_bytes(tensor);
}

void VisitWatch::unpack(Place place) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_backward_) return;
  if (backward_region_ != place.region) {
    if (backward_region_) tell(*backward_region_, BlockEdge::backward_end);
    backward_region_ = place.region;
    tell(place.region, BlockEdge::backward_begin);
  }
  if (backward_in_ == place.block) return;
  book_backward(now_());
  backward_in_ = place.block;
}

}  // namespace cox::detail
