// OffloadStore: the storages that autograd has saved in offloaded calls, each once, and where they
// are: in memory, leaving, or away on the tier. It decides when memory is given back and taken
// again. Those moments depend only on the order of calls and on byte counts, never on how fast the
// tier is: what has been written is not let go early, and what is fetched is allocated at once.
//
//   saved -> leaving: being written; the oldest is let go when more than a given number of bytes
//            are leaving, and waited for if need be
//   away  -> back: allocated and read when the backward pass of its frame begins, or of a later
//            frame (prefetch); let go when every holder has taken it once, or is gone
//
// A holder is one saved tensor: several views of one storage are several holders. One lock; copies
// run outside of it on the tier's thread. Held by the hooks of every graph, so it outlives them.
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

#include "sdk/src/memory/offload_counts.h"
#include "sdk/src/memory/tier_space.h"
#include "sdk/src/memory/tier_thread.h"

namespace cox::detail {

using FrameNumber = std::int64_t;

struct StoredStorage;  // one storage in one version

// What a saved tensor remembers of its storage. Made by save(), given back to drop().
struct StorageHolder {
  StoredStorage* stored = nullptr;
  FrameNumber frame = 0;
  std::int64_t round_taken = 0;
  bool began_to_leave = false;  // with this one; else the storage was known already
};

class OffloadStore {
 public:
  // `tier`: null when there is none; then everything stays in memory.
  OffloadStore(std::unique_ptr<TierThread> tier, std::int64_t tier_bytes, int prefetch_frames);
  ~OffloadStore();
  OffloadStore(const OffloadStore&) = delete;
  OffloadStore& operator=(const OffloadStore&) = delete;

  // A number for one more call, larger than all before.
  FrameNumber open_frame();
  // Begins to move the storage of `tensor` unless that has begun already. Nothing when it has to
  // stay in memory: no tier, no room on it, or an earlier error.
  std::optional<StorageHolder> save(const at::Tensor& tensor, FrameNumber frame);
  // Lets go the oldest leaving storages until at most `bytes` are leaving. Blocks for their writes.
  void let_go_down_to(std::int64_t bytes);
  // The storage, read again if need be; the status of a read that failed.
  Result<c10::Storage> take(StorageHolder& holder);
  void drop(StorageHolder& holder) noexcept;
  // Lets go what was fetched and has not been taken.
  void let_go_prefetched();

  OffloadCounts counts() const;
  void reset_counts();
  // The first error of the tier that has not been asked for yet, else ok.
  Status new_failure();
  // Why nothing is sent to the tier any more, else ok.
  Status tier_failure() const;

 private:
  using Key = std::tuple<const c10::StorageImpl*, std::uint32_t, std::size_t>;
  using Garbage = std::vector<c10::Storage>;  // freed after the lock

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
  Status broken_;  // a write failed: nothing more is sent there
  bool full_told_ = false;
  Status failure_;
  OffloadCounts counts_;
};

}  // namespace cox::detail
