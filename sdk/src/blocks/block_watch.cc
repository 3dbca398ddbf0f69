#include "sdk/src/blocks/block_watch.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/visit_clock.h"
#include "sdk/src/device/choice.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {

// Shows the operators of a step to the visits of one model's blocks, while it is open. A forward
// pass begins with the first operator on a parameter that requires gradients and ends with the
// backward pass, so that an optimizer or an evaluation without gradients enters no block.
class BlockWatch::Follower final : public OperatorListener {
 public:
  Follower(BlockMap map, std::shared_ptr<VisitListener> listener)
      : map_(std::move(map)), listener_(std::move(listener)), visits_(listener_->visits()) {}

  const BlockMap& map() const { return map_; }
  bool is_open() const { return stream_.has_value(); }
  void open() {
    if (is_open()) return;
    map_.refresh();
    had_cast_cache_ = at::autocast::is_autocast_cache_enabled();
    at::autocast::set_autocast_cache_enabled(false);
    saving_.emplace(*listener_);
    stream_.emplace(std::vector<OperatorListener*>{this});
  }
  void close() {
    if (!is_open()) return;
    stream_.reset();
    saving_.reset();
    at::autocast::set_autocast_cache_enabled(had_cast_cache_);
  }

  void touch(const c10::OperatorHandle& handle, const at::Tensor& argument) override {
    const c10::StorageImpl* storage = storage_impl(argument);
    if (!map_.owner(storage)) return visits_.read_other(argument);
    const bool may_begin =
        at::GradMode::is_enabled() && argument.requires_grad() && !(handle == detach_);
    if (may_begin || visits_.current()) visits_.read_parameter(map_, 0, storage);
  }
  bool has_formats() const override { return listener_->has_formats(); }
  std::optional<ProductFormat> product_format() const override {
    return listener_->product_format();
  }
  bool wants_calls() const override { return listener_->wants_calls(); }
  void begin(const OperatorCall& call) override { listener_->begin(call); }
  void end(std::span<const c10::IValue> results) override { listener_->end(results); }
  void failed() noexcept override { listener_->failed(); }
  void backward_begins(const BackwardPass& pass) override {
    visits_.backward_begins();
    if (pass.kind == BackwardKind::accumulating) visits_.forward_ended();
  }
  void backward_ended(BackwardKind) override { visits_.parts().clock.backward_ended(); }

 private:
  const c10::OperatorHandle detach_ =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  BlockMap map_;
  const std::shared_ptr<VisitListener> listener_;
  VisitWatch& visits_;  // the listener's
  // A cast that autocast has cached would make gradients depend on the memory action.
  bool had_cast_cache_ = true;
  std::optional<SavedTensorScope> saving_;
  std::optional<StreamScope> stream_;
};

void BlockWatch::EndFollower::operator()(Follower* follower) const {
  if (follower != nullptr) follower->close();
  delete follower;
}

BlockWatch::Following::Following(BlockWatch& blocks)
    : opened_(blocks.follower_ && !blocks.follower_->is_open() ? &blocks : nullptr) {
  if (opened_ != nullptr) opened_->follower_->open();
}

BlockWatch::Following::~Following() {
  if (opened_ != nullptr && opened_->follower_) opened_->follower_->close();
}

void BlockWatch::attach(torch::nn::Module& model) {
  release();
  Result<BlockMap> map = divide(model, {}, {});
  if (!map.ok() && !config_.modules.empty()) throw Error(map.status());
  if (!map.ok() || !install_saved_tensor_engine().ok()) return;
  require(adopt(*map));
  follower_.reset(new Follower(std::move(*map), listener_));
}

Result<BlockMap> BlockWatch::divide(const torch::nn::Module& model,
                                    std::span<const std::string> patterns,
                                    std::string_view name) const {
  if (config_.modules.empty()) return BlockMap::make(model, patterns, name);
  if (name.empty()) return BlockMap::make(model, config_.modules, name);
  std::vector<std::string> own;
  for (const std::string& pattern : config_.modules) {
    if (pattern.starts_with(concat(name, "."))) own.push_back(pattern);
  }
  return own.empty() ? BlockMap::make(model, patterns, name) : BlockMap::make(model, own, name);
}

const BlockMap* BlockWatch::followed() const {
  return follower_ ? &follower_->map() : nullptr;
}

