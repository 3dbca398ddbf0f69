// BlockState: what Coxswain knows about one block of one model. Shared by the model's marker, by
// every cox::Block of that module, by the registry and by calls whose backward pass is still to
// come. Written between steps by the thread that trains; what backward touches is behind a mutex.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "coxswain/block.h"
#include "sdk/src/blocks/block_precision.h"
#include "sdk/src/blocks/measurement.h"
#include "sdk/src/memory/block_memory.h"

namespace cox::detail {

class BlockCall;
class HealthLedger;

using BlockClock = Nanoseconds (*)();  // monotonic

class BlockState final : public BlockGate, public std::enable_shared_from_this<BlockState> {
 public:
  explicit BlockState(std::weak_ptr<torch::nn::Module> owner) : module(std::move(owner)) {}

  // Who is told, from now on; nullptr stops it. Requires for a sink: id and name are set.
  void observe(BlockSink* sink, BlockClock clock);
  BlockSink* sink();
  // Takes effect with the next call. Requires: a sink, unless off.
  void set_mode(MeasureMode mode);
  // What the coming calls do with what they save for backward.
  void set_action(MemoryAction action);
  // What the coming calls compute in; none: whatever is in force where they are made.
  void set_precision(std::optional<Precision> format);
  // Where the coming calls write down what they see of their tensors; nullptr: they do not look.
  void set_health(std::shared_ptr<HealthLedger> ledger);
  // The next call that can be differentiated is run again at once and compared bit for bit; where
  // it differs the block is pinned to keep.
  void request_check();
  // Nobody is told, nothing is steered, no check is known: a call is what it was before the block
  // was attached.
  void release();

  void report(const BlockMeasurement& measurement) noexcept;
  void edge(BlockEdge edge) noexcept;

  // Calls without a differentiable input end when their parameters have their gradients.
  void add_waiting(BlockCall* call);
  void remove_waiting(BlockCall* call) noexcept;

  const std::weak_ptr<torch::nn::Module> module;
  BlockId id{};
  std::string name;
  std::uint64_t parameters = 0;  // elements
  MeasureMode mode = MeasureMode::off;
  BlockClock now = nullptr;
  BlockMemory memory;                    // change action and check through this class
  BlockPrecision precision;              // change it through this class
  std::shared_ptr<HealthLedger> health;  // likewise

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
