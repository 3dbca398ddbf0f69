// Offloading: tensors that autograd saves in a block's call leave memory for a file in a folder of
// the user's and come back for the backward pass. No bit of a gradient changes.
//
//   Offloader offloader({.folder = "/scratch", .tier_bytes = 8 << 30, .report = say});
//   offloader.begin_step();
//   auto frame = offloader.open_frame("h.0", module);                // one per call
//   { SavedTensorScope saving(*frame); y = block(x); }
//   frame->close();
//
// Some tensors stay, because moving them would free nothing or cost more than it gives: leaves that
// require grad, the storages of the block's parameters and buffers, views of any of these, storages
// below `smallest_bytes`, those named to leave_alone(), and everything that is not a plain strided
// CPU tensor (so CUDA tensors too). A storage that somebody else keeps, such as the block's input
// or output, is written as well, since its last user usually releases it before backward; if it is
// still alive then, it is used as it is and nothing is read, so it never exists twice.
//
// Memory is deterministic: at most `in_flight_bytes` are leaving inside a call and at most
// `carried_bytes` after its close(), however fast or slow the tier is; saving and close() wait when
// there are more. With carried_bytes = 0 nothing that the call moved is in memory after close().
// When backward asks for the first storage of a frame, all storages of that frame are allocated and
// their reads begin in the order of need, together with those of the `prefetch_frames` offloaded
// calls before it. With 0 a call's memory depends on no other call's action, so mixed plans can be
// predicted; more hides a slow tier behind the backward pass of later calls.
//
// Errors never stop a forward pass: tensors that cannot leave stay, and `report` is called once for
// a tier that fails or is missing and once for a full one. After a read that fails, or for a tensor
// that was edited in place, cox::Error with the block's name comes out of backward().
//
// Threads: a session owns one offloader, and the training thread uses it; hooks run on any thread.
// Graphs may outlive the offloader. The tier's own thread only copies.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "coordinator/core/status.h"
#include "sdk/src/blocks/saved_tensors.h"
#include "sdk/src/memory/offload_store.h"

namespace cox::detail {

struct OffloadOptions {
  std::filesystem::path folder;
  std::int64_t tier_bytes = 0;  // cap on this rank's bytes in the folder, 0 = none; ranks add up
  std::int64_t in_flight_bytes = std::int64_t{64} << 20;
  std::int64_t carried_bytes = 0;
  std::int64_t smallest_bytes = std::int64_t{64} << 10;
  int prefetch_frames = 0;
  std::function<void(const Status&)> report;  // called on the training thread; may be empty
};

// OffloadFrame decides about the saved tensors of one call of a block. The hooks own it until
// backward is over; it holds no tensor.
class OffloadFrame final : public SavedTensorFrame,
                           public std::enable_shared_from_this<OffloadFrame> {
 public:
  ~OffloadFrame() override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;

  // Keeps the tensor's storage in memory, for an input that the caller keeps until backward anyway.
  void leave_alone(const at::Tensor& tensor);
  // Ends the call, also one whose function threw, on the thread that ran it. Blocks for writes
  // until at most `carried_bytes` are leaving. Returns the bytes of storages that this call sent
  // away; views and other calls' saves of the same storage count once.
  std::int64_t close();

  void leave() noexcept override;  // close()

  const std::string& block() const { return block_; }

 private:
  friend class Offloader;
  friend class OffloadHooks;

  OffloadFrame(std::string block, const torch::nn::Module& module,
               std::shared_ptr<OffloadStore> store, const OffloadOptions& options);
  bool stays(const at::Tensor& tensor) const;
  std::optional<StorageHolder> save(const at::Tensor& tensor);

  const std::string block_;
  const std::shared_ptr<OffloadStore> store_;
  const FrameNumber number_;
  const std::int64_t in_flight_bytes_;
  const std::int64_t carried_bytes_;
  const std::int64_t smallest_bytes_;
  const std::function<void(const Status&)> report_;
  std::int64_t moved_bytes_ = 0;
  std::unordered_set<const void*> left_alone_;  // storages
};

class Offloader {
 public:
  // Without a usable folder, frames keep everything in memory, and `report` is called here; the
  // constructor does not throw for that. REQUIRES: install_saved_tensor_engine() returned ok.
  explicit Offloader(OffloadOptions options);

  // Returns ok while tensors can leave memory, else the reason: the folder takes no file, or a
  // write failed. Reaching the cap is no such error. Any thread may call it.
  Status tier_status() const;

  // Opens the frame of one call of `block`; the caller closes it.
  std::shared_ptr<OffloadFrame> open_frame(std::string block, const torch::nn::Module& module);

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
