// BlockMap divides an unmodified model into blocks and finds the block of a parameter. The model is
// a torch::nn module, or a TorchScript module shown by its ScriptMirror. The operator stream
// queries the map for each tensor argument of each operator. A visit begins with the first operator
// that touches a parameter of another block. Measurements, plans and the page use the map's block
// names and numbers.
//
// The model owns its parameters; the map refers to them weakly. A weak reference keeps an address
// from being reused while the map knows the address. One thread at a time: the thread that trains.
#pragma once

#include <ATen/core/Tensor.h>

#include <cassert>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "sdk/src/stream/pointer_map.h"

namespace torch::nn {
class Module;
}

namespace cox::detail {

struct DividedModel;

// BlockMap chooses which modules are blocks, and which parameters each block owns:
//
// - Without patterns, the blocks are the elements of the model's largest uniform container: a
//   module with two or more children that have parameters and are all of one type, such as a
//   ModuleList of layers or a Sequential of stages. The largest container has the most parameter
//   elements inside; among equals the outermost wins, then the first.
// - A model without a container is divided into its top-level children.
// - With patterns, the blocks are the outermost modules that fit each pattern. If a module fits one
//   pattern and a module around it fits another, the inner module is a block too.
// - In both cases, parameters outside of the chosen modules belong to the largest module around
//   them that contains no chosen module. A parameter registered directly on a module with chosen
//   modules inside belongs to a block with the module's name. The name of the model itself is
//   "model".
// - Only a module that adds parameters is a block. A module registered twice counts at its first
//   place. A module whose parameters are all owned elsewhere is no block.
// - Parameters are identified by storage. The first block that uses a shared parameter (tied
//   embeddings) owns it. A shared parameter begins no visit, because several blocks touch it.
class BlockMap {
 public:
  // Divides the model as it is now; the map ignores modules and parameters registered later. A name
  // that is not empty is a prefix of all block names ("generator.0") and tells several models
  // apart. In a pattern '*' stands for any text (fits_pattern). Patterns are compared with full
  // block names. Only the model's full name fits the model itself.
  //
  // Returns invalid_argument for a model without parameters, and for a pattern that fits no module
  // with parameters. Returns resource_exhausted for more than kMaxBlocks blocks.
  static Result<BlockMap> make(const torch::nn::Module& model,
                               std::span<const std::string> patterns, std::string_view name = {});

  // Blocks are numbered in the order in which their first parameters are registered. All ranks that
  // built the same model have the same numbers.
  std::size_t size() const { return blocks_.size(); }
  // REQUIRES for every function with a block: block < size().
  const std::string& name(BlockId block) const { return at(block).name; }
  // Returns the number of elements of the parameters owned by the block in make().
  std::uint64_t elements(BlockId block) const { return at(block).elements; }
  // Returns the block's own parameters that still exist, in the order of registration.
  std::vector<at::Tensor> parameters(BlockId block) const;
  // Returns the buffers (running statistics, counters) of the block's modules, if they still exist.
  // A module without a block leaves its buffers to the block before it.
  std::vector<at::Tensor> buffers(BlockId block) const;

  // Returns the block of an operator on this storage. Returns nullopt for null, for a shared
  // parameter, and for a storage of no parameter. Costs one probe of a table and never allocates.
  std::optional<BlockId> block_of(const c10::StorageImpl* storage) const {
    const Home* home = homes_.find(storage);
    return home == nullptr || home->cut == kNoCut ? std::nullopt
                                                  : std::optional(BlockId(home->cut));
  }
  // Returns the first block that uses the parameter, shared or not; nullopt for other storages.
  std::optional<BlockId> owner(const c10::StorageImpl* storage) const {
    const Home* home = homes_.find(storage);
    return home == nullptr ? std::nullopt : std::optional(BlockId(home->owner));
  }

  // Follows parameters whose storage was replaced (set_data(), to()) or released, and returns
  // whether any were. Called once a step; costs one comparison a parameter if nothing changed. The
  // division into blocks stays as make() chose it.
  bool refresh();

 private:
  using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  static constexpr std::uint16_t kNoCut = 0xFFFF;

  struct Block {
    std::string name;
    std::uint64_t elements = 0;
    std::vector<WeakTensor> parameters = {};
    std::vector<WeakTensor> buffers = {};
  };
  enum class Cut : std::uint8_t { no, yes };
  // Use is one place where a parameter is registered.
  struct Use {
    WeakTensor parameter;
    WeakStorage storage;  // as of the last refresh()
    BlockId block;        // the module's; the owner if the module has no block
    Cut cut = Cut::yes;
  };
  struct Home {
    std::uint16_t owner = 0;
    std::uint16_t cut = kNoCut;  // the owner; kNoCut for a shared parameter
  };

  explicit BlockMap(const DividedModel& model);
  const Block& at(BlockId block) const {
    assert(block.value() < blocks_.size());
    return blocks_[block.value()];
  }
  void enter(const Use& use);

  std::vector<Block> blocks_;
  std::vector<Use> uses_;
  PointerMap<Home> homes_;  // by storage
};

}  // namespace cox::detail
