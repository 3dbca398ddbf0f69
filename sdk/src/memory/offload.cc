#include "sdk/src/memory/offload.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <optional>
#include <utility>
#include <vector>

#include "coxswain/error.h"
#include "sdk/src/blocks/storage.h"

namespace cox::detail {
namespace {

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         tensor.has_storage() && tensor.storage().data() != nullptr && !tensor.is_inference() &&
         !tensor.is_quantized() && !tensor.is_nested() && !tensor.is_conj() && !tensor.is_neg();
}

std::unique_ptr<TierThread> open_tier(const OffloadOptions& options, Status& status) {
  Result<TierFile> file = TierFile::create(options.folder);
  status = file.status();
  return file.ok() ? std::make_unique<TierThread>(std::move(*file)) : nullptr;
}

std::int64_t capacity_of(const OffloadOptions& options) {
  constexpr std::int64_t kNoCap = std::int64_t{1} << 60;
  return options.tier_bytes > 0 ? options.tier_bytes : kNoCap;
}

}  // namespace

// One saved tensor of an offloaded call: a place in the OffloadStore and the shape to see it in, or
// the tensor itself where that stays. Hooks switch off autograd's own check, so this compares the
// tensor's version and names the block on a mismatch.
class OffloadHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit OffloadHooks(std::shared_ptr<OffloadFrame> frame);
  OffloadHooks(const OffloadHooks&) = delete;
  OffloadHooks& operator=(const OffloadHooks&) = delete;
  ~OffloadHooks() override;

  void call_pack_hook(const at::Tensor& tensor) override;
  at::Tensor call_unpack_hook() override;

 private:
  // How to see a storage as the tensor that was saved.
  struct Shape {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::int64_t offset = 0;
    caffe2::TypeMeta type;
  };

  void check_version() const;
  at::Tensor rebuilt(c10::Storage storage) const;

  const std::shared_ptr<OffloadFrame> frame_;
  at::Tensor kept_;
  std::optional<StorageHolder> away_;
  Shape shape_;
  std::optional<c10::VariableVersion> counter_;  // of the tensor, without its memory
  std::uint32_t version_ = 0;
};

OffloadHooks::OffloadHooks(std::shared_ptr<OffloadFrame> frame) : frame_(std::move(frame)) {}

OffloadHooks::~OffloadHooks() {
  if (away_) frame_->store_->drop(*away_);
}

void OffloadHooks::call_pack_hook(const at::Tensor& tensor) {
  if (!tensor.is_inference()) {
    counter_ = tensor.unsafeGetTensorImpl()->version_counter();
    version_ = counter_->current_version();
  }
  away_ = frame_->save(tensor);
  if (!away_) {
    // With its history it would be a cycle; a leaf that takes a gradient has none.
    kept_ = is_parameter(tensor) ? tensor : tensor.detach();
    return;
  }
  shape_ = {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(), tensor.dtype()};
}

at::Tensor OffloadHooks::call_unpack_hook() {
  check_version();
  if (!away_) return kept_;
  Result<c10::Storage> storage = frame_->store_->take(*away_);
  if (storage.ok()) return rebuilt(std::move(*storage));
  throw Error(
      storage.status().with_context("block " + frame_->block() +
                                    ": a tensor that its backward pass needs was moved out of "
                                    "memory and cannot be read again"));
}

void OffloadHooks::check_version() const {
  if (!counter_ || counter_->current_version() == version_) return;
  const at::IntArrayRef sizes = away_ ? at::IntArrayRef(shape_.sizes) : kept_.sizes();
  throw Error(failed_precondition("block " + frame_->block() + ": " +
                                  changed_in_place(sizes, version_, counter_->current_version())));
}

at::Tensor OffloadHooks::rebuilt(c10::Storage storage) const {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), shape_.type);
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape_.sizes, shape_.strides, shape_.offset);
  return tensor;
}

OffloadFrame::OffloadFrame(std::string block, const torch::nn::Module& module,
                           std::shared_ptr<OffloadStore> store, const OffloadOptions& options)
    : block_(std::move(block)),
      store_(std::move(store)),
      number_(store_->open_frame()),
      in_flight_bytes_(options.in_flight_bytes),
      carried_bytes_(options.carried_bytes),
      smallest_bytes_(options.smallest_bytes),
      report_(options.report) {
  for (const at::Tensor& tensor : module.parameters()) leave_alone(tensor);
  for (const at::Tensor& tensor : module.buffers()) leave_alone(tensor);
}

OffloadFrame::~OffloadFrame() = default;

std::unique_ptr<torch::autograd::SavedVariableHooks> OffloadFrame::make_hooks() {
  return std::make_unique<OffloadHooks>(shared_from_this());
}

void OffloadFrame::leave_alone(const at::Tensor& tensor) {
  left_alone_.insert(storage_of(tensor));
}

bool OffloadFrame::stays(const at::Tensor& tensor) const {
  if (is_parameter_or_view(tensor)) return true;
  return !is_plain(tensor) || storage_bytes(tensor) < static_cast<std::uint64_t>(smallest_bytes_) ||
         left_alone_.contains(storage_of(tensor));
}

std::optional<StorageHolder> OffloadFrame::save(const at::Tensor& tensor) {
  if (stays(tensor)) return std::nullopt;
  const std::optional<StorageHolder> holder = store_->save(tensor, number_);
  if (holder && holder->began_to_leave)
    moved_bytes_ += static_cast<std::int64_t>(storage_bytes(tensor));
  store_->let_go_down_to(in_flight_bytes_);
  return holder;
}

void OffloadFrame::leave() noexcept {
  static_cast<void>(close());
}

std::int64_t OffloadFrame::close() {
  store_->let_go_down_to(carried_bytes_);
  left_alone_.clear();
  const Status failure = store_->new_failure();
  if (!failure.ok() && report_) report_(failure.with_context("block " + block_));
  return moved_bytes_;
}

Offloader::Offloader(OffloadOptions options) : options_(std::move(options)) {
  std::unique_ptr<TierThread> tier = open_tier(options_, open_status_);
  store_ = std::make_shared<OffloadStore>(std::move(tier), capacity_of(options_),
                                          options_.prefetch_frames);
  if (!open_status_.ok() && options_.report) options_.report(open_status_);
}

std::shared_ptr<OffloadFrame> Offloader::open_frame(std::string block,
                                                    const torch::nn::Module& module) {
  return std::shared_ptr<OffloadFrame>(
      new OffloadFrame(std::move(block), module, store_, options_));
}

Status Offloader::tier_status() const {
  return open_status_.ok() ? store_->tier_failure() : open_status_;
}

void Offloader::begin_step() {
  store_->let_go_prefetched();
  store_->reset_counts();
}

}  // namespace cox::detail
