// TapeRecords are what a tape knows of one region of a forward pass: its operators with their
// arguments, the storages that they made, the tensors from outside that they read, and the saved
// tensors that were dropped. Tape (tape.h) writes them, replay() (replay.h) reads them and fills in
// what it made again. TapeValues finds the places of values while a tape writes. Plain values;
// whoever owns them guards them.
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

// TapeRules are what makes replays right. All are on; a test leaves one out at a time, to show that
// a named program needs it.
struct TapeRules {
  bool storages = true;           // a value is (storage, writes), not a tensor object
  bool weak_references = true;    // no address is taken for another object's
  bool detached = true;           // arguments are kept without history, with requires_grad
  bool gradient_mode = true;      // each operator runs again with gradients on or off as it did
  bool autocast = true;           // and under the same autocast
  bool generators = true;         // and from the same random state
  bool copies = true;             // a copy is taken before a write to a tensor from outside
  bool copies_everywhere = true;  // by every tape alive, not by the recording one alone
  bool outside_views = true;      // views of such a tensor are outside as well, once it was written
  bool factories = true;          // results of operators without tensor arguments are kept
  bool statistics = true;         // running statistics are replayed into copies
  bool after_operator = true;     // nothing is copied while an operator still runs
  bool last_state = true;         // a kept tensor serves reads of its storage's last state only
  bool versions = true;           // and only while nobody has written to it since
  // Memory that LibTorch did not allocate (from_blob) is copied when an operator reads it: for
  // records that run again after the program may have freed it.
  bool copies_foreign = false;
  // A tensor with the history of a result is that result, whatever object it is: what a backward
  // pass that is part of a step (create_graph) gets of saved tensors. In place of `storages`.
  bool histories = false;
};

struct TapeCounts {
  std::uint64_t operators = 0;      // recorded
  std::uint64_t kept = 0;           // saved tensors kept, parameters included
  std::uint64_t packed = 0;         // of those, as masks
  std::uint64_t dropped = 0;        // saved tensors dropped
  std::uint64_t replayed = 0;       // operators run again so far
  std::uint64_t copied_bytes = 0;   // of tensors from outside that were about to be overwritten
  std::uint64_t foreign_bytes = 0;  // copied, of memory that LibTorch did not allocate
};

struct TapeRecords {
  using OperatorIndex = std::int32_t;
  using StorageIndex = std::int32_t;
  static constexpr std::int32_t kNone = -1;

  // A saved tensor: the operator that saved it, and the how-manieth of that operator it is.
  struct SavedKey {
    OperatorIndex saver = kNone;
    std::int32_t position = 0;
    friend auto operator<=>(const SavedKey&, const SavedKey&) = default;
  };