Status BlockWatch::adopt(const BlockMap& map) {
  std::vector<std::string> names;
  for (std::size_t b = 0; b < map.size(); ++b)
    names.push_back(map.name(BlockId(static_cast<BlockId::rep>(b))));
  const auto taken = std::ranges::find_first_of(config_.scopes, names);
  if (taken != config_.scopes.end()) {
    return invalid_argument("blocks.scopes: expected names that no block of the model has, found ",
                            shown(*taken));
  }
  if (!listener_) names.insert(names.end(), config_.scopes.begin(), config_.scopes.end());
  if (names_.size() + names.size() > kMaxBlocks) {
    return resource_exhausted("expected at most ", kMaxBlocks,
                              " blocks in all models, found more; name larger parts as blocks");
  }
  if (!listener_)
    listener_ = std::make_shared<VisitListener>(*this, [clock = clock_] { return clock->now(); });
  for (std::size_t b = 0; b < map.size(); ++b) {
    const auto parameters = map.parameters(BlockId(static_cast<BlockId::rep>(b)));
    if (!parameters.empty()) clock_->measure(parameters.front().device());
  }
  for (std::size_t b = 0; b < names.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    visits()->add_block(names[b], b < map.size() ? map.elements(block) : 0);
  }
  names_.insert(names_.end(), names.begin(), names.end());
  known_.resize(names_.size());
  return ok_status();
}

void BlockWatch::release() {
  follower_.reset();
  if (listener_) listener_->visits().release();
  listener_.reset();
  names_.clear();
  known_.clear();
}

std::vector<PinnedBlock> BlockWatch::pinned() const {
  return listener_ ? listener_->visits().parts().steering.pinned() : std::vector<PinnedBlock>();
}

Status BlockWatch::run_timed(const std::function<Status()>& step, Edge edge) {
  if (size() == 0) {
    return failed_precondition(
        "expected blocks in the model, found none; a model has them if it has parameters");
  }
  edge_ = std::move(edge);
  clock_->begin();
  VisitClock& clock = visits()->parts().clock;
  const MeasureMode before = clock.mode();
  clock.measure(MeasureMode::times);
  const Status ran = step();
  visits()->forget_step();
  clock.measure(before);
  clock_->end();
  edge_ = {};
  return ran;
}

Result<std::vector<std::int64_t>> BlockWatch::timed(const std::function<Status()>& step) {
  {
    const std::scoped_lock lock(mutex_);
    spent_.assign(size(), Seconds(0));
  }
  const Status ran = run_timed([&] {
    const Status status = step();
    if (listener_) visits()->end_step();
    return status;
  });
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
  if (edge_) edge_(block, edge, clock_->now());
}

// A device in trouble is met by the operators of the step that is timed; those who ask for the time
// must not throw.
Nanoseconds BlockWatch::TrialClock::now() const noexcept {
  try {
    if (waits_) wait_for_current_stream(device_);
  } catch (const std::exception&) {
  }
  return steady_now();
}

void BlockWatch::begin_step() {
  if (!listener_) return;
  visits()->parts().clock.measure(next_mode());
  if (follower_) follower_->open();
}

void BlockWatch::end_step(const StepEnd&, StepOutput&) {
  if (!follower_) return;
  follower_->close();
  visits()->end_step();
}

MeasureMode BlockWatch::next_mode() {
  {
    const std::scoped_lock lock(mutex_);
    if (new_shapes_) full_until_ = steps_ + 1;
    new_shapes_ = false;
  }
  const std::uint64_t step = steps_++;
  if (step < full_until_) return MeasureMode::full;
  return step % kTimesEverySteps == 0 ? MeasureMode::times : MeasureMode::off;
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

void BlockWatch::read_times(std::vector<BlockTime>& times) {
  if (times.size() != names_.size()) {
    times.clear();
    for (const std::string& name : names_) times.push_back({name});
  }
  const std::scoped_lock lock(mutex_);
  for (std::size_t b = 0; b < times.size(); ++b) {
    times[b].forward_seconds = known_[b].measurement.forward.count();
    times[b].backward_seconds = known_[b].measurement.backward.count();
  }
}

void BlockWatch::set_flops(std::span<const double> flops) {
  const std::scoped_lock lock(mutex_);
  for (std::size_t b = 0; b < known_.size(); ++b) {
    Known& known = known_[b];
    known.is_unsent = known.is_unsent || (known.is_complete && known.flops != flops[b]);
    known.flops = flops[b];
  }
}

Fragment BlockWatch::next_fragment() {
  const std::scoped_lock lock(mutex_);
  for (std::size_t tried = 0; tried < known_.size(); ++tried) {
    const std::size_t b = next_;
    next_ = (next_ + 1) % known_.size();
    if (!known_[b].is_unsent) continue;
    known_[b].is_unsent = false;
    const BlockId block(static_cast<BlockId::rep>(b));
    BlockProfile profile = block_profile(block, known_.size(), names_[b], known_[b].measurement);
    profile.flops = static_cast<float>(known_[b].flops);
    return make_fragment(profile);
  }
  return {};
}

}  // namespace cox::detail
