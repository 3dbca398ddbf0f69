// VisitWatch follows the forward passes of a model through its blocks, where the operator stream
// shows only that a pass goes over from one block to another: a visit of a block is what lies
// between two of these moments. A block may be visited several times in a step, or not at all.
//
//   parameters that operators read -> VisitWatch -> VisitClock      (measures)
//                                                -> SteeredRegion   (records, drops, moves)
//                                                -> VisitObserver   (reads what operators read)
//
// A program may open a block by its name, too (coxswain/block.h): then what it computes is a visit
// of that block, whichever parameters are read.
//
// Training thread only. Hooks on saved tensors share the clock and the comparison.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sdk/src/blocks/bits_comparison.h"
#include "sdk/src/blocks/block_steering.h"
#include "sdk/src/blocks/steered_region.h"
#include "sdk/src/blocks/visit_clock.h"
#include "sdk/src/stream/block_map.h"
#include "sdk/src/stream/operator_meter.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/operator_times.h"

namespace cox::detail {

// Sees what the operators of visits read.
class VisitObserver {
 public:
  virtual ~VisitObserver() = default;
  // The operator that runs reads a parameter, in a visit of `block` that may begin with it.
  virtual void parameter(BlockId block, std::optional<ProductFormat> format) noexcept = 0;
  // The operator that runs reads a tensor that is no parameter.
  virtual void operand(const at::Tensor& tensor) noexcept = 0;
  // The forward pass is over.
  virtual void leave() noexcept = 0;
};

// The parts that visits are measured, steered and compared with, each for whoever needs it.
struct VisitParts {
  VisitParts(BlockSink& sink, VisitClock::Now now_in)
      : now(std::move(now_in)), clock(sink, now), region(steering, now) {}

  VisitClock::Now now;                                     // the clock of all parts
  c10::Device device = c10::Device(c10::DeviceType::CPU);  // of the blocks' parameters
  VisitClock clock;
  BlockSteering steering;
  SteeredRegion region;
  BitsComparison comparison;
  OperatorMeter meter{&steady_ns};  // of the operators of visits, while it is switched on
};

class VisitWatch {
 public:
  explicit VisitWatch(BlockSink& sink, VisitClock::Now now = &steady_now)
      : parts_(sink, std::move(now)) {}

  VisitParts& parts() { return parts_; }
  const VisitParts& parts() const { return parts_; }

  // Adds a block with that many elements of parameters; blocks are numbered from 0.
  void add_block(std::string name, std::uint64_t elements);
  // Ends reports, also of graphs from before, and keeps all blocks as the program wrote them.
  void release();

  // Tells `observer` what is read from here on; null ends that. The observer outlives this, or is
  // ended before.
  void observe(VisitObserver* observer) { observer_ = observer; }
  // An operator of the forward pass reads this storage. Enters the block of `map` that it belongs
  // to, numbered from `first` on; a parameter that several blocks use enters none.
  // REQUIRES: map.owner(storage).
  enum class Told : bool { no, yes };
  void read_parameter(const BlockMap& map, BlockId::rep first, const c10::StorageImpl* storage,
                      Told observer = Told::yes);
  // An operator reads a tensor that is no parameter.
  void read_other(const at::Tensor& tensor) {
    parts_.clock.operand(tensor);
    if (observer_ != nullptr) observer_->operand(tensor);
  }
  // The forward pass is over; a backward pass that adds to gradients begins.
  void forward_ended() {
    if (observer_ != nullptr) observer_->leave();
  }

  // Returns the block that the forward pass is in.
  std::optional<BlockId> current() const { return current_; }
  // From here on the visit is steered by the block's action as it is now; or another forward pass
  // begins, because the program has let go of the one before. Parameters that the next operator
  // reads are to be told again.
  enum class Anew { visit, pass };
  void steer_anew(Anew what);
  // Between the two the pass is in the block of that name, whichever parameters are read. Scopes
  // nest. Throws cox::Error for a name that no block has.
  void begin_scope(std::string_view name);
  void end_scope() noexcept;

  // A backward pass begins, so the forward pass is in no block any more.
  void backward_begins();
  // Pins the regions where backward got other bits, and reports every block that was visited since
  // the last call.
  void end_step();
  // Forgets what was measured since end_step(), without a report; pins as end_step() does.
  void forget_step();

 private:
  // A block that the program opened by its name.
  struct Scope {
    BlockId block;
    std::optional<BlockId> around;
  };

  void enter(BlockId block);
  void leave_block();
  void open_region(BlockId block);
  void close_region();
  void pin_unequal();

  VisitParts parts_;
  VisitObserver* observer_ = nullptr;
  std::vector<Scope> scopes_;  // the innermost last; no parameter enters another block in one
  std::optional<BlockId> current_;
  std::vector<bool> is_entered_;  // by block, since backward began last
};

}  // namespace cox::detail
