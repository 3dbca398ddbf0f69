// Offloading moves tensors saved by autograd in a block's call out of memory, and back for the
// backward pass. The tier is a file in a user's folder, or pinned memory for tensors of a device.
// No bit of a gradient changes.
//
//   Offloader offloader({.folder = "/scratch", .tier_bytes = 8 << 30, .report = say});
//   offloader.begin_step();
//   auto frame = offloader.open_frame("h.0");                        // one per visit
//   { SavedTensorScope saving(*frame); y = block(x); }
//   frame->leave();
//
// Threads: a session owns one offloader, and the training thread uses it; hooks run on any thread.
// Graphs may outlive the offloader. The tier's own thread only copies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_set>
#include <vector>

#include "coordinator/core/status.h"
#include "sdk/src/memory/tier.h"
#include "sdk/src/stream/saved_tensors.h"

namespace cox::detail {

// OffloadCounts sums the work of offloading since the last reset.
struct OffloadCounts {
  std::int64_t written_bytes = 0;  // sent to the tier
  std::int64_t read_bytes = 0;     // fetched from the tier
  std::int64_t stayed_bytes = 0;   // could not leave: the tier was full or broken
  std::int64_t tier_bytes = 0;     // in use on the tier now, in whole pages
  std::int64_t tier_peak_bytes = 0;
  std::int64_t waited_ns = 0;   // for reads requested by backward
  std::int64_t lost_reads = 0;  // reads that failed, or returned other bytes
};

using FrameNumber = std::int64_t;

struct StoredStorage;  // one storage in one version

// StorageHolder is a saved tensor's reference to its storage. save() makes it, and the owner
// returns it to drop().
struct StorageHolder {
  StoredStorage* stored = nullptr;
  FrameNumber frame = 0;
  std::int64_t round_taken = 0;
};

// OffloadStore owns the storages saved by autograd in offloaded calls, each once, and tracks
// whether each is in memory, leaving, or away on the tier. The moments of freeing and allocating
// memory depend only on the order of calls and on byte counts, never on the tier's speed. So a
// written storage is not freed early, and a fetched one is allocated at once.
//
//   saved -> leaving: the storage is being written. The oldest one is freed when more than a given
//            number of bytes are leaving; the store waits for its write if necessary.
//   away  -> back: the storage is allocated and read when the backward pass of its frame begins.
//            The storage is freed when every holder has used it once or is gone.
//
// A holder is one saved tensor, so several views of one storage are several holders. Any thread may
// call any function: one lock guards the store, and the tier's thread copies outside of the lock.
// The hooks of every graph share ownership, so the store outlives them.
class OffloadStore {
 public:
  // A null `tier` keeps everything in memory. `tier_bytes` caps the bytes on the tier at once.
  OffloadStore(std::unique_ptr<Tier> tier, std::int64_t tier_bytes);
  ~OffloadStore();

  // Returns a number for one more call, larger than all before.
  FrameNumber open_frame();
  // Begins to move the tensor's storage, unless a frame has begun to already. An unseen part is a
  // piece of a storage whose other pieces can change without a change of version; an earlier move
  // of such a part serves only the same frame. Returns nothing if the storage must stay in memory:
  // without a tier, without room on the tier, or after a failure of the tier.
  enum class Part : bool { seen, unseen };
  std::optional<StorageHolder> save(const at::Tensor& tensor, FrameNumber frame, Part part);
  // Frees the oldest leaving storages until at most `bytes` are leaving. Blocks for their writes.
  void let_go_down_to(std::int64_t bytes);
  // Returns the storage, after reading it again if necessary, or the status of a failed read.
  // Blocks for the read.
  Result<c10::Storage> take(StorageHolder& holder);
  void drop(StorageHolder& holder) noexcept;
  // Frees storages that were fetched and never taken.
  void let_go_prefetched();

  OffloadCounts counts() const;
  void reset_counts();
  // Returns the tier's first error not yet returned, else ok.
  Status new_failure();
  // Returns the reason for sending nothing more to the tier, else ok.
  Status tier_failure() const;

  // Storage, version, bytes, and the frame of unseen parts, otherwise 0.
  using Key = std::tuple<const c10::StorageImpl*, std::uint32_t, std::size_t, FrameNumber>;

 private:
  using Garbage = std::vector<c10::Storage>;  // freed after the lock is released

  struct Frame {
    std::vector<StoredStorage*> stored;  // in the order of saving
    bool backward_began = false;
  };

  StoredStorage* move_out(const c10::Storage& storage, const Key& key);
  void let_go_oldest(Garbage& garbage);
  void begin_backward(FrameNumber number);
  void fetch(StoredStorage& stored);
  Status wait_for_read(StoredStorage& stored);
  void end_round(StoredStorage& stored, Garbage& garbage);
  void forget(StoredStorage& stored, Garbage& garbage);
  void fail(Status status);

