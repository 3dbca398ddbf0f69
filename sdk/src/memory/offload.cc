#include "sdk/src/memory/offload.h"

#include <ATen/EmptyTensor.h>
#include <ATen/SequenceNumber.h>
#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ranges>
#include <system_error>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/memory/pinned_tier.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {

struct StoredStorage {
  using Key = OffloadStore::Key;
  enum class Place { memory, leaving, away };

  StoredStorage(const Key& its_key, const c10::Storage& storage, std::int64_t place_on_tier)
      : key(its_key),
        bytes(static_cast<std::int64_t>(storage.nbytes())),
        device(storage.device()),
        offset(place_on_tier),
        original(storage.getWeakStorageImpl()),
        memory(storage) {
    transfer.data = const_cast<void*>(storage.data());  // only read
    transfer.bytes = bytes;
    transfer.offset = offset;
  }

  const Key key;
  const std::int64_t bytes;
  const c10::Device device;
  Place place = Place::leaving;
  std::int64_t offset;  // on the tier; -1: no place
  // While another owner keeps the original alive, nothing needs to be read. The weak reference also
  // keeps the address from being reused, so that the key is unique.
  c10::weak_intrusive_ptr<c10::StorageImpl> original;
  c10::Storage memory;  // null while away
  Transfer transfer;

  std::vector<FrameNumber> frames;
  std::int64_t holders = 0;
  std::int64_t waiting = 0;  // holders that have not taken it in this round
  std::int64_t round = 1;    // a backward pass; advances when a holder asks again
};

namespace {

using Place = StoredStorage::Place;

c10::Storage new_storage(std::int64_t bytes, c10::Device device) {
  return at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte)).storage();
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         tensor.storage().data() != nullptr && !tensor.is_inference() && !tensor.is_quantized() &&
         !tensor.is_nested() && !tensor.is_conj() && !tensor.is_neg();
}

// Autograd's views share the version of their base; a part that is no view has its own.
OffloadStore::Part part_of(const at::Tensor& tensor) {
  const bool is_whole = static_cast<std::uint64_t>(tensor.nbytes()) == storage_bytes(tensor);
  return is_whole || tensor.is_view() ? OffloadStore::Part::seen : OffloadStore::Part::unseen;
}

std::unique_ptr<Tier> open_tier(const OffloadOptions& options, Status& status) {
  if (!options.device.is_cpu()) return std::make_unique<PinnedTier>(options.device);
  Result<TierFile> file = TierFile::create(options.folder);
  status = file.status();
  if (!file.ok()) return nullptr;
  auto tier = std::make_unique<TierThread>(std::move(*file), options.verify);
  status = tier->thread_status();
  if (!status.ok()) return nullptr;
  return tier;
}

std::int64_t capacity_of(const OffloadOptions& options) {
  constexpr std::int64_t kNoCap = std::int64_t{1} << 60;
  return options.tier_bytes > 0 ? options.tier_bytes : kNoCap;
}

}  // namespace

OffloadStore::OffloadStore(std::unique_ptr<Tier> tier, std::int64_t tier_bytes)
    : tier_(std::move(tier)), space_(tier_bytes) {}

OffloadStore::~OffloadStore() = default;

FrameNumber OffloadStore::open_frame() {
  const std::lock_guard lock(mutex_);
  return next_frame_++;
}

std::optional<StorageHolder> OffloadStore::save(const at::Tensor& tensor, FrameNumber frame,
                                                Part part) {
  if (!tier_) return std::nullopt;
  const c10::Storage& storage = tensor.storage();
  const Key key{storage.unsafeGetStorageImpl(), tensor._version(), storage.nbytes(),
                part == Part::unseen ? frame : 0};
  const std::lock_guard lock(mutex_);
  const auto known = stored_.find(key);
  StoredStorage* stored = known != stored_.end() ? known->second.get() : move_out(storage, key);
  if (stored == nullptr) return std::nullopt;
  ++stored->holders;
  ++stored->waiting;
  if (std::ranges::find(stored->frames, frame) == stored->frames.end()) {
    stored->frames.push_back(frame);
    frames_[frame].stored.push_back(stored);
  }
  return StorageHolder{stored, frame, 0};
}

