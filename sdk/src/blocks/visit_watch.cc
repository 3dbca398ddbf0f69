#include "sdk/src/blocks/visit_watch.h"

#include "coxswain/error.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {

// Keeps what autograd saved, and notes when it is asked for. Hooks switch off autograd's own check
// of versions, so they make it themselves.
class VisitWatch::Hooks final : public torch::autograd::SavedVariableHooks {
 public:
  Hooks(std::shared_ptr<VisitWatch> watch, BlockId block)
      : watch_(std::move(watch)), block_(block) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    watch_->count(block_, tensor);
    version_ = version_of(tensor);
    kept_ = is_parameter(tensor) ? tensor : tensor.detach();
  }

  at::Tensor call_unpack_hook() override {
    watch_->unpack(block_);
    if (version_of(kept_) == version_) return kept_;
    throw Error(failed_precondition(changed_in_place(kept_.sizes(), version_, version_of(kept_))));
  }

 private:
  const std::shared_ptr<VisitWatch> watch_;
  const BlockId block_;
  at::Tensor kept_;
  std::int64_t version_ = 0;
};

void VisitWatch::release() {
  leave_block();
  mode_ = MeasureMode::off;
  const std::lock_guard lock(mutex_);
  sink_ = nullptr;
}

void VisitWatch::enter(BlockId block) {
  leave_block();
  current_ = block;
  if (mode_ == MeasureMode::off) return;
  since_ = now_();
  const std::lock_guard lock(mutex_);
  seen_[block.value()].is_visited = true;
}

void VisitWatch::leave_block() {
  if (current_ && mode_ != MeasureMode::off) {
    const Nanoseconds spent = now_() - since_;
    const std::lock_guard lock(mutex_);
    seen_[current_->value()].forward += spent;
  }
  current_.reset();
}

void VisitWatch::backward_begins() {
  leave_block();
  storages_.clear();
  const std::lock_guard lock(mutex_);
  is_backward_ = true;
  backward_in_.reset();
}

void VisitWatch::backward_ended() {
  const std::lock_guard lock(mutex_);
  book_backward(now_());
  is_backward_ = false;
  backward_in_.reset();
}

void VisitWatch::book_backward(Nanoseconds now) {
  if (backward_in_) seen_[backward_in_->value()].backward += now - backward_since_;
  backward_since_ = now;
}

void VisitWatch::end_step() {
  leave_block();
  storages_.clear();
  const std::lock_guard lock(mutex_);
  for (std::size_t b = 0; b < seen_.size(); ++b) {
    Seen& seen = seen_[b];
    if (!seen.is_visited) continue;
    BlockMeasurement measurement;
    measurement.mode = mode_;
    measurement.parameters = seen.elements;
    measurement.forward = seen.forward;
    measurement.backward = seen.backward;
    measurement.saved_bytes = mode_ == MeasureMode::full ? seen.saved_bytes : 0;
    if (sink_ != nullptr) sink_->block_measured(BlockId(static_cast<BlockId::rep>(b)), measurement);
    seen = {.elements = seen.elements};
  }
}

std::unique_ptr<torch::autograd::SavedVariableHooks> VisitWatch::make_hooks() {
  if (mode_ == MeasureMode::off || !current_) return nullptr;
  return std::make_unique<Hooks>(shared_from_this(), *current_);
}

void VisitWatch::count(BlockId block, const at::Tensor& tensor) {
  if (is_parameter_or_view(tensor) || !tensor.has_storage()) return;
  auto storage = tensor.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl();
  if (!storages_.try_emplace(storage_of(tensor), std::move(storage)).second) return;
  const std::lock_guard lock(mutex_);
  seen_[block.value()].saved_bytes += storage_bytes(tensor);
}

void VisitWatch::unpack(BlockId block) noexcept {
  const std::lock_guard lock(mutex_);
  if (!is_backward_ || backward_in_ == block) return;
  book_backward(now_());
  backward_in_ = block;
}

}  // namespace cox::detail