  mutable std::mutex mutex_;
  const std::unique_ptr<Tier> tier_;
  TierSpace space_;
  FrameNumber next_frame_ = 1;
  std::map<Key, std::unique_ptr<StoredStorage>> stored_;
  std::map<FrameNumber, Frame> frames_;
  std::deque<StoredStorage*> leaving_;
  std::int64_t leaving_bytes_ = 0;
  Status broken_;  // the failed transfer; nothing more is sent
  bool full_told_ = false;
  Status failure_;
  OffloadCounts counts_;
};

struct OffloadOptions {
  // Device of the tensors that leave. Tensors of a device go to pinned memory, without a folder.
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::filesystem::path folder;
  std::int64_t tier_bytes = 0;  // cap on this rank's bytes in the folder, 0 = none; ranks add up
  std::int64_t in_flight_bytes = std::int64_t{64} << 20;
  std::int64_t smallest_bytes = std::int64_t{64} << 10;
  TierThread::Verify verify = TierThread::Verify::on;  // checks a folder's bytes on return
  std::int64_t copy_bytes_per_ms = 0;                  // the tier's speed each way; 0: not measured
  std::function<void(const Status&)> report;  // called on the training thread; may be empty
};

// OffloadFrame selects the saved tensors of one call of a block that leave. The hooks own the frame
// until backward is over. A frame holds no tensor.
class OffloadHooks;

class OffloadFrame final : public SavedTensorFrame,
                           public std::enable_shared_from_this<OffloadFrame> {
 public:
  ~OffloadFrame() override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;

  void leave_alone(const c10::StorageImpl* storage) noexcept override;
  // Blocks until nothing is leaving.
  void leave() noexcept override;

  const std::string& block() const { return block_; }

 private:
  friend class Offloader;
  friend class OffloadHooks;

  OffloadFrame(std::string block, std::shared_ptr<OffloadStore> store,
               const OffloadOptions& options);
  bool stays(const at::Tensor& tensor) const;
  std::optional<StorageHolder> save(const at::Tensor& tensor, OffloadStore::Part part);
  // Tensors that move after the operator that saved them, and unseen parts.
  struct Waiting {
    OffloadHooks* saved;
    std::uint64_t saver;
    OffloadStore::Part part;
  };
  enum class Moved : bool { those_of_ended_operators, all };
  void wait_to_move(OffloadHooks& saved, OffloadStore::Part part);
  void move(Moved which);
  void forget(const OffloadHooks& saved) noexcept;

  const std::string block_;
  const std::shared_ptr<OffloadStore> store_;
  const FrameNumber number_;
  const std::int64_t in_flight_bytes_;
  const std::int64_t smallest_bytes_;
  const c10::Device device_;
  const std::function<void(const Status&)> report_;
  std::unordered_set<const void*> left_alone_;  // storages
  std::mutex mutex_;                            // guards the following
  std::vector<Waiting> waiting_;
};

// Offloader opens a frame for each offloaded call of a block, under these rules:
//
// - Tensors stay if moving them would free nothing or cost too much: leaves that require grad and
//   their views, storages below `smallest_bytes`, storages passed to leave_alone(), and all but
//   plain strided tensors on OffloadOptions::device.
// - A storage kept elsewhere too, such as the block's input or output, is written as well, because
//   its last user usually releases it before backward. If it is still alive then, backward uses it
//   without a read, so it never exists twice.
// - Nothing moves while the operator that saved it runs, because some operators write to a tensor
//   after saving it (the noise of rrelu). The move begins when the next operator saves, or at
//   leave(). A part of a storage that is no view moves at leave(), because writes to the other
//   parts change no version. An LSTM cuts its gates into such parts (unsafe_chunk).
// - Memory is deterministic. At most `in_flight_bytes` are leaving inside a call, whatever the
//   tier's speed; saving waits if there are more. leave() frees all that the call moved. The first
//   request of backward allocates all storages of the frame and starts their reads in order of
//   need. So a call's memory does not depend on other calls' actions, and mixed plans can be
//   predicted.
// - Errors never stop a forward pass: tensors that cannot leave stay. `report` is called once for a
//   failed or missing tier, and once for a full one. backward() throws cox::Error with the block's
//   name after a failed read, after a read of other bytes, or for a tensor edited in place. A
//   failed tier is not written to again.
class Offloader {
 public:
  // Without a usable folder, frames keep everything in memory, and the constructor calls `report`
  // instead of throwing. REQUIRES: install_saved_tensor_engine() returned ok.
  explicit Offloader(OffloadOptions options);

  // Returns ok while tensors can leave memory, else the reason: the folder accepts no file, or a
  // transfer failed. Reaching the cap is no error. Any thread may call it.
  Status tier_status() const;
  std::int64_t copy_bytes_per_ms() const { return options_.copy_bytes_per_ms; }

  // Opens the frame of one visit of `block`; the caller closes it.
  std::shared_ptr<OffloadFrame> open_frame(std::string block);

  // Begins a step: resets the counts, and frees storages that an unfinished backward pass left
  // fetched. REQUIRES: called before the first forward of the step.
  void begin_step();
  // Returns the counts since begin_step(). Any thread may call it.
  OffloadCounts counts() const { return store_->counts(); }

 private:
  const OffloadOptions options_;
  Status open_status_;
  std::shared_ptr<OffloadStore> store_;
};

}  // namespace cox::detail
