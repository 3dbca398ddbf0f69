// Tape records the operators of one region of a forward pass, such as the visit of a block. Saved
// tensors of the region need not be kept: a request of backward replays only the operators that the
// requested tensor depends on.
//
//   operator stream -> [Tape: records] -> autograd saves -> [Tape: keeps or drops, by a choice]
//   backward asks   -> [Tape: replays a slice from what is kept] -> saved tensor, bit for bit
//
// Thread rule: one thread records; requests come on the threads that run backward. The saved
// tensors of the region own the tape.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "sdk/src/stream/foreign_copies.h"
#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/region_meter.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/tape_records.h"

namespace cox::detail {

// BlockArena allocates memory for small objects that all end before clear(). Clearing keeps the
// memory for reuse. A plain value; one thread at a time.
class BlockArena {
 public:
  // Returns memory aligned for any object. REQUIRES: 0 < bytes <= kChunkBytes.
  void* take(std::size_t bytes) {
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (chunk_ == chunks_.size() || used_ + rounded > kChunkBytes) next_chunk();
    void* const taken = chunks_[chunk_].get() + used_;
    used_ += rounded;
    return taken;
  }
  void clear() {
    chunk_ = 0;
    used_ = 0;
  }

  static constexpr std::size_t kChunkBytes = 4096;

 private:
  static constexpr std::size_t kAlignment = alignof(std::max_align_t);

  void next_chunk() {
    if (chunk_ < chunks_.size()) ++chunk_;
    if (chunk_ == chunks_.size()) chunks_.push_back(std::make_unique<std::byte[]>(kChunkBytes));
    used_ = 0;
  }