StoredStorage* OffloadStore::move_out(const c10::Storage& storage, const Key& key) {
  const auto bytes = static_cast<std::int64_t>(std::get<2>(key));
  const std::optional<std::int64_t> offset = broken_.ok() ? space_.take(bytes) : std::nullopt;
  if (!offset) {
    counts_.stayed_bytes += bytes;
    if (broken_.ok() && !std::exchange(full_told_, true)) {
      fail(resource_exhausted("offload tier: expected room for " + std::to_string(bytes) +
                              " bytes beside " + std::to_string(space_.used()) +
                              " in use, found none; tensors without room stay in memory (raise "
                              "memory.tier_bytes or offload fewer blocks)"));
    }
    return nullptr;
  }
  auto stored = std::make_unique<StoredStorage>(key, storage, *offset);
  tier_->start(stored->transfer);
  leaving_.push_back(stored.get());
  leaving_bytes_ += bytes;
  counts_.written_bytes += bytes;
  counts_.tier_peak_bytes = std::max(counts_.tier_peak_bytes, space_.used());
  return stored_.emplace(key, std::move(stored)).first->second.get();
}

void OffloadStore::let_go_down_to(std::int64_t bytes) {
  Garbage garbage;
  const std::lock_guard lock(mutex_);
  while (leaving_bytes_ > bytes) let_go_oldest(garbage);
}

void OffloadStore::let_go_oldest(Garbage& garbage) {
  StoredStorage& oldest = *leaving_.front();
  leaving_.pop_front();
  leaving_bytes_ -= oldest.bytes;
  if (tier_->finish(oldest.transfer) == Transfer::State::done) {
    oldest.place = Place::away;
    garbage.push_back(std::exchange(oldest.memory, {}));
    return;
  }
  oldest.place = Place::memory;
  space_.give_back(std::exchange(oldest.offset, -1), oldest.bytes);
  counts_.stayed_bytes += oldest.bytes;
  counts_.written_bytes -= oldest.bytes;
  if (broken_.ok()) {
    broken_ = oldest.transfer.error.with_context(
        "offload tier failed; tensors stay in memory from now on");
    fail(broken_);
  }
}

Result<c10::Storage> OffloadStore::take(StorageHolder& holder) {
  Garbage garbage;
  const std::lock_guard lock(mutex_);
  StoredStorage& stored = *holder.stored;
  begin_backward(holder.frame);
  if (stored.waiting == 0) {
    ++stored.round;
    stored.waiting = stored.holders;
  }
  fetch(stored);
  if (Status status = wait_for_read(stored); !status.ok()) return status;
  c10::Storage storage = stored.memory;
  if (holder.round_taken != stored.round) {
    holder.round_taken = stored.round;
    if (--stored.waiting == 0) end_round(stored, garbage);
  }
  return storage;
}

// Fetches a frame once, in the reverse order of saving, which is backward's order. A second pass
// over the same graph reads on request.
void OffloadStore::begin_backward(FrameNumber number) {
  const auto found = frames_.find(number);
  if (found == frames_.end() || std::exchange(found->second.backward_began, true)) return;
  for (StoredStorage* stored : found->second.stored | std::views::reverse) {
    if (stored->waiting > 0) fetch(*stored);
  }
}

void OffloadStore::fetch(StoredStorage& stored) {
  if (stored.memory) return;
  if (auto original = stored.original.lock()) {
    stored.memory = c10::Storage(std::move(original));
    return;
  }
  stored.memory = new_storage(stored.bytes, stored.device);
  stored.transfer.kind = Transfer::Kind::read;
  stored.transfer.data = stored.memory.mutable_data();
  tier_->start(stored.transfer);
  counts_.read_bytes += stored.bytes;
}

Status OffloadStore::wait_for_read(StoredStorage& stored) {
  if (stored.place != Place::away || stored.transfer.kind != Transfer::Kind::read) {
    return ok_status();
  }
  const auto began = std::chrono::steady_clock::now();
  const Transfer::State state = tier_->finish(stored.transfer);
  const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - began;
  counts_.waited_ns += waited.count();
  if (state != Transfer::State::failed) return ok_status();
  stored.memory = {};
  ++counts_.lost_reads;
  if (broken_.ok()) broken_ = stored.transfer.error;
  return stored.transfer.error;
}

