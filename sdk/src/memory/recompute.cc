#include "sdk/src/memory/recompute.h"

#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <limits>
#include <new>
#include <sstream>
#include <utility>

#include "coxswain/detail/run_context.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_state.h"

namespace cox::detail {
namespace {

// StopRecompute is thrown through the function. It is no std::exception, so that handlers for those
// let it pass.
struct StopRecompute {};

class RecomputeHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit RecomputeHooks(std::shared_ptr<RecomputeFrame> frame) : frame_(std::move(frame)) {}
  ~RecomputeHooks() override {
    if (index_) frame_->release(*index_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    index_ = frame_->add(tensor);
    if (!is_parameter(tensor)) return;
    leaf_ = tensor;
    version_ = version_of(tensor);
  }

  at::Tensor call_unpack_hook() override {
    if (!leaf_.defined()) return frame_->unpack(index_.value());
    if (version_of(leaf_) != version_) frame_->fail_changed(leaf_, version_);
    return leaf_;
  }

 private:
  std::shared_ptr<RecomputeFrame> frame_;
  std::optional<std::size_t> index_;
  at::Tensor leaf_;
  std::int64_t version_ = 0;
};

std::string described(const BlockState* state, const at::Tensor& tensor) {
  std::ostringstream text;
  const auto module = state != nullptr ? state->module.lock() : nullptr;
  if (module) {
    for (const auto& item : module->named_parameters()) {
      if (storage_of(item.value()) == storage_of(tensor))
        text << "parameter " << item.key() << ", ";
    }
  }
  text << "a tensor of sizes " << tensor.sizes();
  return text.str();
}

std::string what_changed(const BlockState* state, const at::Tensor& tensor, std::int64_t expected) {
  std::ostringstream text;
  text << described(state, tensor)
       << " that its backward pass needs was changed in place; expected version " << expected
       << ", found " << version_of(tensor)
       << "; use an operation that is not in place, clone the tensor first, or keep this block";
  return text.str();
}

constexpr const char* kSameEachTime =
    "; its function must compute the same each time: pass what changes as an argument, or keep "
    "this block";

}  // namespace

// Keeps what a function saves for backward while it runs again, in order, and stops it with an
// exception after as many tensors as are wanted.
class RecomputeFrame::Recorder final : public SavedTensorFrame {
 public:
  static constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

  // Tensors in the memory of `edited` are copied, since that memory is put back afterwards. Not
  // more than `wanted` are kept; the function is stopped there where that is allowed.
  Recorder(const BufferCopies& edited, std::size_t wanted, const Rerun* stoppable)
      : edited_(edited),
        wanted_(wanted),
        may_stop_(stoppable != nullptr && stoppable->may_stop()) {}

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override {
    return std::make_unique<Hooks>(*this);
  }
  std::vector<Saved>& found() { return found_; }

 private:
  // The graph of the second run is thrown away, unless the function itself differentiates in it.
  class Hooks final : public torch::autograd::SavedVariableHooks {
   public:
    explicit Hooks(Recorder& recorder) : recorder_(recorder) {}
    void call_pack_hook(const at::Tensor& tensor) override {
      saved_ = is_parameter(tensor) ? tensor : tensor.detach();
      recorder_.record(tensor);
    }
    at::Tensor call_unpack_hook() override { return saved_; }

   private:
    Recorder& recorder_;  // used while the function runs
    at::Tensor saved_;
  };

  void record(const at::Tensor& tensor) {
    if (found_.size() >= wanted_) return;
    at::Tensor saved = tensor.detach();
    if (edited_.has_memory_of(tensor)) saved = saved.clone();
    const std::int64_t version = version_of(saved);
    found_.push_back({std::move(saved), version});
    if (found_.size() == wanted_ && may_stop_) throw StopRecompute{};
  }