  std::vector<std::unique_ptr<std::byte[]>> chunks_;
  std::size_t chunk_ = 0;  // the chunk in use
  std::size_t used_ = 0;   // bytes used of the chunk
};

// SavedValue describes a tensor when autograd saves it. Valid during the call.
struct SavedValue {
  const c10::OperatorHandle& saver;  // the operator that saves it
  // The maker of its storage; null while the saver itself makes the storage.
  const c10::OperatorHandle* maker = nullptr;
  const at::Tensor& tensor;
  TapeRecords::SavedKey key = {};
};
enum class Hold : std::uint8_t { keep, drop };
// Called once for each tensor that may be dropped. Must not call operators.
using HoldChoice = std::function<Hold(const SavedValue&)>;

// Tape identifies a value by its storage and the number of writes to the storage so far, so views
// and in-place operators cost nothing extra. A tape always keeps:
// - parameters, and tensors from outside of the region;
// - results of operators without tensor arguments, of operators registered by the program, and of
//   operators that read memory not allocated by LibTorch;
// - tensors saved outside of any operator (by a custom Function);
// - tensors saved by an operator that writes to a tensor from outside. Before such a write, each of
//   the thread's tapes that holds the tensor takes a copy.
//
// A replay changes only memory. Random generators, gradient mode, autocast and running statistics
// are restored, and the stream does not show a replay.
//
// Limits: the stream sees no writes without an operator (through a raw pointer into a result,
// through .data()). A replay fails for code whose second run saves other tensors (TorchScript with
// its optimiser on). So users of a tape compare bits first (docs/operator-stream.md).
class Tape final : public SavedTensorFrame,
                   public OperatorListener,
                   public std::enable_shared_from_this<Tape> {
 public:
  // `name` is for messages: "block transformer.h.0". Without a choice the tape drops all it may.
  static std::shared_ptr<Tape> make(std::string name, HoldChoice choice = {}, TapeRules rules = {});
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;
  ~Tape() override;

  // Measures from now on each operator's cost and its saved tensors (operator_times.h). REQUIRES:
  // the tape has recorded nothing yet; `meter` is not null.
  void measure(std::shared_ptr<RegionMeter> meter);

  // Adds the nanoseconds of every later replay to `spent_ns`. Costs two clock readings a replay.
  // REQUIRES: no thread requests a dropped tensor meanwhile.
  void time_replays(std::shared_ptr<std::atomic<std::int64_t>> spent_ns) {
    replay_ns_ = std::move(spent_ns);
  }

  // Ends the recording and frees the memory for recording. Tensors saved later are kept.
  void close();
  // Stops copying tensors from outside. REQUIRES: no saved tensor is dropped.
  void stop_copying();
  // REQUIRES: no thread requests a dropped tensor meanwhile.
  TapeRecords& records() { return records_; }
  const std::shared_ptr<RegionMeter>& meter() const { return meter_; }  // null: not measuring
  const TapeRecords& records() const { return records_; }
  TapeCounts counts() const;
  std::size_t bytes() const;  // the records alone, without tensors

  // ---- For the stream and for autograd.
  bool wants_calls() const override { return is_open_; }
  void begin(const OperatorCall& call) override;
  void end(std::span<const c10::IValue> results) override;
  void failed() noexcept override;
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;

 private:
  class Hooks;

  using OperatorIndex = TapeRecords::OperatorIndex;
  using StorageIndex = TapeRecords::StorageIndex;
  using SavedKey = TapeRecords::SavedKey;
  using Argument = TapeRecords::Argument;
  using Operator = TapeRecords::Operator;
  using Kept = TapeRecords::Kept;
  using Saved = TapeRecords::Saved;
  using Storage = TapeRecords::Storage;
  static constexpr std::int32_t kNone = TapeRecords::kNone;

  using Place = TapeValues::Place;
  struct Pending {  // saved by the operator that runs
    std::int32_t saved = kNone;
    Kept* kept = nullptr;  // null: dropped
    const c10::StorageImpl* storage = nullptr;
  };
  // MaskNote is a possible mask, saved while the tape measures.
  struct MaskNote {
    std::size_t note = 0;
    at::Tensor tensor;
  };

  // Recording is the state needed only while the tape records.
  struct Recording {
    TapeValues values;
    std::vector<at::Tensor> current_tensors;  // arguments of the running operator
    std::vector<Pending> pending;
    std::vector<MaskNote> mask_notes;
    ForeignCopies foreign;
    void clear();
  };
  // Memory of ended tapes, reused by the thread's next tapes.
  class Spares;

  Tape(std::string name, HoldChoice choice, TapeRules rules);

  Operator& at_operator(OperatorIndex index) { return records_.operators[at(index)]; }
  const Operator& at_operator(OperatorIndex index) const { return records_.operators[at(index)]; }
  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

  void record_writes(const OperatorCall& call, Operator& recorded);
  void before_write(const at::Tensor& tensor);
  bool holds_outside(const c10::StorageImpl* storage);
  void copy_outside(const c10::StorageImpl* storage);
  void record_arguments(const OperatorCall& call, Operator& recorded);
  void record_argument(const c10::IValue& value, Argument& made);
  void record_integers(at::IntArrayRef values, Argument& made);
  void record_tensor(const at::Tensor& tensor);
  // The last recorded reference then reads a copy.
  void copy_foreign(const at::Tensor& tensor);
  std::uint32_t current_modes(c10::DispatchKeySet excluded);
  std::int32_t random_state(const OperatorCall& call);
  void note_writes(const Operator& recorded);
  void note_result(const at::Tensor& tensor, std::int16_t output, std::int16_t element);
  void resolve_pending();
  Place place_of(const c10::StorageImpl* storage) const;
  bool is_written_by_current(StorageIndex storage) const;

  // For measuring. Returns the newest operator, which precedes tensors saved by a custom Function;
  // below 0 if there is none.
  OperatorIndex newest_operator() const {
    return static_cast<OperatorIndex>(records_.operators.size()) - 1;
  }
  bool is_measuring() const { return meter_ != nullptr && is_open_; }
  void note_saved(SavedKey key, const at::Tensor& tensor, bool is_forced);
  void resolve_notes();
  void end_measuring();

  // For hooks.
  std::int32_t save(const at::Tensor& tensor, Kept& kept);
  bool must_keep(const at::Tensor& tensor, Place place) const;
  Hold choose(SavedKey key, const at::Tensor& tensor, StorageIndex storage) const;
  void keep(const at::Tensor& tensor, Kept& kept) const;
  void want(const at::Tensor& tensor, Saved& saved);
  void pack(Kept& kept, Saved& saved);
  at::Tensor fetch(std::int32_t saved);
  void forget(std::int32_t saved) noexcept;

  const HoldChoice choice_;
  std::shared_ptr<std::atomic<std::int64_t>> replay_ns_;  // null: not timed
  bool is_open_ = true;
  TapeRecords records_;

  BlockArena hooks_;  // owned by autograd
  const std::shared_ptr<Spares> spares_;
  std::unique_ptr<Recording> recording_;  // null after close()
  OperatorIndex current_ = kNone;         // runs now
  bool current_is_random_ = false;
  std::int32_t saved_ = 0;  // tensors saved by the current operator

  std::shared_ptr<RegionMeter> meter_;  // null: not measuring

  // Guards the records' saved tensors, outsides and counts.
  mutable std::recursive_mutex mutex_;
};

// TapeScope records this thread's operators on `tape` while it exists, and decides which tensors
// autograd saves. `before`: listeners called before the tape.
class TapeScope {
 public:
  explicit TapeScope(Tape& tape, std::vector<OperatorListener*> before = {});

 private:
  SavedTensorScope saving_;
  StreamScope stream_;
};

}  // namespace cox::detail
