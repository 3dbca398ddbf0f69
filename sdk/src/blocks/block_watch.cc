#include "sdk/src/blocks/block_watch.h"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coxswain/error.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {

// Follower shows a step's operators to the visits of one model's blocks, while it is open. A
// forward pass begins with the first operator on a parameter that requires gradients, and ends with
// the backward pass. So optimizers and evaluations without gradients enter no block.
class BlockWatch::Follower final : public OperatorListener {
 public:
  Follower(BlockMap map, std::shared_ptr<VisitListener> listener)
      : map_(std::move(map)), listener_(std::move(listener)), visits_(listener_->visits()) {}

  ~Follower() override { close(); }
  Follower(const Follower&) = delete;
  Follower& operator=(const Follower&) = delete;

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
    if (may_begin || visits_.current()) visits_.read_parameter(map_, 0, {handle, storage});
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
  // A cast cached by autocast would make gradients depend on the memory action.
  bool had_cast_cache_ = true;
  std::optional<SavedTensorScope> saving_;
  std::optional<StreamScope> stream_;
};

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
  follower_ = std::make_shared<Follower>(std::move(*map), listener_);
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
  if (!listener_) listener_ = std::make_shared<VisitListener>(measured_);
  for (std::size_t b = 0; b < names.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    visits()->add_block(names[b], b < map.size() ? map.elements(block) : 0);
  }
  note_device(map);
  names_.insert(names_.end(), names.begin(), names.end());
  measured_.resize(names_.size());
  return ok_status();
}

// Uses the first device that is no CPU, as device_of() does.
void BlockWatch::note_device(const BlockMap& map) {
  c10::Device& device = visits()->parts().device;
  for (std::size_t b = 0; b < map.size(); ++b) {
    for (const at::Tensor& parameter : map.parameters(BlockId(static_cast<BlockId::rep>(b))))
      if (device.is_cpu()) device = parameter.device();
  }
}

void BlockWatch::release() {
  follower_.reset();
  if (listener_) listener_->visits().release();
  listener_.reset();
  names_.clear();
  measured_.resize(0);
}

std::vector<PinnedBlock> BlockWatch::pinned() const {
  return listener_ ? listener_->visits().parts().steering.pinned() : std::vector<PinnedBlock>();
}

void BlockWatch::begin_step() {
  if (!listener_) return;
  visits()->parts().clock.measure(measured_.next_mode());
  if (follower_) follower_->open();
}

void BlockWatch::end_step(const StepEnd&, StepOutput&) {
  if (!follower_) return;
  follower_->close();
  visits()->end_step();
}

Fragment BlockWatch::next_fragment() {
  return measured_.next(names_);
}

}  // namespace cox::detail
