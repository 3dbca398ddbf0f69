// Tape records the operators of one region of a forward pass (the visit of a block, say), so that
// what autograd saved there need not be kept: whatever backward asks for is made again by replaying
// the operators that it depends on, and no others.
//
//   operator stream -> [Tape: records] -> autograd saves -> [Tape: keeps or drops, by a choice]
//   backward asks   -> [Tape: replays a slice from what is kept] -> saved tensor, bit for bit
//
// A value is a storage of the region and the number of writes to it so far, so views and in-place
// operators cost nothing extra. What is always kept: parameters; tensors from outside of the
// region; results of operators without tensor arguments, of those that the program registered, and
// of those that read memory that LibTorch did not allocate; what is saved outside of any operator
// (by a custom Function); what an operator saves that writes to a tensor from outside. Before an
// operator writes to such a tensor, every tape alive on the thread that holds it takes a copy. A
// replay changes nothing but memory: random generators, gradient mode, autocast and running
// statistics are as before, and no operator of it is shown.
//
// Limits: writes that are no operator (through a raw pointer into a result, through .data()) cannot
// be seen, nor can code whose second run saves other tensors (TorchScript with its optimiser on).
// Whoever uses a tape compares bits first (see docs).
//
// Thread rule: one thread records; saved tensors are asked for on whatever thread runs backward.
// The saved tensors of the region own the tape.
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

// BlockArena gives out memory for small objects that all end before it is cleared. Clearing keeps
// the memory for the next ones. A plain value; one thread at a time uses it.
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
  std::size_t chunk_ = 0;  // that is given out of
  std::size_t used_ = 0;   // of that one
};

// What is known of a tensor when autograd saves it. Valid during the call that gets it.
struct SavedValue {
  const c10::OperatorHandle& saver;  // saves it
  // Made its storage; null while the saver itself makes it.
  const c10::OperatorHandle* maker = nullptr;
  const at::Tensor& tensor;
  TapeRecords::SavedKey key = {};
};
enum class Hold : std::uint8_t { keep, drop };
// Called once for each tensor that need not be kept. Must not call operators.
using HoldChoice = std::function<Hold(const SavedValue&)>;

class Tape final : public SavedTensorFrame,
                   public OperatorListener,
                   public std::enable_shared_from_this<Tape> {
 public:
  // `name` is for messages: "block transformer.h.0". Without a choice everything is dropped.
  static std::shared_ptr<Tape> make(std::string name, HoldChoice choice = {}, TapeRules rules = {});
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;
  ~Tape() override;

  // Notes from now on what each operator takes and what autograd saves of it (operator_times.h).
  // REQUIRES: nothing was recorded yet; not null.
  void measure(std::shared_ptr<RegionMeter> meter);

  // Adds the nanoseconds of every replay to `spent_ns` from now on, for two readings of the clock
  // each. REQUIRES: nobody asks for a dropped tensor meanwhile.
  void time_replays(std::shared_ptr<std::atomic<std::int64_t>> spent_ns) {
    replay_ns_ = std::move(spent_ns);
  }

  // Ends the recording: what was needed for it alone is freed. What is saved later is kept.
  void close();
  // Takes no copies of tensors from outside any more. REQUIRES: nothing that was saved is dropped.
  void stop_copying();
  // REQUIRES: nobody asks for a dropped tensor meanwhile.
  TapeRecords& records() { return records_; }
  const std::shared_ptr<RegionMeter>& meter() const { return meter_; }  // null: it does not measure
  const TapeRecords& records() const { return records_; }
  TapeCounts counts() const;
  std::size_t bytes() const;  // of the records, without tensors

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
  // A tensor that may be a mask, saved while the tape measures.
  struct MaskNote {
    std::size_t note = 0;
    at::Tensor tensor;
  };

  // Used while recording.
  struct Recording {
    TapeValues values;
    std::vector<at::Tensor> current_tensors;  // arguments of the operator that runs
    std::vector<Pending> pending;
    std::vector<MaskNote> mask_notes;
    ForeignCopies foreign;
    void clear();
  };
  // Memory of tapes that are gone, so that the next ones of the thread allocate none.
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
  // The reference that was recorded last reads a copy of it.
  void copy_foreign(const at::Tensor& tensor);
  std::uint32_t current_modes(c10::DispatchKeySet excluded);
  std::int32_t random_state(const OperatorCall& call);
  void note_writes(const Operator& recorded);
  void note_result(const at::Tensor& tensor, std::int16_t output, std::int16_t element);
  void resolve_pending();
  Place place_of(const c10::StorageImpl* storage) const;
  bool is_written_by_current(StorageIndex storage) const;

  // For measuring.
  // What a custom Function saves comes behind its operators. Below 0: there is none.
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
  std::shared_ptr<std::atomic<std::int64_t>> replay_ns_;  // null = nobody asks
  bool is_open_ = true;
  TapeRecords records_;

  BlockArena hooks_;  // that autograd holds
  const std::shared_ptr<Spares> spares_;
  std::unique_ptr<Recording> recording_;  // null when it has ended
  OperatorIndex current_ = kNone;         // runs now
  bool current_is_random_ = false;
  std::int32_t saved_ = 0;  // tensors saved by it

  std::shared_ptr<RegionMeter> meter_;  // null: does not measure

  // Guards what was saved, outsides and counts of the records.
  mutable std::recursive_mutex mutex_;
};

// Records the operators of this thread on `tape` while it exists, and decides what autograd saves.
// `before`: listeners that see each operator before the tape does.
class TapeScope {
 public:
  explicit TapeScope(Tape& tape, std::vector<OperatorListener*> before = {});

 private:
  SavedTensorScope saving_;
  StreamScope stream_;
};

}  // namespace cox::detail
