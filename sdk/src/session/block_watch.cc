#include "sdk/src/session/block_watch.h"

#include <torch/torch.h>

#include <utility>

#include "coxswain/error.h"
#include "sdk/src/blocks/saved_tensors.h"

namespace cox::detail {
namespace {

void require(const Status& status) {
  if (!status.ok()) throw Error(status);
}

}  // namespace

void BlockWatch::attach(torch::nn::Module& model) {
  release();
  Result<BlockRegistry> found = BlockRegistry::discover(model);
  if (!found.ok()) throw Error(found.status());
  if (found->size() == 0) return;
  require(install_saved_tensor_engine());
  registry_.emplace(std::move(*found));
  require(registry_->attach(*this));
  known_.assign(registry_->size(), {});
}

void BlockWatch::release() {
  if (registry_) registry_->release();
  registry_.reset();
  actions_.clear();
  known_.clear();
}

std::vector<std::string> BlockWatch::names() const {
  std::vector<std::string> names;
  for (std::size_t b = 0; registry_ && b < registry_->size(); ++b) {
    names.push_back(registry_->name(BlockId(static_cast<BlockId::rep>(b))));
  }
  return names;
}

void BlockWatch::steer(const Actions& actions) {
  if (!registry_) return;
  for (const PinnedBlock& pinned : registry_->pinned()) {
    const std::size_t b = pinned.block.value();
    const bool was_kept = actions_.empty() || actions_[b] == MemoryAction::keep;
    if (was_kept && actions[b] != MemoryAction::keep) registry_->unpin(pinned.block);
  }
  actions_ = actions;
  for (std::size_t b = 0; b < actions.size(); ++b) {
    // Without our engine every block is kept; attach() has made sure that there is one.
    static_cast<void>(registry_->set_action(BlockId(static_cast<BlockId::rep>(b)), actions[b]));
  }
}

void BlockWatch::set_precision(std::span<const Precision> formats) {
  for (std::size_t b = 0; registry_ && b < formats.size(); ++b) {
    registry_->set_precision(BlockId(static_cast<BlockId::rep>(b)), formats[b]);
  }
}

void BlockWatch::release_precision() {
  for (std::size_t b = 0; b < size(); ++b) {
    registry_->release_precision(BlockId(static_cast<BlockId::rep>(b)));
  }
}

void BlockWatch::set_offload(const OffloadFrames& frames) {
  if (registry_) registry_->set_offload(frames);
}

std::vector<PinnedBlock> BlockWatch::pinned() const {
  return registry_ ? registry_->pinned() : std::vector<PinnedBlock>();
}

Result<StepReading> BlockWatch::traced(const std::function<Status()>& step,
                                       const std::function<std::int64_t()>& moved) {
  if (!registry_) return failed_precondition("memory: expected blocks in the model, found none");
  static_cast<void>(registry_->measure(MeasureMode::times));
  trace_.start(steady_now(), moved);
  const Status ran = step();
  const StepTrace trace = trace_.finish(steady_now());
  static_cast<void>(registry_->measure(MeasureMode::off));
  if (!ran.ok()) return ran;
  return read_stages(trace, size());
}

Result<std::vector<std::int64_t>> BlockWatch::timed(const std::function<Status()>& step) {
  if (!registry_) return failed_precondition("precision: expected blocks in the model, found none");
  {
    const std::scoped_lock lock(mutex_);
    spent_.assign(size(), Seconds(0));
  }
  static_cast<void>(registry_->measure(MeasureMode::times));
  const Status ran = step();
  static_cast<void>(registry_->measure(MeasureMode::off));
  const std::scoped_lock lock(mutex_);
  const std::vector<Seconds> spent = std::exchange(spent_, {});
  if (!ran.ok()) return ran;
  std::vector<std::int64_t> microseconds;
  for (const Seconds time : spent) {
    microseconds.push_back(static_cast<std::int64_t>(1e6 * time.count()));
  }
  return microseconds;
}

void BlockWatch::block_edge(BlockId block, BlockEdge edge) noexcept {
  trace_.note(block, edge, steady_now());
}

void BlockWatch::begin_step() {
  if (!registry_) return;
  {
    const std::scoped_lock lock(mutex_);
    if (new_shapes_) full_until_ = steps_ + 1;
    new_shapes_ = false;
  }
  const std::uint64_t step = steps_++;
  const bool is_full = step < full_until_;
  const bool is_timed = step % kTimesEverySteps == 0;
  const MeasureMode mode = is_full    ? MeasureMode::full
                           : is_timed ? MeasureMode::times
                                      : MeasureMode::off;
  // Without our engine only times are measured; the registry falls back to them by itself.
  static_cast<void>(registry_->measure(mode));
}

void BlockWatch::block_measured(BlockId block, const BlockMeasurement& measurement) noexcept {
  const std::scoped_lock lock(mutex_);
  if (block.value() >= known_.size()) return;
  if (!spent_.empty()) {
    spent_[block.value()] += measurement.forward + measurement.backward;
    return;
  }
  Known& known = known_[block.value()];
  const bool has_new_shape =
      known.is_complete && known.measurement.shape_key != measurement.shape_key;
  if (measurement.mode == MeasureMode::full) {
    known.is_unsent = !known.is_complete || has_new_shape || known.is_unsent;
    known.is_complete = true;
    known.measurement = measurement;
    return;
  }
  new_shapes_ = new_shapes_ || has_new_shape;
  known.measurement.forward = measurement.forward;
  known.measurement.backward = measurement.backward;
  known.is_unsent = known.is_unsent || known.is_complete;
}

// With every report until the plan no longer asks for what cannot be done.
Fragment BlockWatch::next_failure() {
  for (const PinnedBlock& pinned : registry_->pinned()) {
    const std::size_t b = pinned.block.value();
    if (actions_.empty() || actions_[b] == MemoryAction::keep) continue;
    BlockFailure failure;
    failure.block = pinned.block;
    failure.blocks = static_cast<std::uint16_t>(registry_->size());
    failure.action = actions_[b];
    const std::size_t length = std::min(pinned.reason.size(), failure.what.size() - 1);
    std::copy_n(pinned.reason.begin(), length, failure.what.begin());
    return make_fragment(failure);
  }
  return {};
}

Fragment BlockWatch::next_fragment() {
  if (!registry_) return {};
  if (!requests_.empty()) {
    const Fragment request = make_fragment(requests_.front());
    requests_.pop_front();
    return request;
  }
  Fragment failure = next_failure();
  if (failure.kind != FragmentKind::none) return failure;
  const std::scoped_lock lock(mutex_);
  for (std::size_t tried = 0; tried < known_.size(); ++tried) {
    const std::size_t b = next_;
    next_ = (next_ + 1) % known_.size();
    if (!known_[b].is_unsent) continue;
    known_[b].is_unsent = false;
    const BlockId block(static_cast<BlockId::rep>(b));
    return make_fragment(
        block_profile(block, known_.size(), registry_->name(block), known_[b].measurement));
  }
  return {};
}

}  // namespace cox::detail
