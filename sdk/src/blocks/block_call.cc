#include "sdk/src/blocks/block_call.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "coxswain/detail/attended_call.h"
#include "coxswain/error.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

class SavedBytesHooks final : public torch::autograd::SavedVariableHooks {
 public:
  SavedBytesHooks(std::shared_ptr<SavedBytesFrame> frame,
                  std::unique_ptr<torch::autograd::SavedVariableHooks> deciding)
      : frame_(std::move(frame)), deciding_(std::move(deciding)) {}

  void call_pack_hook(const at::Tensor& tensor) override {
    frame_->count(tensor);
    if (deciding_) return deciding_->call_pack_hook(tensor);
    version_ = version_of(tensor);
    // With its history it would be a cycle.
    kept_ = is_parameter(tensor) ? tensor : tensor.detach();
  }

  at::Tensor call_unpack_hook() override {
    if (deciding_) return deciding_->call_unpack_hook();
    if (version_of(kept_) != version_) throw_changed();
    return kept_;
  }

 private:
  [[noreturn]] void throw_changed() const {
    throw Error(failed_precondition("block " + frame_->block() + ": " +
                                    changed_in_place(kept_.sizes(), version_, version_of(kept_))));
  }

  std::shared_ptr<SavedBytesFrame> frame_;
  std::unique_ptr<torch::autograd::SavedVariableHooks> deciding_;
  at::Tensor kept_;
  std::int64_t version_ = 0;
};

}  // namespace

SavedBytesFrame::SavedBytesFrame(std::string block, const torch::nn::Module& module,
                                 std::shared_ptr<SavedBytesFrame> outer)
    : block_(std::move(block)), outer_(std::move(outer)), below_(innermost_frame()) {
  if (below_ != nullptr) below_ = below_->deciding();
  for (const at::Tensor& tensor : module.parameters()) add_storage(tensor);
  for (const at::Tensor& tensor : module.buffers()) add_storage(tensor);
}

std::unique_ptr<torch::autograd::SavedVariableHooks> SavedBytesFrame::make_hooks() {
  auto deciding = below_ != nullptr ? below_->make_hooks() : nullptr;
  return std::make_unique<SavedBytesHooks>(shared_from_this(), std::move(deciding));
}

void SavedBytesFrame::count(const at::Tensor& tensor) {
  if (outer_) outer_->count(tensor);
  if (is_parameter_or_view(tensor)) return;
  if (add_storage(tensor)) bytes_ += storage_bytes(tensor);
}

// A weak reference keeps the address of a storage that is freed meanwhile from being used again.
bool SavedBytesFrame::add_storage(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return false;
  auto storage = tensor.unsafeGetTensorImpl()->unsafe_storage().getWeakStorageImpl();
  return seen_.try_emplace(storage_of(tensor), std::move(storage)).second;
}

std::uint64_t SavedBytesFrame::close() {
  seen_.clear();
  outer_.reset();
  return bytes_;
}

namespace {

std::vector<BlockCall*>& calls() {
  thread_local std::vector<BlockCall*> stack;
  return stack;
}

void add_shape(Fnv1a64& shapes, const at::Tensor& tensor) {
  shapes.add(static_cast<std::uint64_t>(tensor.scalar_type()) + 1);
  shapes.add(static_cast<std::uint64_t>(tensor.dim()));
  for (const std::int64_t size : tensor.sizes()) shapes.add(static_cast<std::uint64_t>(size));
}

// Measuring must not disturb what is measured: out of memory and the like end the measurement only.
template <class Step>
void attempt(std::shared_ptr<BlockCall>& call, const Step& step) noexcept {
  if (!call) return;
  try {
    step(*call);
  } catch (...) {
    call->leave();
    call.reset();
  }
}

}  // namespace

RunningBlockScope::RunningBlockScope(BlockCall& call) {
  calls().push_back(&call);
}
RunningBlockScope::~RunningBlockScope() {
  calls().pop_back();
}

BlockCall* innermost_block_call() {
  return calls().empty() ? nullptr : calls().back();
}

BlockCall::BlockCall(std::shared_ptr<BlockState> state)
    : state_(std::move(state)), now_(state_->now) {
  measurement_.mode = state_->mode;
  measurement_.parameters = state_->parameters;
}

BlockCall::~BlockCall() {
  leave();
  finish();
}

bool BlockCall::add_storage(const at::Tensor& tensor) {
  const void* storage = storage_of(tensor);
  if (std::ranges::find(storages_, storage) != storages_.end()) return false;
  storages_.push_back(storage);
  return true;
}