void OffloadStore::end_round(StoredStorage& stored, Garbage& garbage) {
  if (stored.place != Place::away) return;
  tier_->cancel(stored.transfer);
  garbage.push_back(std::exchange(stored.memory, {}));
}

void OffloadStore::drop(StorageHolder& holder) noexcept {
  Garbage garbage;
  const std::lock_guard lock(mutex_);
  StoredStorage& stored = *holder.stored;
  if (--stored.holders == 0) {
    forget(stored, garbage);
  } else if (holder.round_taken != stored.round && stored.waiting > 0 && --stored.waiting == 0) {
    end_round(stored, garbage);
  }
}

void OffloadStore::forget(StoredStorage& stored, Garbage& garbage) {
  tier_->cancel(stored.transfer);
  if (stored.place == Place::leaving) {
    std::erase(leaving_, &stored);
    leaving_bytes_ -= stored.bytes;
  }
  if (stored.offset >= 0) space_.give_back(stored.offset, stored.bytes);
  for (const FrameNumber number : stored.frames) {
    const auto frame = frames_.find(number);
    std::erase(frame->second.stored, &stored);
    if (frame->second.stored.empty()) frames_.erase(frame);
  }
  garbage.push_back(std::move(stored.memory));
  stored_.erase(stored_.find(stored.key));
}

void OffloadStore::let_go_prefetched() {
  Garbage garbage;
  const std::lock_guard lock(mutex_);
  for (const auto& [key, stored] : stored_) {
    if (stored->memory) end_round(*stored, garbage);
  }
}

OffloadCounts OffloadStore::counts() const {
  const std::lock_guard lock(mutex_);
  OffloadCounts counts = counts_;
  counts.tier_bytes = space_.used();
  return counts;
}

void OffloadStore::reset_counts() {
  const std::lock_guard lock(mutex_);
  counts_ = {};
  counts_.tier_peak_bytes = space_.used();
}

Status OffloadStore::new_failure() {
  const std::lock_guard lock(mutex_);
  return std::exchange(failure_, {});
}

Status OffloadStore::tier_failure() const {
  const std::lock_guard lock(mutex_);
  return broken_;
}

void OffloadStore::fail(Status status) {
  if (failure_.ok()) failure_ = std::move(status);
}

// OffloadHooks is one saved tensor of an offloaded call: a place in the OffloadStore with the
// tensor's shape, or the tensor itself if it stays. Hooks disable autograd's own check, so this
// class compares the tensor's version and names the block on a mismatch.
class OffloadHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit OffloadHooks(std::shared_ptr<OffloadFrame> frame) : frame_(std::move(frame)) {}
  OffloadHooks(const OffloadHooks&) = delete;
  OffloadHooks& operator=(const OffloadHooks&) = delete;

  ~OffloadHooks() override {
    if (is_waiting_) frame_->forget(*this);
    if (away_) frame_->store_->drop(*away_);
  }

  void call_pack_hook(const at::Tensor& tensor) override {
    if (!tensor.is_inference()) {
      counter_ = tensor.unsafeGetTensorImpl()->version_counter();
      version_ = counter_->current_version();
    }
    // Detached, because a history would make a cycle. A leaf with a gradient has no history.
    kept_ = is_parameter(tensor) ? tensor : tensor.detach();
    if (frame_->stays(tensor)) return frame_->move(OffloadFrame::Moved::those_of_ended_operators);
    shape_ = {tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
              tensor.dtype()};
    is_waiting_ = true;
    frame_->wait_to_move(*this, part_of(tensor));
  }

  void move(OffloadStore::Part part) {
    is_waiting_ = false;
    away_ = frame_->save(kept_, part);
    if (away_) kept_.reset();
  }

  at::Tensor call_unpack_hook() override {
    check_version();
    if (!away_) return kept_;
    Result<c10::Storage> storage = frame_->store_->take(*away_);
    if (storage.ok()) return rebuilt(std::move(*storage));
    throw Error(storage.status().with_context("block " + frame_->block() +
                                              ": a tensor that its backward pass needs was moved "
                                              "out of memory and cannot be read again"));
  }

 private:
  // The shape of the saved tensor within its storage.
  struct Shape {
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    std::int64_t offset = 0;
    caffe2::TypeMeta type;
  };

  void check_version() const {
    if (!counter_ || counter_->current_version() == version_) return;
    const at::IntArrayRef sizes = away_ ? at::IntArrayRef(shape_.sizes) : kept_.sizes();
    throw Error(
        failed_precondition("block " + frame_->block() + ": " +
                            changed_in_place(sizes, version_, counter_->current_version())));
  }

  at::Tensor rebuilt(c10::Storage storage) const {
    const auto key = storage.device().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
    at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(key), shape_.type);
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(shape_.sizes, shape_.strides,
                                                        shape_.offset);
    return tensor;
  }

  const std::shared_ptr<OffloadFrame> frame_;
  std::atomic<bool> is_waiting_ = false;
  at::Tensor kept_;
  std::optional<StorageHolder> away_;
  Shape shape_;
  std::optional<c10::VariableVersion> counter_;  // version counter without the tensor's memory
  std::uint32_t version_ = 0;
};

