// VisitWatch follows a model's forward passes through its blocks. The operator stream shows only
// the moments when a pass enters another block; a visit lies between two such moments. A block may
// be visited several times in a step, or not at all. Training thread only. Hooks on saved tensors
// share the clock and the comparison.
//
//   parameters that operators read -> VisitWatch -> VisitClock      (measures)
//                                                -> SteeredRegion   (records, drops, moves)
//                                                -> VisitObserver   (reads what operators read)
//
// A program may also open a block by name (coxswain/block.h). The program's work is then a visit of
// the block, whatever parameters are read.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <functional>
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

// VisitBegin is an operator that begins a visit of a block, by reading a parameter.
struct VisitBegin {
  BlockId block;
  const c10::StorageImpl* parameter;  // an address, never followed
  c10::OperatorHandle reader;
};

// ForwardPass tells where a forward pass ends because another one begins, with no backward pass
// between the two: two views of a batch, the steps of a recurrent cell, an evaluation with
// gradients on. A pass is over
// - when the operator that began the pass comes again, on the same parameter and from another
//   block; or
// - when another operator visits the pass's first block again, and the program has freed what the
//   pass held. A head that reads the embedding's weights visits that block again, too, but holds
//   the pass's memory, so the pass goes on.
class ForwardPass {
 public:
  // Returns the bytes of all tensors now; 0 if tensors are not counted.
  using LiveBytes = std::function<std::int64_t()>;
  // Without a count only the operators tell passes apart.
  void count_with(LiveBytes live_bytes) { live_bytes_ = std::move(live_bytes); }

  // Returns whether the visit belongs to another pass than the visits before it.
  bool is_over_at(const VisitBegin& visit) const;
  void note(const VisitBegin& visit);
  void end();

 private:
  std::int64_t live_bytes() const { return live_bytes_ ? live_bytes_() : 0; }

  LiveBytes live_bytes_;
  std::optional<VisitBegin> first_;
  bool has_left_ = false;             // the pass visited another block than the first
  std::int64_t bytes_at_first_ = 0;   // at the first visit
  std::int64_t most_held_bytes_ = 0;  // beyond those, at the begin of a later visit
};

// VisitObserver sees the tensors that operators of visits read.
class VisitObserver {
 public:
  virtual ~VisitObserver() = default;
  // Called when the running operator reads a parameter, in a visit of `block` that may begin now.
  virtual void parameter(BlockId block, std::optional<ProductFormat> format) noexcept = 0;
  // Called when the running operator reads a tensor that is no parameter.
  virtual void operand(const at::Tensor& tensor) noexcept = 0;
  // Called when the forward pass is over.
  virtual void leave() noexcept = 0;
};

// VisitParts are the parts that measure, steer and compare visits, each for its own users.
struct VisitParts {
  VisitParts(BlockSink& sink, VisitClock::Now now_in)
      : now(std::move(now_in)), clock(sink, now), region(steering, now) {}

  VisitClock::Now now;                                     // the clock of all parts
  c10::Device device = c10::Device(c10::DeviceType::CPU);  // the device of the blocks' parameters
  VisitClock clock;
  ForwardPass pass;
  BlockSteering steering;
  SteeredRegion region;
  BitsComparison comparison;
  OperatorMeter meter{&steady_ns};  // measures operators of visits while switched on
};

class VisitWatch {
 public:
  explicit VisitWatch(BlockSink& sink, VisitClock::Now now = &steady_now)
      : parts_(sink, std::move(now)) {}

  VisitParts& parts() { return parts_; }
  const VisitParts& parts() const { return parts_; }

  // Adds a block with `elements` elements of parameters; blocks are numbered from 0.
  void add_block(std::string name, std::uint64_t elements);
  // Stops all reports, also of earlier graphs, and keeps all blocks as the program wrote them.
  void release();

  // Calls `observer` for all reads from now on; null stops the calls. The observer outlives the
  // object, or is removed before its end.
  void observe(VisitObserver* observer) { observer_ = observer; }
  // Records that an operator of the forward pass reads a parameter, and enters the parameter's
  // block in `map`, numbered from `first` on. A parameter used by several blocks enters none.
  // Returns whether a visit begins with the operator, and whether it is the first of another pass.
  // REQUIRES: map.owner(read.storage).
  struct Read {
    const c10::OperatorHandle& reader;
    const c10::StorageImpl* storage;
  };
  enum class Told : bool { no, yes };
  enum class Begins { nothing, visit, pass };
  Begins read_parameter(const BlockMap& map, BlockId::rep first, const Read& read,
                        Told observer = Told::yes);
  // Records that an operator reads a tensor that is no parameter.
  void read_other(const at::Tensor& tensor) {
    parts_.clock.operand(tensor);
    if (observer_ != nullptr) observer_->operand(tensor);
  }
  // Ends the forward pass, because a backward pass that adds to gradients begins.
  void forward_ended() {
    if (observer_ != nullptr) observer_->leave();
  }

  // Returns the current block of the forward pass.
  std::optional<BlockId> current() const { return current_; }
  // Applies the block's current action to the rest of the visit, or ends the forward pass, because
  // the program has released it. The follower must report the next operator's parameters again.
  enum class Anew { visit, pass };
  void steer_anew(Anew what);
  // Hold the pass in the block named `name` from begin_scope() to end_scope(), whatever parameters
  // are read. Scopes nest. begin_scope() throws cox::Error for an unknown name.
  void begin_scope(std::string_view name);
  void end_scope() noexcept;

  // Leaves the forward pass's block, because a backward pass begins.
  void backward_begins();
  // Pins the regions in which backward got other bits, and reports every block visited since the
  // last call.
  void end_step();
  // Clears the measurements since end_step(), without a report; pins as end_step() does.
  void forget_step();

 private:
  // A block opened by the program, by name.
  struct Scope {
    BlockId block;
    std::optional<BlockId> around;
  };

  void enter_block_of(const BlockMap& map, BlockId::rep first, const c10::StorageImpl* storage);
  Begins begin_visit(const VisitBegin& visit);
  void enter(BlockId block);
  void leave_block();
  void open_region(BlockId block);
  void close_region();
  void pin_unequal();

  VisitParts parts_;
  VisitObserver* observer_ = nullptr;
  std::vector<Scope> scopes_;  // innermost last; parameters enter no other block in one
  std::optional<BlockId> current_;
  bool is_new_visit_ = false;     // no operator has read a parameter in it
  std::vector<bool> is_entered_;  // by block, in this pass
};

}  // namespace cox::detail