void BlockCall::add_input(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  add_shape(shapes_, tensor);
  if (add_storage(tensor)) measurement_.input_bytes += storage_bytes(tensor);
  if (!at::GradMode::is_enabled() || !tensor.requires_grad() || tensor.is_leaf()) return;
  tensor.register_hook(
      [call = shared_from_this()](const at::TensorBase&) { call->backward_ended(); });
  ends_with_input_ = true;
}

void BlockCall::arrive() {
  const BlockCall* outer = innermost_block_call();
  if (outer != nullptr) measurement_.inside = outer->state().id;
  edge(BlockEdge::forward_begin);
}

void BlockCall::enter() {
  const BlockCall* outer = innermost_block_call();
  running_.emplace(*this);
  const auto module = state_->module.lock();
  if (measurement_.mode == MeasureMode::full && at::GradMode::is_enabled() && module) {
    saved_ = std::make_shared<SavedBytesFrame>(state_->name, *module,
                                               outer ? outer->saved_frame() : nullptr);
    saving_.emplace(*saved_);
  }
  forward_begin_ = now_();
}

void BlockCall::leave() noexcept {
  saving_.reset();
  running_.reset();
}

void BlockCall::measure_forward() {
  measurement_.forward = now_() - forward_begin_;
  if (saved_) measurement_.saved_bytes = saved_->close();
  saved_.reset();
  reported_ = false;
}

void BlockCall::add_output(const at::Tensor& tensor) {
  if (!tensor.defined()) return;
  if (add_storage(tensor)) measurement_.output_bytes += storage_bytes(tensor);
  if (!tensor.requires_grad() || tensor.is_leaf()) return;
  tensor.register_hook(
      [call = shared_from_this()](const at::TensorBase&) { call->backward_began(); });
  has_backward_ = true;
}

void BlockCall::finish_forward() {
  measurement_.shape_key = shapes_.value();
  edge(BlockEdge::forward_end);
  storages_ = {};
  if (!has_backward_) return finish();
  if (!ends_with_input_) state_->add_waiting(this);
}

void BlockCall::backward_began() noexcept try {
  {
    const std::lock_guard lock(mutex_);
    if (reported_ || backward_begin_) return;
    backward_begin_ = now_();
  }
  edge(BlockEdge::backward_begin);
  torch::autograd::Engine::get_default_engine().queue_callback(
      [call = shared_from_this()] { call->finish(); });
} catch (...) {
  finish();
}

bool BlockCall::note_backward_end() noexcept {
  const std::lock_guard lock(mutex_);
  if (!backward_begin_ || reported_) return false;
  backward_end_ = now_();
  return true;
}

void BlockCall::backward_ended() noexcept {
  if (note_backward_end()) edge(BlockEdge::backward_end);
}

void BlockCall::edge(BlockEdge edge) noexcept {
  if (is_outermost()) state_->edge(edge);
}

void BlockCall::finish() noexcept {
  if (has_backward_ && !ends_with_input_) state_->remove_waiting(this);
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(reported_, true)) return;
    if (backward_begin_) {
      measurement_.backward = backward_end_.value_or(now_()) - *backward_begin_;
    }
  }
  state_->report(measurement_);
}

void throw_empty_block() {
  throw Error(failed_precondition(
      "cox::run: expected a block with a module, found an empty one; assign it a "
      "Block of a registered module first"));
}

Observation::Observation(const std::shared_ptr<BlockGate>& gate) noexcept {
  const RunContext* context = current_context();
  if (context != nullptr && context->is_rerun) return;
  auto state = std::static_pointer_cast<BlockState>(gate);
  if (state->mode == MeasureMode::off) return;
  try {
    call_ = std::make_shared<BlockCall>(std::move(state));
  } catch (...) {
    call_ = nullptr;
  }
}

Observation::~Observation() {
  if (call_) call_->leave();
}

void Observation::input(const at::Tensor& tensor) noexcept {
  attempt(call_, [&](BlockCall& call) { call.add_input(tensor); });
}

void Observation::arrive() noexcept {
  attempt(call_, [](BlockCall& call) { call.arrive(); });
}

void Observation::begin() noexcept {
  attempt(call_, [](BlockCall& call) { call.enter(); });
}

void Observation::end() noexcept {
  attempt(call_, [](BlockCall& call) {
    call.leave();
    call.measure_forward();
  });
}

void Observation::output(const at::Tensor& tensor) noexcept {
  attempt(call_, [&](BlockCall& call) { call.add_output(tensor); });
}

void Observation::finish() noexcept {
  attempt(call_, [](BlockCall& call) { call.finish_forward(); });
  call_.reset();
}

}  // namespace cox::detail