OffloadFrame::OffloadFrame(std::string block, std::shared_ptr<OffloadStore> store,
                           const OffloadOptions& options)
    : block_(std::move(block)),
      store_(std::move(store)),
      number_(store_->open_frame()),
      in_flight_bytes_(options.in_flight_bytes),
      smallest_bytes_(options.smallest_bytes),
      device_(options.device),
      report_(options.report) {}

OffloadFrame::~OffloadFrame() = default;

std::unique_ptr<torch::autograd::SavedVariableHooks> OffloadFrame::make_hooks() {
  return std::make_unique<OffloadHooks>(shared_from_this());
}

bool OffloadFrame::stays(const at::Tensor& tensor) const {
  if (is_parameter_or_view(tensor)) return true;
  return !is_plain(tensor) || tensor.device() != device_ ||
         storage_bytes(tensor) < static_cast<std::uint64_t>(smallest_bytes_) ||
         left_alone_.contains(storage_of(tensor));
}

void OffloadFrame::leave_alone(const c10::StorageImpl* storage) noexcept {
  left_alone_.insert(storage);
}

// Autograd counts the operators of a thread that make graph nodes. A tensor is saved under the
// number of the next node.
void OffloadFrame::wait_to_move(OffloadHooks& saved, OffloadStore::Part part) {
  move(Moved::those_of_ended_operators);
  const std::lock_guard lock(mutex_);
  waiting_.push_back({&saved, at::sequence_number::peek(), part});
}

void OffloadFrame::move(Moved which) {
  const std::uint64_t running = at::sequence_number::peek();
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&](const Waiting& it) {
    const bool is_over = it.saver != running && it.part == OffloadStore::Part::seen;
    if (which != Moved::all && !is_over) return false;
    it.saved->move(it.part);
    return true;
  });
}

void OffloadFrame::forget(const OffloadHooks& saved) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(waiting_, [&](const Waiting& it) { return it.saved == &saved; });
}

std::optional<StorageHolder> OffloadFrame::save(const at::Tensor& tensor, OffloadStore::Part part) {
  const std::optional<StorageHolder> holder = store_->save(tensor, number_, part);
  store_->let_go_down_to(in_flight_bytes_);
  return holder;
}

void OffloadFrame::leave() noexcept {
  move(Moved::all);
  store_->let_go_down_to(0);
  left_alone_.clear();
  const Status failure = store_->new_failure();
  if (!failure.ok() && report_) report_(failure.with_context("block " + block_));
}

Offloader::Offloader(OffloadOptions options) : options_(std::move(options)) {
  std::unique_ptr<Tier> tier = open_tier(options_, open_status_);
  store_ = std::make_shared<OffloadStore>(std::move(tier), capacity_of(options_));
  if (!open_status_.ok() && options_.report) options_.report(open_status_);
}

std::shared_ptr<OffloadFrame> Offloader::open_frame(std::string block) {
  return std::shared_ptr<OffloadFrame>(new OffloadFrame(std::move(block), store_, options_));
}

Status Offloader::tier_status() const {
  return open_status_.ok() ? store_->tier_failure() : open_status_;
}

void Offloader::begin_step() {
  store_->let_go_prefetched();
  store_->reset_counts();
}

}  // namespace cox::detail