  enum class Source : std::uint8_t { undefined, result, outside };
  // Where an argument comes from when its operator runs again.
  struct Reference {
    Source source = Source::undefined;
    bool requires_grad = false;
    bool is_view = false;   // by geometry on the recorded result, whose memory it shares
    bool is_plain = false;  // strided, and neither conjugated nor negated lazily
    at::ScalarType type = at::kFloat;
    std::int32_t index = kNone;  // of the operator, or of the outside tensor
    std::int16_t output = 0;
    std::int16_t element = kNone;  // of a list
    StorageIndex storage = kNone;  // of the region
    std::int32_t writes = 0;       // to that storage so far
    std::uint32_t geometry = 0;    // in numbers; REQUIRES: storage != kNone and is_plain
  };
  enum class ArgumentKind : std::uint8_t { value, tensor, tensors, optional_tensors, integers };
  struct Argument {
    c10::IValue value;        // where the kind is value
    std::uint32_t first = 0;  // in references; of integers in numbers
    std::uint32_t count = 0;
    ArgumentKind kind = ArgumentKind::value;
  };
  struct Autocast {
    bool is_enabled = false;
    at::ScalarType type = at::kBFloat16;
    friend bool operator==(const Autocast&, const Autocast&) = default;
  };
  static constexpr std::array<at::DeviceType, 2> kAutocastDevices = {at::kCPU, at::kCUDA};
  // What of the thread's state decides what an operator computes.
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
    std::uint16_t writes = 0;  // to storages of the region
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
    const c10::StorageImpl* storage = nullptr;  // when it was read
    bool is_copy = false;
    // Whether the tensor still lies there: set_data() gives a parameter another storage, and the
    // address may be another tensor's by now.
    bool lies_in(const c10::StorageImpl* memory) const {
      return storage == memory && !is_copy && storage_impl(tensor) == memory;
    }
  };
  // What autograd holds of a saved tensor that is kept.
  struct Kept {
    at::Tensor tensor;                         // without history
    std::shared_ptr<const PackedMask> packed;  // in place of the tensor
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
    bool is_lost = false;  // an operator failed while it wrote to it
    // Some of its tensors have a version counter of their own (unsafe_chunk), so none of them tells
    // whether the others were written to.
    bool counts_apart = false;
    bool may_be_mask = false;         // of few values: drawn at random, or bool
    std::int32_t first_kept = kNone;  // of its saved tensors
    std::vector<OperatorIndex> writers;
    std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> alive;
  };
  // A saved tensor that need not be kept. Those of an operator lie one after the other.
  struct Saved {
    SavedKey key;
    StorageIndex storage = kNone;
    // Of a kept one, for as long as autograd holds it.
    const Kept* kept = nullptr;
    std::int32_t next_kept = kNone;  // of the same storage
    // Of a dropped one.
    bool is_wanted = false;   // it may be asked for
    bool by_value = false;    // it is a value of the region that its saver only reads
    std::uint32_t sizes = 0;  // in numbers: how many, and each
    Reference value;
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};  // as in Kept
    std::int64_t version = 0;
    at::Tensor found;  // made again, not yet asked for
  };
  // A tensor that autograd saved, noted while a tape measures.
  struct SavedNote {
    SavedKey key;
    StorageIndex storage = kNone;               // of the region, else
    const c10::StorageImpl* address = nullptr;  // tells those apart that one operator saved
    std::int64_t bytes = 0;                     // of its storage
    bool is_forced = false;                     // it must be kept
    bool is_by_value = false;                   // as in Saved
    bool can_serve = false;                     // reads of its storage, if it is kept
    std::int64_t packed_bytes = 0;              // of a mask: what it takes packed
    Reference value;
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};
    std::int64_t version = 0;
  };
  // What a tape that measures notes besides.
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

  // Forgets everything but the memory of its lists.
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
  // The index of a saved tensor in `saved`, or kNone where it must be kept.
  std::int32_t saved_index(SavedKey key) const {
    if (key.saver == kNone) return kNone;
    std::size_t s = operators[static_cast<std::size_t>(key.saver)].first_saved;
    while (s < saved.size() && saved[s].key < key) ++s;
    return s < saved.size() && saved[s].key == key ? static_cast<std::int32_t>(s) : kNone;
  }
  // The storages of the region that an operator writes to.
  std::span<const StorageIndex> writes_of(const Operator& it) const {
    return std::span(writes).subspan(it.first_write, it.writes);
  }
  at::IntArrayRef sizes_of(const Saved& it) const {
    return {numbers.data() + it.sizes + 1, static_cast<std::size_t>(numbers[it.sizes])};
  }
  [[noreturn]] void fail(const std::string& what) const;
};

// TapeValues knows, while a region is recorded, which tensors and storages its operators made, and
// which memory from outside they read. It says where an argument comes from when its operator runs
// again. Tape (tape.h) asks it; what is to stay goes into the records. A plain value, whose memory
// is used again after clear(); one thread at a time uses it.
class TapeValues {
 public:
  static constexpr std::int32_t kNone = TapeRecords::kNone;
  struct Place {
    TapeRecords::StorageIndex storage = kNone;  // of the region
    bool is_outside = false;                    // held as memory from outside, and not copied
  };
  // A tensor that an operator returned.
  struct Result {
    const at::Tensor& tensor;
    TapeRecords::OperatorIndex maker = kNone;
    std::int16_t output = 0;
    std::int16_t element = kNone;
    bool is_random = false;
  };

  Place place_of(const c10::StorageImpl* storage) const;
  // Whether an operator of the region returned this very tensor.
  bool knows(const at::Tensor& tensor) const { return made_of(tensor) != nullptr; }
  // Whether reference() finds it without holding it as a tensor from outside. REQUIRES: it lies in
  // a storage of the region.
  bool has_value(const TapeRecords& records, const at::Tensor& tensor) const;
  TapeRecords::Reference reference(TapeRecords& records, const at::Tensor& tensor);
  void note_result(TapeRecords& records, const Result& result);

  // Tensors of this storage are from outside from here on.
  void forget_views_of(const c10::StorageImpl* storage);
  // Returns whether it was held as memory from outside.
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

  // A result as autograd knows it.
  struct History {
    WeakNode node;
    std::uint32_t output = 0;
    MadeTensor made;
  };

  std::vector<MadeTensor> made_;
  PointerMap<MadeIndex> made_indices_;                       // by TensorImpl
  std::unordered_multimap<const void*, History> histories_;  // by node, where rules ask for them
  PointerMap<Place> places_;                                 // by StorageImpl
};

}  // namespace cox::detail
