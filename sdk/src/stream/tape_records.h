// TapeRecords describe one region of a forward pass: the operators with arguments, the storages
// made, the tensors read from outside, and the dropped saved tensors. Tape (tape.h) writes the
// records; replay() (replay.h) reads them and fills in remade tensors. TapeValues locates values
// while a tape writes. Plain values; the owner guards them.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "sdk/src/libtorch/graph_node.h"
#include "sdk/src/stream/packed_mask.h"
#include "sdk/src/stream/pointer_map.h"
#include "sdk/src/stream/region_meter.h"
#include "sdk/src/stream/storage.h"

namespace torch::autograd {
struct Node;
}

namespace cox::detail {

// TapeRules make replays right. All rules but the last two are on by default. Tests turn off one
// rule at a time, to show a program that needs the rule.
struct TapeRules {
  bool storages = true;           // a value is (storage, writes), not a tensor object
  bool weak_references = true;    // no reused address passes for the object before
  bool detached = true;           // arguments are kept without history, with requires_grad
  bool gradient_mode = true;      // each operator runs again with its gradient mode
  bool autocast = true;           // and under its autocast
  bool generators = true;         // and from its random state
  bool copies = true;             // a tensor from outside is copied before a write
  bool copies_everywhere = true;  // by every tape alive, not only the recording one
  bool outside_views = true;      // views of a written tensor from outside are outside too
  bool factories = true;          // results of operators without tensor arguments are kept
  bool statistics = true;         // running statistics are replayed into copies
  bool after_operator = true;     // nothing is copied while an operator still runs
  bool last_state = true;         // a kept tensor serves only reads of its storage's last state
  bool versions = true;           // and only until the next write
  // Copies memory not allocated by LibTorch (from_blob) when an operator reads it. For records that
  // run again after the program may have freed the memory.
  bool copies_foreign = false;
  // Identifies a result by its history instead of its tensor object. A backward pass inside a step
  // (create_graph) unpacks saved tensors as new objects. Replaces `storages`.
  bool histories = false;
};

struct TapeCounts {
  std::uint64_t operators = 0;      // recorded
  std::uint64_t kept = 0;           // saved tensors kept, parameters included
  std::uint64_t packed = 0;         // kept as masks
  std::uint64_t dropped = 0;        // saved tensors dropped
  std::uint64_t replayed = 0;       // runs of operators in replays so far
  std::uint64_t copied_bytes = 0;   // tensors from outside, copied before writes
  std::uint64_t foreign_bytes = 0;  // copied from memory not allocated by LibTorch
};

struct TapeRecords {
  using OperatorIndex = std::int32_t;
  using StorageIndex = std::int32_t;
  static constexpr std::int32_t kNone = -1;

  // SavedKey names a saved tensor by the operator that saved it and its position among the saves.
  struct SavedKey {
    OperatorIndex saver = kNone;
    std::int32_t position = 0;
    friend auto operator<=>(const SavedKey&, const SavedKey&) = default;
  };

