#include "sdk/src/memory/offload_store.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

namespace cox::detail {

struct StoredStorage {
  using Key = std::tuple<const c10::StorageImpl*, std::uint32_t, std::size_t>;
  enum class Place { memory, leaving, away };

  StoredStorage(const Key& its_key, const c10::Storage& storage, std::int64_t place_on_tier)
      : key(its_key),
        bytes(static_cast<std::int64_t>(storage.nbytes())),
        offset(place_on_tier),
        original(storage.getWeakStorageImpl()),
        memory(storage) {
    transfer.data = const_cast<void*>(storage.data());  // only read
    transfer.bytes = bytes;
    transfer.offset = offset;
  }

  const Key key;
  const std::int64_t bytes;
  Place place = Place::leaving;
  std::int64_t offset;  // on the tier, -1 when it has no place there
  // While somebody else keeps the original alive nothing needs to be read. It also keeps the
  // address from being used again, which makes the key unique.
  c10::weak_intrusive_ptr<c10::StorageImpl> original;
  c10::Storage memory;  // null while away
  Transfer transfer;

  std::vector<FrameNumber> frames;
  std::int64_t holders = 0;
  std::int64_t waiting = 0;  // holders that have not taken it in this round
  std::int64_t round = 1;    // a backward pass; the next one when a holder asks again
};

namespace {

using Place = StoredStorage::Place;

class WaitClock {
 public:
  explicit WaitClock(std::int64_t& us) : us_(us), begin_(std::chrono::steady_clock::now()) {}
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;
  ~WaitClock() {
    const auto taken = std::chrono::steady_clock::now() - begin_;
    us_ += std::chrono::duration_cast<std::chrono::microseconds>(taken).count();
  }

 private:
  std::int64_t& us_;
  const std::chrono::steady_clock::time_point begin_;
};

c10::Storage new_storage(std::int64_t bytes) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte)).storage();
}

}  // namespace

OffloadStore::OffloadStore(std::unique_ptr<TierThread> tier, std::int64_t tier_bytes,
                           int prefetch_frames)
    : tier_(std::move(tier)), prefetch_frames_(prefetch_frames), space_(tier_bytes) {}

OffloadStore::~OffloadStore() = default;

FrameNumber OffloadStore::open_frame() {
  const std::lock_guard lock(mutex_);
  return next_frame_++;
}

std::optional<StorageHolder> OffloadStore::save(const at::Tensor& tensor, FrameNumber frame) {
  if (!tier_) return std::nullopt;
  const c10::Storage& storage = tensor.storage();
  const Key key{storage.unsafeGetStorageImpl(), tensor._version(), storage.nbytes()};
  const std::lock_guard lock(mutex_);
  const auto known = stored_.find(key);
  StoredStorage* stored = known != stored_.end() ? known->second.get() : move_out(storage, key);
  if (stored == nullptr) return std::nullopt;
  ++stored->holders;
  ++stored->waiting;
  if (std::find(stored->frames.begin(), stored->frames.end(), frame) == stored->frames.end()) {
    stored->frames.push_back(frame);
    frames_[frame].stored.push_back(stored);
  }
  return StorageHolder{stored, frame, 0, known == stored_.end()};
}

StoredStorage* OffloadStore::move_out(const c10::Storage& storage, const Key& key) {
  const auto bytes = static_cast<std::int64_t>(std::get<2>(key));
  const std::optional<std::int64_t> offset = broken_.ok() ? space_.take(bytes) : std::nullopt;
  if (!offset) {
    counts_.stayed_bytes += bytes;
    if (broken_.ok() && !std::exchange(full_told_, true)) {
      fail(resource_exhausted("offload tier: expected room for " + std::to_string(bytes) +
                              " bytes beside " + std::to_string(space_.used()) +
                              " in use, found none; such tensors stay in memory (raise the cap on "
                              "tier bytes or offload fewer blocks)"));
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
  const WaitClock clock(counts_.write_wait_us);
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

// Once a frame: a second pass over the same graph reads when asked.
void OffloadStore::begin_backward(FrameNumber number) {
  auto frame = frames_.find(number);
  if (frame == frames_.end() || std::exchange(frame->second.backward_began, true)) return;
  fetch_frame(frame->second);
  for (int i = 0; i < prefetch_frames_ && frame != frames_.begin(); ++i) {
    --frame;
    fetch_frame(frame->second);
  }
}

// Backward asks in the reverse order of saving.
void OffloadStore::fetch_frame(const Frame& frame) {
  for (auto stored = frame.stored.rbegin(); stored != frame.stored.rend(); ++stored) {
    if ((*stored)->waiting > 0) fetch(**stored);
  }
}

void OffloadStore::fetch(StoredStorage& stored) {
  if (stored.memory) return;
  if (auto original = stored.original.lock()) {
    stored.memory = c10::Storage(std::move(original));
    return;
  }
  stored.memory = new_storage(stored.bytes);
  stored.transfer.kind = Transfer::Kind::read;
  stored.transfer.data = stored.memory.mutable_data();
  tier_->start(stored.transfer);
  counts_.read_bytes += stored.bytes;
}

Status OffloadStore::wait_for_read(StoredStorage& stored) {
  if (stored.place != Place::away || stored.transfer.kind != Transfer::Kind::read) {
    return ok_status();
  }
  const WaitClock clock(counts_.read_wait_us);
  if (tier_->finish(stored.transfer) != Transfer::State::failed) return ok_status();
  stored.memory = {};
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

}  // namespace cox::detail
