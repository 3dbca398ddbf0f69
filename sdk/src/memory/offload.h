// Offloading: tensors that autograd saves in a block's call leave memory for a file in a folder of
// the user's, or leave a device for pinned memory, and come back for the backward pass. No bit of a
// gradient changes.
//
//   Offloader offloader({.folder = "/scratch", .tier_bytes = 8 << 30, .report = say});
//   offloader.begin_step();
//   auto frame = offloader.open_frame("h.0");                        // one per visit
//   { SavedTensorScope saving(*frame); y = block(x); }
//   frame->leave();
//
// Some tensors stay, because moving them would free nothing or cost more than it gives: leaves that
// require grad and their views, storages below `smallest_bytes`, those named to leave_alone(), and
// everything that is not a plain strided tensor on OffloadOptions::device. A storage that somebody
// else keeps, such as the block's input or output, is written as well, since its last user usually
// releases it before backward; if it is still alive then, it is used as it is and nothing is read,
// so it never exists twice.
//
// Nothing moves while the operator that saved it still runs, because some write to a tensor after
// they have saved it (the noise of rrelu). It moves when the next operator begins to save, or at
// leave(). A part of a storage that is no view of a tensor (unsafe_chunk, with which an LSTM cuts
// its gates) moves at leave(), because writes to the other parts change no version.
//
// Memory is deterministic: at most `in_flight_bytes` are leaving inside a call, however fast or
// slow the tier is; saving waits when there are more. Nothing that the call moved is in memory
// after leave(). When backward asks for the first storage of a frame, all storages of that frame
// are allocated and their reads begin in the order of need. So a call's memory depends on no other
// call's action, and mixed plans can be predicted.
//
// Errors never stop a forward pass: tensors that cannot leave stay, and `report` is called once for
// a tier that fails or is missing and once for a full one. After a read that fails or gives other
// bytes, or for a tensor that was edited in place, cox::Error with the block's name comes out of
// backward(). A tier that failed is not written to again.
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

// OffloadCounts is what offloading has done since the counts were last reset.
struct OffloadCounts {
  std::int64_t written_bytes = 0;  // sent to the tier
  std::int64_t read_bytes = 0;     // fetched from the tier
  std::int64_t stayed_bytes = 0;   // could not leave, because the tier was full or broken
  std::int64_t tier_bytes = 0;     // in use on the tier now, in whole pages
  std::int64_t tier_peak_bytes = 0;
  std::int64_t waited_ns = 0;   // for reads that backward asked for
  std::int64_t lost_reads = 0;  // reads that failed, or gave other bytes
};

using FrameNumber = std::int64_t;

struct StoredStorage;  // one storage in one version

// StorageHolder is what a saved tensor remembers of its storage. save() makes it, and the owner
// gives it back to drop().
struct StorageHolder {
  StoredStorage* stored = nullptr;
  FrameNumber frame = 0;
  std::int64_t round_taken = 0;
};

// OffloadStore keeps the storages that autograd has saved in offloaded calls, each once, and knows
// where each is: in memory, leaving, or away on the tier. It decides when memory is given back and
// taken again. Those moments depend only on the order of calls and on byte counts, never on the
// speed of the tier: a storage that has been written is not let go early, and one that is fetched
// is allocated at once.
//
//   saved -> leaving: the storage is being written. The oldest one is let go when more than a given
//            number of bytes are leaving; the store waits for its write if need be.
//   away  -> back: the storage is allocated and read when the backward pass of its frame begins. It
//            is let go when every holder has taken it once or is gone.
//
// A holder is one saved tensor, so several views of one storage are several holders. Any thread may
// call any function: one lock guards the store, and copies run outside of it on the tier's thread.
// The hooks of every graph own the store together, so it outlives them all.
class OffloadStore {
 public:
  // A null `tier` keeps everything in memory. `tier_bytes` caps what is on the tier at once.
  OffloadStore(std::unique_ptr<Tier> tier, std::int64_t tier_bytes);
  ~OffloadStore();

  // Returns a number for one more call, larger than all before.
  FrameNumber open_frame();
  // Begins to move the storage of `tensor` unless that has begun already: in any frame, or for a
  // part whose neighbours are written unseen in this frame. Returns nothing when it has to stay in
  // memory: there is no tier or no room on it, or the tier failed before.
  enum class Part : bool { seen, unseen };
  std::optional<StorageHolder> save(const at::Tensor& tensor, FrameNumber frame, Part part);
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
  Status broken_;  // the transfer that failed; nothing more is sent after it
  bool full_told_ = false;
  Status failure_;
  OffloadCounts counts_;
};

struct OffloadOptions {
  // Of the tensors that leave. Those of a device leave for pinned memory, without a folder.
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  std::filesystem::path folder;
  std::int64_t tier_bytes = 0;  // cap on this rank's bytes in the folder, 0 = none; ranks add up
  std::int64_t in_flight_bytes = std::int64_t{64} << 20;
  std::int64_t smallest_bytes = std::int64_t{64} << 10;
  TierThread::Verify verify = TierThread::Verify::on;  // of a folder's bytes, when they come back
  std::int64_t copy_bytes_per_ms = 0;         // of the tier, each way, where that was measured
  std::function<void(const Status&)> report;  // called on the training thread; may be empty
};

// OffloadFrame decides about the saved tensors of one call of a block. The hooks own it until
// backward is over; it holds no tensor.
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
  // Tensors that move once the operator that saves them has ended, and unseen parts.
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

class Offloader {
 public:
  // Without a usable folder, frames keep everything in memory, and `report` is called here; the
  // constructor does not throw for that. REQUIRES: install_saved_tensor_engine() returned ok.
  explicit Offloader(OffloadOptions options);

  // Returns ok while tensors can leave memory, else the reason: the folder takes no file, or a
  // transfer failed. Reaching the cap is no such error. Any thread may call it.
  Status tier_status() const;
  std::int64_t copy_bytes_per_ms() const { return options_.copy_bytes_per_ms; }

  // Opens the frame of one visit of `block`; the caller closes it.
  std::shared_ptr<OffloadFrame> open_frame(std::string block);

  // Begins a step: counts start again, and storages that an unfinished backward pass left fetched
  // are let go. REQUIRES: it is called before the first forward of the step.
  void begin_step();
  // Returns the counts since begin_step(). Any thread may call it.
  OffloadCounts counts() const { return store_->counts(); }

 private:
  const OffloadOptions options_;
  Status open_status_;
  std::shared_ptr<OffloadStore> store_;
};

}  // namespace cox::detail
