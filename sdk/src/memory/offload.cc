#include "sdk/src/memory/offload.h"

#include <utility>

#include "sdk/src/blocks/storage.h"
#include "sdk/src/memory/offload_hooks.h"

namespace cox::detail {
namespace {

bool is_parameter(const at::TensorBase& tensor) {
  return tensor.is_leaf() && tensor.requires_grad();
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu() && tensor.layout() == at::kStrided &&
         tensor.has_storage() && tensor.storage().data() != nullptr && !tensor.is_inference() &&
         !tensor.is_quantized() && !tensor.is_nested() && !tensor.is_conj() && !tensor.is_neg();
}

}  // namespace

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
  if (is_parameter(tensor) || (tensor.is_view() && is_parameter(tensor._base()))) return true;
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

namespace {

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
