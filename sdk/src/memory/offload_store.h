// OffloadStore keeps the storages that autograd has saved in offloaded calls, each once, and knows
// where each is: in memory, leaving, or away on the tier. It decides when memory is given back and
// taken again. Those moments depend only on the order of calls and on byte counts, never on the
// speed of the tier: a storage that has been written is not let go early, and one that is fetched
// is allocated at once.
//
//   saved -> leaving: the storage is being written. The oldest one is let go when more than a given
//            number of bytes are leaving; the store waits for its write if need be.
//   away  -> back: the storage is allocated and read when the backward pass of its frame, or of a
//            later frame (prefetch), begins. It is let go when every holder has taken it once or is
//            gone.
//
// A holder is one saved tensor, so several views of one storage are several holders. Any thread may
// call any function: one lock guards the store, and copies run outside of it on the tier's thread.
// The hooks of every graph own the store together, so it outlives them all.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "sdk/src/memory/tier.h"

namespace cox::detail {

// What offloading has done since the counts were last reset.
struct OffloadCounts {
  std::int64_t written_bytes = 0;  // sent to the tier
  std::int64_t read_bytes = 0;     // fetched from the tier
  std::int64_t stayed_bytes = 0;   // could not leave, because the tier was full or broken
  std::int64_t tier_bytes = 0;     // in use on the tier now, in whole pages
  std::int64_t tier_peak_bytes = 0;
  std::int64_t write_wait_us = 0;  // the training thread waited for writes, or wrote by itself
  std::int64_t read_wait_us = 0;   // the same for reads, in backward
};

using FrameNumber = std::int64_t;

struct StoredStorage;  // one storage in one version

// StorageHolder is what a saved tensor remembers of its storage. save() makes it, and the owner
// gives it back to drop().
struct StorageHolder {
  StoredStorage* stored = nullptr;
  FrameNumber frame = 0;
  std::int64_t round_taken = 0;
  bool began_to_leave = false;  // with this holder; otherwise the storage was known already
};

class OffloadStore {
 public:
  // A null `tier` keeps everything in memory. `tier_bytes` caps what is on the tier at once.
  OffloadStore(std::unique_ptr<TierThread> tier, std::int64_t tier_bytes, int prefetch_frames);
  ~OffloadStore();
  OffloadStore(const OffloadStore&) = delete;
  OffloadStore& operator=(const OffloadStore&) = delete;

  // Returns a number for one more call, larger than all before.
  FrameNumber open_frame();
  // Begins to move the storage of `tensor` unless that has begun already. Returns nothing when it
  // has to stay in memory: there is no tier or no room on it, or the tier failed before.
  std::optional<StorageHolder> save(const at::Tensor& tensor, FrameNumber frame);
  // Lets go of the oldest leaving storages until at most `bytes` are leaving. Blocks for their
  // writes.
  void let_go_down_to(std::int64_t bytes);
  // Returns the storage, reading it again if need be, or the status of a read that failed. Blocks
  // for the read.
  Result<c10::Storage> take(StorageHolder& holder);
  void drop(StorageHolder& holder) noexcept;
  // Lets go of storages that were fetched and have not been taken.
  void let_go_prefetched();

  OffloadCounts counts() const;
  void reset_counts();
  // Returns the first error of the tier that has not been returned yet, else ok.
  Status new_failure();
  // Returns why nothing is sent to the tier any more, else ok.
  Status tier_failure() const;

 private:
  using Key = std::tuple<const c10::StorageImpl*, std::uint32_t, std::size_t>;
  using Garbage = std::vector<c10::Storage>;  // freed after the lock is released

  struct Frame {
    std::vector<StoredStorage*> stored;  // in the order of saving
    bool backward_began = false;
  };

  StoredStorage* move_out(const c10::Storage& storage, const Key& key);
  void let_go_oldest(Garbage& garbage);
  void begin_backward(FrameNumber number);
  void fetch_frame(const Frame& frame);
  void fetch(StoredStorage& stored);
  Status wait_for_read(StoredStorage& stored);
  void end_round(StoredStorage& stored, Garbage& garbage);
  void forget(StoredStorage& stored, Garbage& garbage);
  void fail(Status status);

  mutable std::mutex mutex_;
  const std::unique_ptr<TierThread> tier_;
  const int prefetch_frames_;
  TierSpace space_;
  FrameNumber next_frame_ = 1;
  std::map<Key, std::unique_ptr<StoredStorage>> stored_;
  std::map<FrameNumber, Frame> frames_;
  std::deque<StoredStorage*> leaving_;
  std::int64_t leaving_bytes_ = 0;
  Status broken_;  // the write that failed; nothing more is sent after it
  bool full_told_ = false;
  Status failure_;
  OffloadCounts counts_;
};

}  // namespace cox::detail
