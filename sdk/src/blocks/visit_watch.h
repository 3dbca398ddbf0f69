// VisitWatch measures and steers the blocks of an adopted model, where the operator stream tells
// only that the forward pass went over from one block to another: a visit of a block is what lies
// between two of these moments. A block may be visited several times in a step, or not at all; its
// times and bytes are sums over the step.
//
//   stream -> enter(block) -> [VisitWatch: a tape for the region, if its block is to be recomputed]
//   autograd saves -> [VisitWatch: counts] -> kept by autograd, or dropped by the tape
//
// What is steered is a block's region: its first visit in a forward pass, with whatever follows up
// to the first visit of the next block. So a block that comes again (an embedding that is also the
// head) belongs to the region it comes in, and the regions of a pass are a chain.
//
// Forward time is the time between the first operator on a parameter of the block and the first on
// one of another block. Backward time goes to the block whose saved tensors autograd asked for
// last, so that operators which saved nothing count for the block that came before them in the
// backward pass. A storage that several blocks save counts for the first.
//
// A program may open a block by its name, too (coxswain/block.h): then what it computes is a visit
// of that block, whichever parameters are read.
//
// A block's format is that of its products, from its visit's first operator to the next visit's.
//
// The training thread calls everything but unpack(), which comes from whatever thread runs
// backward. Hooks on saved tensors share it.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "coordinator/core/memory_front.h"
#include "coordinator/core/precision_format.h"
#include "sdk/src/blocks/measurement.h"
#include "sdk/src/stream/block_map.h"
#include "sdk/src/stream/operator_meter.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/operator_times.h"
#include "sdk/src/stream/region_meter.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/tape.h"

