// BlockMap divides an unmodified model (of torch::nn, or a TorchScript module by its ScriptMirror)
// into blocks and tells which block a parameter belongs to. The operator stream asks it for each
// tensor argument of each operator: the first operator that touches a parameter of another block is
// a cut. Names, buffers and numbers of the blocks go from here to measurements, plans and the page.
//
// Which modules are blocks. Without patterns: the elements of the model's largest uniform
// container, that is, of a module with two or more children that have parameters, all of one type
// (a ModuleList of layers, a Sequential of stages); of several, the one with most parameter
// elements inside, of equal ones the outermost or first. A model without one is divided into its
// top-level children. With patterns: the outermost modules that fit each; where a module fits one
// pattern and a module around it another, the inner one is a block of its own. The rest, both
// times: parameters outside of these modules belong to the largest module around them that holds
// none of these; parameters registered directly on a module that holds some belong to a block named
// after that module, which is "model" for the model itself. Only a module that brings parameters of
// its own is a block, and a module that is registered twice counts where it is found first.
//
// Parameters are told apart by storage. One that modules of several blocks use (tied embeddings) is
// owned by the first of them and cuts at none, since touching it does not tell who runs. A module
// whose parameters are all owned elsewhere is no block.
//
// The model owns its parameters; the map refers to them weakly, and the weak references keep an
// address from being given to another storage while the map knows it. One thread at a time uses a
// map; the thread that trains does.
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

class BlockMap {
 public:
  // Divides the model as it is now: parameters and modules that are registered later are not seen.
  // `name` is the model's own; where it is not empty it stands before the names of all its blocks
  // ("generator.0"), so that several models can be told apart. In patterns '*' stands for any text
  // (fits_pattern); they are compared with names as the blocks have them, and the model itself is
  // only fitted by its full name.
  //
  // Returns invalid_argument for a model without parameters and for a pattern that fits no module
  // with parameters, resource_exhausted for more than kMaxBlocks blocks.
  static Result<BlockMap> make(const torch::nn::Module& model,
                               std::span<const std::string> patterns, std::string_view name = {});

  // Blocks are numbered in the order in which their first parameters are registered, which is the
  // same on every rank that built the same model.
  std::size_t size() const { return blocks_.size(); }
  // REQUIRES for this and every other function with a block: block < size().
  const std::string& name(BlockId block) const { return at(block).name; }
  // Returns the number of elements of the parameters that the block owned when the map was made.
  std::uint64_t elements(BlockId block) const { return at(block).elements; }
  // Returns the parameters that the block owns and that still exist, in the order of registration.
  std::vector<at::Tensor> parameters(BlockId block) const;
  // Returns the buffers (running statistics, counters) that still exist of the modules of the
  // block. A module without a block leaves its buffers to the block before it.
  std::vector<at::Tensor> buffers(BlockId block) const;

  // Returns the block that an operator on this storage belongs to; nullopt for anything that is not
  // a parameter's, for a shared parameter and for null. One probe of a table, without allocation.
  std::optional<BlockId> block_of(const c10::StorageImpl* storage) const {
    const Home* home = homes_.find(storage);
    return home == nullptr || home->cut == kNoCut ? std::nullopt
                                                  : std::optional(BlockId(home->cut));
  }
  // Returns the first block that uses the parameter, shared or not; nullopt where it is not one.
  std::optional<BlockId> owner(const c10::StorageImpl* storage) const {
    const Home* home = homes_.find(storage);
    return home == nullptr ? std::nullopt : std::optional(BlockId(home->owner));
  }

  // Follows parameters that have another storage than before (set_data(), to()) or are gone;
  // returns whether there were any. Called once a step: costs one comparison a parameter where
  // nothing changed. The blocks stay those that make() found.
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
    WeakStorage storage;  // as refresh() saw it last
    BlockId block;        // of the module; the owner, where the module has none
    Cut cut = Cut::yes;
  };
  struct Home {
    std::uint16_t owner = 0;
    std::uint16_t cut = kNoCut;  // the owner, unless shared
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