  const BufferCopies& edited_;
  std::size_t wanted_;
  bool may_stop_;
  std::vector<Saved> found_;
};

RecomputeFrame::Shape RecomputeFrame::shape_of(const at::Tensor& tensor) {
  return {c10::DimVector(tensor.sizes().begin(), tensor.sizes().end()), tensor.scalar_type(),
          tensor.device()};
}

std::string RecomputeFrame::to_string(const Shape& shape) {
  std::ostringstream text;
  text << c10::toString(shape.type) << at::IntArrayRef(shape.sizes);
  return text.str();
}

std::unique_ptr<torch::autograd::SavedVariableHooks> RecomputeFrame::make_hooks() {
  return std::make_unique<RecomputeHooks>(shared_from_this());
}

std::size_t RecomputeFrame::add(const at::Tensor& tensor) {
  const bool is_leaf = is_parameter(tensor);
  const std::lock_guard lock(mutex_);
  Slot slot;
  slot.shape = shape_of(tensor);
  slot.is_leaf = is_leaf;
  if (mode_ == Mode::holding && !is_leaf) {
    slot.tensor = tensor.detach();  // with its history it would be a cycle
    slot.version = version_of(tensor);
  }
  slots_.push_back(std::move(slot));
  return slots_.size() - 1;
}

void RecomputeFrame::release(std::size_t index) {
  const std::lock_guard lock(mutex_);
  slots_[index].is_released = true;
  slots_[index].tensor.reset();
}

void RecomputeFrame::drop_held() {
  const std::lock_guard lock(mutex_);
  mode_ = Mode::dropping;
  for (Slot& slot : slots_) slot.tensor.reset();
}

at::Tensor RecomputeFrame::unpack(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (!slots_[index].tensor.defined()) recompute();
  Slot& slot = slots_[index];
  if (version_of(slot.tensor) != slot.version) fail_changed(slot.tensor, slot.version);
  return mode_ == Mode::holding ? slot.tensor : std::exchange(slot.tensor, at::Tensor());
}

void RecomputeFrame::recompute() {
  check_versions();
  Recorder recorder(parts_.buffers, slots_.size(), parts_.again.get());
  run_again(recorder);
  const std::string different = difference(recorder.found());
  if (!different.empty()) fail(different + kSameEachTime);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.is_leaf || slot.is_released) continue;
    slot.tensor = std::move(recorder.found()[i].tensor);
    slot.version = recorder.found()[i].version;
  }
}

// Out of memory passes as it is: whoever plans memory wants to know it from other failures.
void RecomputeFrame::run_again(Recorder& recorder) {
  const RunContext context{parts_.state.get(), MemoryAction::recompute, true, true, nullptr};
  const ContextScope running(context);
  const StateScope execution(parts_.execution);
  const BufferScope buffers(parts_.buffers);
  const SavedTensorScope saving(recorder);
  try {
    parts_.again->run();
  } catch (const StopRecompute&) {
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    fail(std::string("running it again for the backward pass failed: ") + error.what());
  }
}

void RecomputeFrame::check_versions() const {
  const TensorVersions::Watched* changed = parts_.versions.changed();
  if (changed != nullptr) fail_changed(changed->tensor, changed->version);
}

// Compares bits where the first run's tensors are held.
std::string RecomputeFrame::difference(const std::vector<Saved>& found) const {
  const auto sentence = [](const std::string& expected, const std::string& seen) {
    return "recompute saved different tensors: expected " + expected + ", found " + seen;
  };
  for (std::size_t i = 0; i < std::min(found.size(), slots_.size()); ++i) {
    const Slot& slot = slots_[i];
    const Shape shape = shape_of(found[i].tensor);
    const std::string position = " as number " + std::to_string(i);
    if (shape != slot.shape) {
      return sentence(to_string(slot.shape) + position, to_string(shape));
    }
    if (mode_ == Mode::dropping || !slot.tensor.defined()) continue;
    if (parts_.buffers.has_memory_of(slot.tensor)) continue;
    if (!same_bits(slot.tensor, found[i].tensor)) {
      return sentence(to_string(slot.shape) + position + " with the same bits", "other bits");
    }
  }
  if (found.size() == slots_.size()) return {};
  return sentence(std::to_string(slots_.size()), std::to_string(found.size()));
}

std::optional<std::string> RecomputeFrame::check(BufferCopies edited) try {
  const std::lock_guard lock(mutex_);
  parts_.buffers = std::move(edited);
  if (const TensorVersions::Watched* changed = parts_.versions.changed()) {
    return "its function changes a tensor in place that it would read again: " +
           what_changed(parts_.state.get(), changed->tensor, changed->version);
  }
  Recorder recorder(parts_.buffers, Recorder::kAll, nullptr);
  run_again(recorder);
  std::string different = difference(recorder.found());
  if (different.empty()) return std::nullopt;
  return different;
} catch (const std::exception& error) {
  return error.what();
}

void RecomputeFrame::fail_changed(const at::Tensor& tensor, std::int64_t expected) const {
  fail(what_changed(parts_.state.get(), tensor, expected));
}

void RecomputeFrame::fail(const std::string& what) const {
  if (parts_.state) parts_.state->memory.pin(what);
  throw Error(failed_precondition(parts_.name + ": " + what));
}

}  // namespace cox::detail