namespace cox::detail {

// Sees what the operators of visits read.
class VisitObserver {
 public:
  virtual ~VisitObserver() = default;
  // The operator that runs reads a parameter, in a visit of `block` that may begin with it.
  virtual void parameter(BlockId block, std::optional<ProductFormat> format) noexcept = 0;
  // It reads a tensor that is none.
  virtual void operand(const at::Tensor& tensor) noexcept = 0;
  // The forward pass is over.
  virtual void leave() noexcept = 0;
};

struct PinnedBlock {
  BlockId block;
  std::string reason;
};

class VisitWatch final : public SavedTensorFrame,
                         public OperatorListener,
                         public std::enable_shared_from_this<VisitWatch> {
 public:
  using Clock = std::function<Nanoseconds()>;  // monotonic
  VisitWatch(BlockSink& sink, Clock clock) : sink_(&sink), now_(std::move(clock)) {}

  // Adds a block with that many elements of parameters; blocks are numbered from 0.
  void add_block(std::string name, std::uint64_t elements);
  // What is measured from here on. Called between steps.
  void measure(MeasureMode mode) { mode_ = mode; }
  // Whether what backward gets for tensors that were dropped or moved is compared with them, bit
  // for bit. A block where it differs is pinned when the step ends or is forgotten. Costs two
  // hashes of what is dropped, and on a device one wait at the end of the step; sees dense tensors.
  // Called between steps.
  enum class Comparing : bool { off, on };
  void compare(Comparing comparing) { compares_ = comparing == Comparing::on; }
  MeasureMode mode() const { return mode_; }
  // Nothing is reported or dropped any more.
  void release();

  // Sets the memory action of the block's later visits: keep, offload, tile, or recompute in full
  // or at a level that the block has. A pinned block is kept.
  void set_action(BlockId block, MemoryAction action);
  // Sets the format that products of the block's later visits run in; fp32 is what the program
  // wrote. Unlike the memory action it holds for every visit, not for regions.
  void set_format(BlockId block, Precision format);
  // Sets who runs the block's products in fp8; what he declines, and all without him, is bf16.
  void set_fp8(BlockId block, std::shared_ptr<ProductCaller> caller);
  // Sets who opens a frame for what a block saves, named by the block, where it is to be offloaded.
  // Without one it is kept.
  using OpenFrame = std::function<std::shared_ptr<SavedTensorFrame>(const std::string& block)>;
  void set_offload(OpenFrame open) { open_offload_ = std::move(open); }
  // Sets what is kept at each level of recompute, from level 1 on. In another format than now the
  // block has other operators: a level is then recompute in full.
  void set_levels(BlockId block, std::vector<HoldChoice> levels);
  // Regions that are recomputed are measured from here on, and until the other call, which returns
  // one of each block, with the least time that each of its operators took, and what its newest
  // backward pass took. Without `memory`, which any thread may call, bytes are not.
  void begin_regions(RegionMeter::ReadMemory memory = {});
  std::vector<std::optional<MeasuredRegion>> end_regions();
  void pin(BlockId block, std::string reason);
  std::vector<PinnedBlock> pinned() const;
  // Returns the time spent so far on making dropped tensors again.
  Nanoseconds replayed() const { return Nanoseconds(replay_ns_->load(std::memory_order_relaxed)); }
  // Whether a tile of tile() was computed in a visit so far, so that there is something to drop.
  bool has_tiles() const { return has_tiles_; }

  // Whether the operators of visits are counted one by one from here on. Called between steps.
  enum class Metering : bool { off, on };
  void meter(Metering metering) { meters_ = metering == Metering::on; }
  OperatorMeter& operators() { return meter_; }

  // Tells `observer` what is read from here on; null ends that. It outlives this or ends it.
  void observe(VisitObserver* observer) { observer_ = observer; }
  // An operator of the forward pass reads this storage. Enters the block of `map` that it belongs
  // to, numbered from `first` on; a parameter that several blocks use enters none.
  // REQUIRES: map.owner(storage).
  enum class Told : bool { no, yes };
  void read_parameter(const BlockMap& map, BlockId::rep first, const c10::StorageImpl* storage,
                      Told observer = Told::yes);
  // It reads a tensor that is no parameter.
  void read_other(const at::Tensor& tensor) {
    if (awaits_shape_) note_shape(tensor);
    if (observer_ != nullptr) observer_->operand(tensor);
  }
  // The forward pass is over; a backward pass that adds to gradients begins.
  void forward_ended() {
    if (observer_ != nullptr) observer_->leave();
  }

  // The forward pass is in `block` from here on, or, after leave_block(), in none.
  void enter(BlockId block);
  void leave_block();
  std::optional<BlockId> current() const { return current_; }
  // From here on the visit is steered by the block's action as it is now. Parameters that its next
  // operator reads are to be told again.
  void steer_anew();

  using OperatorListener::backward_begins;
  void backward_begins();
  using OperatorListener::backward_ended;
  void backward_ended();
  // Reports every block that was visited since the last call, and forgets it.
  void end_step();
  // Forgets what was measured since end_step(), without a report.
  void forget_step();

  bool has_formats() const override { return has_narrow_; }
  std::optional<ProductFormat> product_format() const override;
  // The operators of a visit, or of a tile, that is recorded, or whose operators are counted.
  bool wants_calls() const override { return recording() != nullptr || (meters_ && current_); }
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  bool begin_tile(std::string_view name, TileDrop drop) override;
  void end_tile() noexcept override;
  bool begin_block(std::string_view name) override;
  void end_block() noexcept override;

 private:
  class Hooks;
  class Compared;
  // A tensor that is not kept: its hash, once the operator that saves it has ended; of one on a
  // device, where the hash is.
  struct Bits {
    at::Tensor tensor;
    std::optional<std::uint64_t> hash;
    at::Tensor hash_on_device;
  };
  struct DeviceComparison {
    BlockId region;
    at::Tensor differs;  // a bool on the device
  };
  struct Seen {
    bool is_visited = false;
    Nanoseconds forward{};
    Nanoseconds backward{};
    std::uint64_t saved_bytes = 0;
    std::uint64_t shape_key = 0;
  };
  struct Block {
    std::string name;
    std::uint64_t elements = 0;
    MemoryAction action = MemoryAction::keep;
    std::vector<HoldChoice> levels{};
    Precision format = Precision::fp32;
    Precision levels_format = Precision::fp32;  // in which the levels were chosen
    std::shared_ptr<ProductCaller> fp8{};
    std::optional<std::string> pinned{};
    bool is_entered = false;  // since backward began last
  };
  struct Place {
    BlockId block;   // that is measured
    BlockId region;  // that is steered
  };
  // A block that the program opened by its name.
  struct Scope {
    BlockId block;
    std::optional<BlockId> around;
  };

  std::optional<ProductFormat> narrow_format() const;
  Tape* recording() const { return tile_ != nullptr ? tile_.get() : tape_.get(); }
  Status no_such_block(std::string_view name) const;
  void note_shape(const at::Tensor& tensor);
  void book_forward();
  void open_region(BlockId block);
  void close_region();
  HoldChoice choice_of_action(const Block& block) const;
  void note_region(BlockId block);
  void tell(BlockId block, BlockEdge edge);
  void count(BlockId block, const at::Tensor& tensor);
  void hash_dropped();
  void compare_bits(BlockId region, const Bits& bits, const at::Tensor& found);
  void read_comparisons();
  void pin_unequal();
  void unpack(Place place) noexcept;
  void book_backward(Nanoseconds now);

  BlockSink* sink_;
  VisitObserver* observer_ = nullptr;
  const Clock now_;
  MeasureMode mode_ = MeasureMode::off;
  std::vector<Block> blocks_;
  bool has_narrow_ = false;    // one of them computes in a narrow format
  std::vector<Scope> scopes_;  // the innermost last; no parameter enters another block in one
  std::optional<BlockId> current_;
  std::optional<BlockId> region_;              // that the pass is in
  std::shared_ptr<Tape> tape_;                 // of the region; null unless its block is recomputed
  std::shared_ptr<Tape> tile_;                 // of the tile that is computed; null unless dropped
  std::shared_ptr<SavedTensorFrame> offload_;  // of the region; null unless it is offloaded
  OpenFrame open_offload_;
  // Tapes add to it, and may outlive this.
  const std::shared_ptr<std::atomic<std::int64_t>> replay_ns_ =
      std::make_shared<std::atomic<std::int64_t>>(0);
  bool meters_ = false;
  OperatorMeter meter_{&steady_ns};
  Nanoseconds since_{};
  bool awaits_shape_ = false;  // the region's first operand has not been read
  bool has_tiles_ = false;
  bool measures_regions_ = false;
  RegionMeter::ReadMemory read_memory_;                 // of regions that are measured
  std::vector<std::optional<MeasuredRegion>> regions_;  // by block
  // Storages saved since backward ran last; a weak reference keeps an address from being used
  // again.
  std::unordered_map<const void*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages_;

  bool compares_ = false;
  std::vector<std::shared_ptr<Bits>> dropped_;  // by the operator that runs, while comparing

  std::mutex mutex_;              // guards the following
  std::vector<BlockId> unequal_;  // regions where backward got other bits, in this step
  std::vector<DeviceComparison> comparisons_;  // of this step, that nobody has read yet
  std::vector<Seen> seen_;
  bool is_backward_ = false;
  std::optional<BlockId> backward_in_;
  std::optional<BlockId> backward_region_;
  Nanoseconds backward_since_{};
};

}  // namespace cox::detail