  enum class Source : std::uint8_t { undefined, result, outside };
  // Reference says where a replay gets an argument: from a recorded result, or from an outside
  // tensor.
  struct Reference {
    Source source = Source::undefined;
    bool requires_grad = false;
    bool is_view = false;   // by geometry, on the memory of the recorded result
    bool is_plain = false;  // strided, and neither conjugated nor negated lazily
    at::ScalarType type = at::kFloat;
    std::int32_t index = kNone;  // operator, or outside tensor
    std::int16_t output = 0;
    std::int16_t element = kNone;  // place in a list
    StorageIndex storage = kNone;  // in the region
    std::int32_t writes = 0;       // writes to the storage before the read
    std::uint32_t geometry = 0;    // position in `numbers`; REQUIRES: storage != kNone and is_plain
  };
  enum class ArgumentKind : std::uint8_t { value, tensor, tensors, optional_tensors, integers };
  struct Argument {
    c10::IValue value;        // for ArgumentKind::value
    std::uint32_t first = 0;  // in `references`; for integers in `numbers`
    std::uint32_t count = 0;
    ArgumentKind kind = ArgumentKind::value;
  };
  struct Autocast {
    bool is_enabled = false;
    at::ScalarType type = at::kBFloat16;
    friend bool operator==(const Autocast&, const Autocast&) = default;
  };
  static constexpr std::array<at::DeviceType, 2> kAutocastDevices = {at::kCPU, at::kCUDA};
  // Modes is the thread's state that decides what an operator computes.
  struct Modes {
    bool has_gradients = true;
    std::array<Autocast, kAutocastDevices.size()> autocast;
    c10::DispatchKeySet excluded;
    friend bool operator==(const Modes&, const Modes&) = default;
  };
  struct Operator {
    c10::OperatorHandle handle;
    std::uint32_t first_argument = 0;
    std::uint32_t first_saved = 0;
    std::uint32_t first_write = 0;
    std::uint32_t modes = 0;
    std::int32_t generator = kNone;
    std::uint16_t arguments = 0;
    std::uint16_t writes = 0;  // number of writes to storages of the region
    bool keeps_results = false;
    bool writes_outside = false;
    bool has_statistics = false;
  };
  struct Random {
    at::Generator generator;
    at::Tensor state;
  };
  struct Outside {
    at::Tensor tensor;
    std::int64_t version = 0;
    const c10::StorageImpl* storage = nullptr;  // at the time of the read
    bool is_copy = false;
    // Returns whether the tensor still lies in `memory`. set_data() gives a parameter another
    // storage, and another tensor may have reused the address.
    bool lies_in(const c10::StorageImpl* memory) const {
      return storage == memory && !is_copy && storage_impl(tensor) == memory;
    }
  };
  // Kept is autograd's reference to a kept saved tensor.
  struct Kept {
    at::Tensor tensor;                         // without history
    std::shared_ptr<const PackedMask> packed;  // replaces the tensor
    std::int64_t version = 0;
    const c10::VariableVersion& counter() const {
      return packed ? packed->counter() : tensor.unsafeGetTensorImpl()->version_counter();
    }
    bool is_changed() const {
      return counter().enabled() && counter().current_version() != version;
    }
  };
  struct Storage {
    OperatorIndex maker = kNone;
    std::int16_t output = 0;
    std::int16_t element = kNone;
    at::ScalarType type = at::kFloat;
    bool is_lost = false;  // an operator failed during a write
    // Some tensors of the storage have version counters of their own (unsafe_chunk), so no counter
    // covers the writes to all of them.
    bool counts_apart = false;
    bool may_be_mask = false;         // few values: random or bool
    std::int32_t first_kept = kNone;  // first of the storage's saved tensors
    std::vector<OperatorIndex> writers;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> alive;
  };
  // Saved is a saved tensor that may be dropped. The entries of one operator are adjacent.
  struct Saved {
    SavedKey key;
    StorageIndex storage = kNone;
    // Set for a kept tensor, while autograd holds the tensor.
    const Kept* kept = nullptr;
    std::int32_t next_kept = kNone;  // next with the same storage
    // Set for a dropped tensor.
    bool is_wanted = false;   // backward may request it
    bool by_value = false;    // a value of the region that its saver only reads
    std::uint32_t sizes = 0;  // position in `numbers`: the count, then each size
    Reference value;
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};  // as in Kept
    std::int64_t version = 0;
    at::Tensor found;  // remade, not yet requested
  };
  // SavedNote is a tensor saved by autograd while a tape measures.
  struct SavedNote {
    SavedKey key;
    StorageIndex storage = kNone;               // in the region, or none
    const c10::StorageImpl* address = nullptr;  // distinguishes storages saved by one operator
    std::int64_t bytes = 0;                     // storage size
    bool is_forced = false;                     // must be kept
    bool is_by_value = false;                   // as in Saved
    bool can_serve = false;                     // reads of its storage, if kept
    std::int64_t packed_bytes = 0;              // size of a mask in packed form
    Reference value;
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};
    std::int64_t version = 0;
  };
  // Further notes of a tape that measures.
  struct Measured {
    std::vector<OperatorCost> operators;
    std::vector<std::int64_t> storage_bytes;
    std::vector<SavedNote> saved;
  };
  std::string name;  // for messages: "block transformer.h.0"
  TapeRules rules;

  std::vector<Operator> operators;
  std::vector<Argument> arguments;
  std::vector<Reference> references;
  // Geometries (dimensions, sizes, strides, offset) and lists of numbers.
  std::vector<std::int64_t> numbers;
  std::vector<Modes> modes;
  std::vector<Random> randoms;
  std::vector<Outside> outsides;
  std::vector<Storage> storages;
  std::vector<StorageIndex> writes;
  std::vector<Saved> saved;
  std::optional<Measured> measured;
  TapeCounts counts;

  // Keeps the memory of the lists.
  void clear() {
    name.clear();
    rules = {};
    operators.clear();
    arguments.clear();
    references.clear();
    numbers.clear();
    modes.clear();
    randoms.clear();
    outsides.clear();
    storages.clear();
    writes.clear();
    saved.clear();
    measured.reset();
    counts = {};
  }
  // Returns the index of a saved tensor in `saved`, or kNone if it must be kept.
  std::int32_t saved_index(SavedKey key) const {
    if (key.saver == kNone) return kNone;
    std::size_t s = operators[static_cast<std::size_t>(key.saver)].first_saved;
    while (s < saved.size() && saved[s].key < key) ++s;
    return s < saved.size() && saved[s].key == key ? static_cast<std::int32_t>(s) : kNone;
  }
  // Returns the storages of the region written by an operator.
  std::span<const StorageIndex> writes_of(const Operator& it) const {
    return std::span(writes).subspan(it.first_write, it.writes);
  }
  at::IntArrayRef sizes_of(const Saved& it) const {
    return {numbers.data() + it.sizes + 1, static_cast<std::size_t>(numbers[it.sizes])};
  }
  [[noreturn]] void fail(const std::string& what) const;
};

