// BlockState is what Coxswain knows about one block of one model: who is told about its calls, and
// the memory action (BlockMemory) and number format (BlockPrecision) that the plan has for it. The
// model's marker, every cox::Block of that module, the registry and calls whose backward pass is
// still to come own it together. The thread that trains writes it between steps; the parts that
// backward touches are behind a mutex.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/job.h"
#include "coordinator/core/precision_format.h"
#include "coxswain/block.h"
#include "sdk/src/blocks/measurement.h"
#include "sdk/src/stream/saved_tensors.h"

namespace cox::detail {

class BlockCall;
class BlockState;
class Fp8Block;
class HealthLedger;

using BlockClock = Nanoseconds (*)();  // monotonic

// Returns a key of the modules that are in training, because these decide what a block computes.
std::uint64_t training_key(const torch::nn::Module& module);

// Makes the frame that one call of a block is offloaded with; null keeps that call in memory.
using OffloadFrames = std::function<std::shared_ptr<SavedTensorFrame>(const BlockState&)>;

// BlockMemory is what is known and decided about the memory of one block: its action, whether a
// second run was seen to give the same bits, and why the block is pinned. A pinned block keeps its
// tensors when recompute or tile is asked for. The thread that trains sets actions between steps; a
// pin may come from an engine's thread.
class BlockMemory {
 public:
  // Applies to all later calls; tensors that are saved already stay under the action that they were
  // saved under.
  void set_action(MemoryAction action);
  MemoryAction action() const { return action_; }
  // Returns the action that is carried out, which is keep for a pinned block that would run again.
  MemoryAction effective_action() const;
  bool is_steered() const { return is_steered_; }  // whether an action was ever set
  void set_offload(OffloadFrames frames) { offload_ = std::move(frames); }
  std::shared_ptr<SavedTensorFrame> offload_frame(const BlockState& state) const;

  // A call is checked when a check was requested, or when the call is about to be recomputed and no
  // call with this training_key() has been checked.
  bool needs_check(std::uint64_t key) const;
  void request_check() { is_check_requested_ = true; }
  bool wants_check() const { return is_check_requested_; }
  // Notes that a second run gave the same bits and edited these buffers.
  void passed(std::uint64_t key, std::vector<at::Tensor> edited_buffers);
  // Returns nothing for a key that was not checked.
  std::vector<at::Tensor> edited_buffers(std::uint64_t key) const;
  std::vector<at::Tensor> edited_buffers(const torch::nn::Module& module) const {
    return edited_buffers(training_key(module));
  }

  void pin(std::string reason);  // also ends a requested check
  void unpin();                  // the next call to be recomputed is checked anew
  std::optional<std::string> pinned() const;

  void reset();  // to the state after construction

 private:
  MemoryAction action_ = MemoryAction::keep;
  bool is_steered_ = false;
  bool is_check_requested_ = false;
  OffloadFrames offload_;
  std::map<std::uint64_t, std::vector<at::Tensor>> edited_;  // by training_key()

  mutable std::mutex mutex_;  // guards pinned_
  std::optional<std::string> pinned_;
};

// BlockPrecision is the number format that the plan has for one block, and the FP8 state of its
// operands. The thread that trains sets it between steps; every call of the block reads it.
class BlockPrecision {
 public:
  // Applies to all later calls.
  void steer(Precision format) { format_ = format; }
  // Lets the block compute in whatever is in force where it is called.
  void release() {
    format_.reset();
    fp8_.reset();
  }
  bool is_steered() const { return format_.has_value(); }
  std::optional<Precision> format() const { return format_; }

  void set_fp8(std::shared_ptr<Fp8Block> fp8) { fp8_ = std::move(fp8); }
  const std::shared_ptr<Fp8Block>& fp8() const { return fp8_; }

 private:
  std::optional<Precision> format_;
  std::shared_ptr<Fp8Block> fp8_;
};

class BlockState final : public BlockGate, public std::enable_shared_from_this<BlockState> {
 public:
  explicit BlockState(std::weak_ptr<torch::nn::Module> owner) : module(std::move(owner)) {}

  // Tells `sink` about the block from now on; null stops that. REQUIRES for a sink: id and name are
  // set.
  void observe(BlockSink* sink, BlockClock clock);
  BlockSink* sink();
  // The setters take effect with the next call. REQUIRES for a mode other than off: a sink.
  void set_mode(MeasureMode mode);
  void set_action(MemoryAction action);
  // Without a format, calls compute in whatever is in force where they are made.
  void set_precision(std::optional<Precision> format);
  // Calls report their tensors to `ledger`; null stops that.
  void set_health(std::shared_ptr<HealthLedger> ledger);
  // Runs the next call that can be differentiated again at once and compares the two bit for bit. A
  // block that differs is pinned to keep.
  void request_check();
  // Undoes observing, steering and checks: calls are as they were before the block was attached.
  void release();

  void report(const BlockMeasurement& measurement) noexcept;
  void edge(BlockEdge edge) noexcept;

  // A call without a differentiable input ends when its parameters have their gradients.
  void add_waiting(BlockCall* call);
  void remove_waiting(BlockCall* call) noexcept;

  const std::weak_ptr<torch::nn::Module> module;
  BlockId id{};
  std::string name;
  std::uint64_t parameters = 0;  // elements
  MeasureMode mode = MeasureMode::off;
  BlockClock now = nullptr;
  BlockMemory memory;        // set_action() and request_check() change it
  BlockPrecision precision;  // set_precision() changes it
  std::shared_ptr<HealthLedger> health;

 private:
  struct ParameterHook {
    at::Tensor parameter;
    unsigned position;
  };
  void update_gate();
  void hook_parameters();
  void unhook_parameters();
  void on_parameter_gradient() noexcept;

  std::mutex mutex_;
  BlockSink* sink_ = nullptr;
  std::vector<BlockCall*> waiting_;
  std::vector<ParameterHook> hooks_;
};

}  // namespace cox::detail
