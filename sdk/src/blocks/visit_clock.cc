#include "sdk/src/blocks/visit_clock.h"

#include "coordinator/core/hash.h"
#include "coxswain/error.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {

// Hooks disable autograd's own check of versions, so they check themselves.
class VisitClock::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  Hooks(std::shared_ptr<VisitClock> clock, Place place,
        std::unique_ptr<SavedVariableHooks> deciding)
      : clock_(std::move(clock)), place_(place), deciding_(std::move(deciding)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    clock_->count(place_.block, tensor);
    if (deciding_ != nullptr) return deciding_->call_pack_hook(tensor);
    version_ = version_of(tensor);
    kept_ = is_parameter(tensor) ? tensor : tensor.detach();
  }

  at::Tensor call_unpack_hook() override {
    clock_->unpack(place_);
    if (deciding_ != nullptr) return deciding_->call_unpack_hook();
    if (version_of(kept_) == version_) return kept_;
    throw Error(failed_precondition(changed_in_place(kept_.sizes(), version_, version_of(kept_))));
  }

 private:
  const std::shared_ptr<VisitClock> clock_;
  const Place place_;
  const std::unique_ptr<SavedVariableHooks> deciding_;
  at::Tensor kept_;
  std::int64_t version_ = 0;
};

std::unique_ptr<torch::autograd::SavedVariableHooks> VisitClock::make_hooks(
    std::shared_ptr<VisitClock> clock, Place place,
    std::unique_ptr<torch::autograd::SavedVariableHooks> deciding) {
  return std::make_unique<Hooks>(std::move(clock), place, std::move(deciding));
}

void VisitClock::add_block(std::uint64_t elements) {
  elements_.push_back(elements);
  const std::lock_guard lock(mutex_);
  seen_.emplace_back();
}

BlockSink* VisitClock::report_to(BlockSink* sink) {
  const std::lock_guard lock(mutex_);
  return std::exchange(sink_, sink);
}

void VisitClock::visit_begins(BlockId block) {
  if (mode_ == MeasureMode::off) return;
  since_ = now_();
  const std::lock_guard lock(mutex_);
  seen_[block.value()].is_visited = true;
}

void VisitClock::visit_ended(BlockId block) {
  if (mode_ == MeasureMode::off) return;
  const Nanoseconds spent = now_() - since_;
  const std::lock_guard lock(mutex_);
  seen_[block.value()].forward += spent;
}

void VisitClock::region_begins(BlockId region) {
  if (mode_ != MeasureMode::off) shapeless_ = region;
  tell(region, BlockEdge::forward_begin);
}

void VisitClock::region_ended(BlockId region) {
  shapeless_.reset();
  tell(region, BlockEdge::forward_end);
}

void VisitClock::note_shape(const at::Tensor& tensor) {
  if (tensor.dim() == 0) return;
  const BlockId region = *shapeless_;
  shapeless_.reset();
  Fnv1a64 hash;
  const std::lock_guard lock(mutex_);
  std::uint64_t& key = seen_[region.value()].shape_key;
  hash.add(key);
  hash.add(static_cast<std::uint64_t>(tensor.scalar_type()));
  for (const std::int64_t size : tensor.sizes()) hash.add(static_cast<std::uint64_t>(size));
  key = hash.value();
}

void VisitClock::tell(BlockId region, BlockEdge edge) {
  if (sink_ != nullptr && mode_ != MeasureMode::off) sink_->block_edge(region, edge);
}

void VisitClock::count(BlockId block, const at::Tensor& tensor) {
  if (is_parameter_or_view(tensor) || !tensor.has_storage()) return;
  auto storage = tensor.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl();
  if (!storages_.try_emplace(storage_of(tensor), std::move(storage)).second) return;
  const std::lock_guard lock(mutex_);
  seen_[block.value()].saved_bytes += storage_bytes(tensor);
}

void VisitClock::unpack(Place place) noexcept {
  const std::lock_guard lock(mutex_);
  if (!backward_) return;
  if (backward_->region != place.region) {
    if (backward_->region) tell(*backward_->region, BlockEdge::backward_end);
    backward_->region = place.region;
    tell(place.region, BlockEdge::backward_begin);
  }
  if (backward_->block == place.block) return;
  book_backward(now_());
  backward_->block = place.block;
}

void VisitClock::book_backward(Nanoseconds now) {
  if (backward_->block) seen_[backward_->block->value()].backward += now - backward_->since;
  backward_->since = now;
}

void VisitClock::backward_begins() {
  storages_.clear();
  const std::lock_guard lock(mutex_);
  backward_.emplace();
}

void VisitClock::backward_ended() {
  const std::lock_guard lock(mutex_);
  if (!backward_) return;
  if (backward_->region) tell(*backward_->region, BlockEdge::backward_end);
  book_backward(now_());
  backward_.reset();
}

void VisitClock::end_step() {
  storages_.clear();
  const std::lock_guard lock(mutex_);
  for (std::size_t b = 0; b < seen_.size(); ++b) {
    const Seen seen = std::exchange(seen_[b], {});
    if (!seen.is_visited) continue;
    BlockMeasurement measurement;
    measurement.mode = mode_;
    measurement.parameters = elements_[b];
    measurement.forward = seen.forward;
    measurement.backward = seen.backward;
    measurement.shape_key = seen.shape_key;
    measurement.saved_bytes = mode_ == MeasureMode::full ? seen.saved_bytes : 0;
    if (sink_ != nullptr) sink_->block_measured(BlockId(static_cast<BlockId::rep>(b)), measurement);
  }
}

void VisitClock::forget_step() {
  storages_.clear();
  const std::lock_guard lock(mutex_);
  seen_.assign(elements_.size(), {});
  backward_.reset();
}

}  // namespace cox::detail
