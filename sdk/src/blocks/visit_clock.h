// VisitClock measures the visits of blocks and the passes through their regions: times, saved bytes
// and a key of the shapes, as sums over a step. A BlockSink gets the edges of regions at once, and
// the sums at the end of the step.
//
// Forward time lasts from the first operator on a parameter of the block to the first one on
// another block's. Backward time goes to the block whose saved tensors autograd requested last, so
// operators that saved nothing count for the block before them in backward. A storage saved by
// several blocks counts for the first.
//
// The training thread calls everything. The hooks on saved tensors share ownership, and observe
// unpacking on the thread that runs backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "coordinator/core/units.h"
#include "sdk/src/blocks/measurement.h"

namespace cox::detail {

class VisitClock {
 public:
  using Now = std::function<Nanoseconds()>;  // monotonic
  // `now` outlives the object.
  VisitClock(BlockSink& sink, const Now& now) : sink_(&sink), now_(now) {}

  // Adds a block with `elements` elements of parameters; blocks are numbered from 0.
  void add_block(std::uint64_t elements);
  // Sets the mode from now on. Called between steps.
  void measure(MeasureMode mode) { mode_ = mode; }
  MeasureMode mode() const { return mode_; }
  // Sets the receiver of reports from now on, null for none, and returns the one before.
  BlockSink* report_to(BlockSink* sink);

  // Record the begin and the end of a visit of the block.
  void visit_begins(BlockId block);
  void visit_ended(BlockId block);
  // Record that the forward pass enters and leaves the region.
  void region_begins(BlockId region);
  void region_ended(BlockId region);
  // Records that an operator of the forward pass reads a tensor that is no parameter. The first
  // operand of a region represents the shapes of all.
  void operand(const at::Tensor& tensor) {
    if (shapeless_) note_shape(tensor);
  }

  struct Place {
    BlockId block;   // measured
    BlockId region;  // steered
  };
  // Makes the hooks of one tensor saved at `place`. The hooks count the tensor and observe its
  // unpacking. The hooks of `deciding` keep, drop or move the tensor; without them the tensor is
  // kept, and a change in place throws cox::Error in backward.
  static std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks(
      std::shared_ptr<VisitClock> clock, Place place,
      std::unique_ptr<torch::autograd::SavedVariableHooks> deciding);

  void backward_begins();
  void backward_ended();
  // Reports every block visited since the last call, and clears the sums.
  void end_step();
  // Clears the sums since end_step(), without a report.
  void forget_step();

 private:
  class Hooks;
  struct Seen {
    bool is_visited = false;
    Nanoseconds forward{};
    Nanoseconds backward{};
    std::uint64_t saved_bytes = 0;
    std::uint64_t shape_key = 0;
  };

  // Place of a backward pass.
  struct Backward {
    std::optional<BlockId> block;
    std::optional<BlockId> region;
    Nanoseconds since{};  // beginning of the block
  };

  void note_shape(const at::Tensor& tensor);
  void tell(BlockId region, BlockEdge edge);
  void count(BlockId block, const at::Tensor& tensor);
  void unpack(Place place) noexcept;
  void book_backward(Nanoseconds now);

  BlockSink* sink_;
  const Now& now_;
  MeasureMode mode_ = MeasureMode::off;
  std::vector<std::uint64_t> elements_;  // parameter elements, by block
  Nanoseconds since_{};                  // the visit's beginning
  std::optional<BlockId> shapeless_;     // the region whose first operand has not been read
  // Storages saved since the last backward pass. A weak reference keeps an address from being
  // reused.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;

  std::mutex mutex_;  // guards the following
  std::vector<Seen> seen_;
  std::optional<Backward> backward_;  // the running pass
};

}  // namespace cox::detail