// TapeValues locates values while a tape records: the tensors and storages made by the region's
// operators, and the memory read from outside. reference() gives the source of an argument in a
// replay. Tape (tape.h) queries it and stores lasting facts in the records. A plain value; clear()
// keeps its memory; one thread at a time.
class TapeValues {
 public:
  static constexpr std::int32_t kNone = TapeRecords::kNone;
  struct Place {
    TapeRecords::StorageIndex storage = kNone;  // in the region
    bool is_outside = false;                    // held as memory from outside, and not copied
  };
  // Result is a tensor returned by an operator.
  struct Result {
    const at::Tensor& tensor;
    TapeRecords::OperatorIndex maker = kNone;
    std::int16_t output = 0;
    std::int16_t element = kNone;
    bool is_random = false;
  };

  Place place_of(const c10::StorageImpl* storage) const;
  // Returns whether an operator of the region returned this very tensor.
  bool knows(const at::Tensor& tensor) const { return made_of(tensor) != nullptr; }
  // Returns whether reference() finds the tensor without holding it as one from outside. REQUIRES:
  // the tensor's storage is of the region.
  bool has_value(const TapeRecords& records, const at::Tensor& tensor) const;
  TapeRecords::Reference reference(TapeRecords& records, const at::Tensor& tensor);
  void note_result(TapeRecords& records, const Result& result);

  // Treats tensors of this storage as from outside from now on.
  void forget_views_of(const c10::StorageImpl* storage);
  // Stops holding the storage. Returns whether it was held as memory from outside.
  bool stop_holding(const c10::StorageImpl* storage);
  void clear();
  std::size_t size() const { return places_.size(); }

 private:
  struct MadeTensor {
    TapeRecords::OperatorIndex maker = kNone;
    std::int16_t output = 0;
    std::int16_t element = kNone;
    const c10::StorageImpl* storage = nullptr;
    std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> alive;
  };
  struct MadeIndex {
    std::int32_t index = kNone;  // in made_
  };

  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }
  const MadeTensor* made_of(const at::Tensor& tensor) const;
  const MadeTensor* made_with_history_of(const at::Tensor& tensor) const;
  TapeRecords::Reference outside(TapeRecords& records, const at::Tensor& tensor);
  void note_storage(TapeRecords& records, const Result& result);

  // History is a result as autograd knows it.
  struct History {
    WeakNode node;
    std::uint32_t output = 0;
    MadeTensor made;
  };

  std::vector<MadeTensor> made_;
  PointerMap<MadeIndex> made_indices_;                       // by TensorImpl
  std::unordered_multimap<const void*, History> histories_;  // by node, if the rules use histories
  PointerMap<Place> places_;                                 // by StorageImpl
};

}  // namespace cox::detail
