#include "sdk/src/stream/block_map.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "coordinator/core/settings/section.h"
#include "coordinator/core/words.h"
#include "sdk/src/stream/script_mirror.h"

namespace cox::detail {

// DividedModel lists the model's parameters and buffers in the order of registration, each with a
// block.
struct DividedModel {
  enum class Role {
    owned,    // first registration
    further,  // registered elsewhere before
    outside,  // as further, but the module here has no block: `block` is the owner's
  };
  struct Parameter {
    at::Tensor tensor;
    BlockId block;
    Role role = Role::owned;
  };
  struct Buffer {
    at::Tensor tensor;
    BlockId block;
  };
  std::vector<std::string> blocks;
  std::vector<Parameter> parameters;
  std::vector<Buffer> buffers;
};

namespace {

using torch::nn::Module;
using Role = DividedModel::Role;

constexpr std::size_t kNoNode = ~std::size_t{0};

struct ModuleParameter {
  at::Tensor tensor;
  std::size_t owner = kNoNode;  // the node of the first registration
  bool is_first = false;        // whether that node is this one
};

struct ModuleNode {
  const Module* module = nullptr;
  std::string name;
  std::size_t parent = kNoNode;
  std::vector<ModuleParameter> parameters = {};  // registered on the module itself
  // Counts parameters of the module and of all modules below.
  std::uint64_t uses = 0;
  std::uint64_t owned = 0;
  std::uint64_t elements = 0;  // in owned parameters

  bool owns() const { return std::ranges::any_of(parameters, &ModuleParameter::is_first); }
};

const c10::Storage* storage_in(const c10::TensorImpl& tensor) {
  return tensor.has_storage() ? &tensor.unsafe_storage() : nullptr;
}

// Returns a weak reference to the storage, or an empty one for null.
auto weak_reference(const c10::Storage* storage) {
  return (storage == nullptr ? c10::Storage() : *storage).getWeakStorageImpl();
}

// Returns where the parameter's numbers begin. The weights of an LSTM may share one storage, one
// behind the other, as cuDNN wants.
const void* identity(const at::Tensor& parameter) {
  const c10::Storage* storage = storage_in(*parameter.unsafeGetTensorImpl());
  if (storage == nullptr) return parameter.unsafeGetTensorImpl();
  const auto* bytes = static_cast<const std::byte*>(storage->data());
  if (bytes == nullptr) return storage->unsafeGetStorageImpl();
  return bytes + static_cast<std::size_t>(parameter.storage_offset()) * parameter.itemsize();
}

// ModuleTree holds each of a model's modules once, in the order of registration, parents first.
class ModuleTree {
 public:
  ModuleTree(const Module& model, std::string_view name) : prefix_(name) {
    walk(model, "", kNoNode);
    for (std::size_t n = nodes_.size(); n-- > 1;) {
      ModuleNode& parent = nodes_[nodes_[n].parent];
      parent.uses += nodes_[n].uses;
      parent.owned += nodes_[n].owned;
      parent.elements += nodes_[n].elements;
    }
  }

  std::size_t size() const { return nodes_.size(); }
  const ModuleNode& operator[](std::size_t n) const { return nodes_[n]; }

 private:
  void walk(const Module& module, const std::string& path, std::size_t parent) {
    if (!seen_.insert(&module).second) return;
    const std::size_t self = nodes_.size();
    add(module, path, parent);
    for (const auto& child : module.named_children()) {
      if (child.value() == nullptr) continue;
      walk(*child.value(), path.empty() ? child.key() : path + "." + child.key(), self);
    }
  }

  void add(const Module& module, const std::string& path, std::size_t parent) {
    ModuleNode node{&module, full_name(path), parent};
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = item.value();
      const auto [owner, is_first] = owners_.try_emplace(identity(tensor), nodes_.size());
      node.parameters.push_back({tensor, owner->second, is_first});
      ++node.uses;
      if (!is_first) continue;
      ++node.owned;
      node.elements += static_cast<std::uint64_t>(tensor.numel());
    }
    nodes_.push_back(std::move(node));
  }

  std::string full_name(const std::string& path) const {
    if (path.empty()) return prefix_.empty() ? "model" : prefix_;
    return prefix_.empty() ? path : prefix_ + "." + path;
  }

  std::string prefix_;
  std::vector<ModuleNode> nodes_;
  std::unordered_set<const Module*> seen_;
  std::unordered_map<const void*, std::size_t> owners_;  // by identity() of the parameter
};

// One flag for each module.
using Flags = std::vector<char>;

// Returns the node of the largest uniform container, or kNoNode.
std::size_t largest_container(const ModuleTree& tree) {
  struct Children {
    std::size_t count = 0;
    std::string type = {};
    bool uniform = true;
  };
  std::vector<Children> children(tree.size());
  for (std::size_t n = 1; n < tree.size(); ++n) {
    if (tree[n].owned == 0) continue;
    Children& siblings = children[tree[n].parent];
    const std::string type = type_of(*tree[n].module);
    if (siblings.count++ == 0) siblings.type = type;
    siblings.uniform = siblings.uniform && siblings.type == type;
  }
  std::size_t best = kNoNode;
  for (std::size_t n = 0; n < tree.size(); ++n) {
    if (children[n].count < 2 || !children[n].uniform) continue;
    if (best == kNoNode || tree[n].elements > tree[best].elements) best = n;
  }
  return best;
}

Flags default_choice(const ModuleTree& tree) {
  const std::size_t container = largest_container(tree);
  const std::size_t parent = container == kNoNode ? 0 : container;
  Flags chosen(tree.size(), 0);
  for (std::size_t n = 1; n < tree.size(); ++n)
    chosen[n] = tree[n].parent == parent && tree[n].owned > 0;
  return chosen;
}

Status fits_nothing(const ModuleTree& tree, const std::string& pattern) {
  std::vector<std::string> names;
  for (std::size_t n = 0; n < tree.size(); ++n) {
    if (tree[n].uses > 0) names.push_back(tree[n].name);
  }
  return invalid_argument("blocks: expected patterns that fit modules of the model, found ",
                          shown(pattern), ", which fits none of ", names.size(),
                          " with parameters; the nearest are ", nearest_names(names, pattern));
}

// Adds the outermost modules that fit; returns whether any did.
bool choose_fitting(const ModuleTree& tree, std::string_view pattern, Flags& chosen) {
  Flags covered(tree.size(), 0);
  bool found = false;
  for (std::size_t n = 0; n < tree.size(); ++n) {
    const bool is_model = tree[n].parent == kNoNode;
    const bool fits = is_model ? tree[n].name == pattern : fits_pattern(pattern, tree[n].name);
    const bool inside = !is_model && covered[tree[n].parent] != 0;
    covered[n] = inside || fits;
    if (!fits || inside || tree[n].uses == 0) continue;
    chosen[n] = 1;
    found = true;
  }
  return found;
}

Result<Flags> choice(const ModuleTree& tree, std::span<const std::string> patterns) {
  if (patterns.empty()) return default_choice(tree);
  Flags chosen(tree.size(), 0);
  for (const std::string& pattern : patterns) {
    if (!choose_fitting(tree, pattern, chosen)) return fits_nothing(tree, pattern);
  }
  return chosen;
}

// Returns for each module the module whose block gets its parameters: the innermost chosen module
// around it, else the largest one around it without chosen modules, else itself.
std::vector<std::size_t> gathered_by(const ModuleTree& tree, const Flags& chosen) {
  Flags holds(tree.size(), 0);  // whether a chosen module is inside
  for (std::size_t n = tree.size(); n-- > 1;) {
    if (chosen[n] || holds[n]) holds[tree[n].parent] = 1;
  }
  std::vector<std::size_t> gatherer(tree.size());
  Flags passed_on(tree.size(), 0);  // to the modules below
  for (std::size_t n = 0; n < tree.size(); ++n) {
    const std::size_t parent = tree[n].parent;
    const bool inherits = !chosen[n] && parent != kNoNode && passed_on[parent];
    gatherer[n] = inherits ? gatherer[parent] : n;
    passed_on[n] = inherits || chosen[n] || !holds[n];
  }
  return gatherer;
}

DividedModel divided(const ModuleTree& tree, const Flags& chosen) {
  const std::vector<std::size_t> gatherer = gathered_by(tree, chosen);
  DividedModel model;
  std::vector<std::optional<BlockId>> number(tree.size());
  for (std::size_t n = 0; n < tree.size(); ++n) {
    std::optional<BlockId>& block = number[gatherer[n]];
    if (block || !tree[n].owns()) continue;
    // May wrap around above the last BlockId: make() refuses far fewer blocks.
    block = BlockId(static_cast<BlockId::rep>(model.blocks.size()));
    model.blocks.push_back(tree[gatherer[n]].name);
  }
  BlockId before;
  for (std::size_t n = 0; n < tree.size(); ++n) {
    const std::optional<BlockId> block = number[gatherer[n]];
    before = block.value_or(before);
    for (const ModuleParameter& use : tree[n].parameters) {
      const auto role = use.is_first ? Role::owned : block ? Role::further : Role::outside;
      const BlockId owner = *number[gatherer[use.owner]];
      model.parameters.push_back({use.tensor, block.value_or(owner), role});
    }
    for (const at::Tensor& buffer : tree[n].module->buffers(/*recurse=*/false))
      model.buffers.push_back({buffer, before});
  }
  return model;
}

std::vector<at::Tensor> existing(const auto& references) {
  std::vector<at::Tensor> tensors;
  for (const auto& reference : references) {
    if (auto tensor = reference.lock()) tensors.push_back(at::Tensor(std::move(tensor)));
  }
  return tensors;
}

}  // namespace

Result<BlockMap> BlockMap::make(const Module& model, std::span<const std::string> patterns,
                                std::string_view name) {
  const ModuleTree tree(model, name);
  if (tree[0].uses == 0) {
    return invalid_argument(tree[0].name, ": expected a module with parameters, found none in ",
                            tree.size(), " modules; register them before the model is adopted");
  }
  const Result<Flags> chosen = choice(tree, patterns);
  if (!chosen.ok()) return chosen.status();
  const DividedModel parts = divided(tree, *chosen);
  if (parts.blocks.size() > kMaxBlocks) {
    return resource_exhausted("blocks of the model: expected at most ", kMaxBlocks, ", found ",
                              parts.blocks.size(), "; make each block a larger part of the model");
  }
  return BlockMap(parts);
}

BlockMap::BlockMap(const DividedModel& model) {
  for (const std::string& name : model.blocks) blocks_.push_back({name});
  for (const DividedModel::Parameter& parameter : model.parameters) {
    const WeakTensor tensor(parameter.tensor.getIntrusivePtr());
    uses_.push_back({tensor, weak_reference(nullptr), parameter.block,
                     parameter.role == Role::outside ? Cut::no : Cut::yes});
    if (parameter.role != Role::owned) continue;
    Block& block = blocks_[parameter.block.value()];
    block.parameters.push_back(tensor);
    block.elements += static_cast<std::uint64_t>(parameter.tensor.numel());
  }
  for (const DividedModel::Buffer& buffer : model.buffers)
    blocks_[buffer.block.value()].buffers.emplace_back(buffer.tensor.getIntrusivePtr());
  refresh();
}

std::vector<at::Tensor> BlockMap::parameters(BlockId block) const {
  return existing(at(block).parameters);
}

std::vector<at::Tensor> BlockMap::buffers(BlockId block) const {
  return existing(at(block).buffers);
}

bool BlockMap::refresh() {
  bool changed = false;
  for (Use& use : uses_) {
    // A tensor's destruction releases the storage; this reference keeps only the tensor's own
    // memory.
    const c10::Storage* storage = storage_in(*use.parameter._unsafe_get_target());
    const auto* now = storage == nullptr ? nullptr : storage->unsafeGetStorageImpl();
    if (now == use.storage._unsafe_get_target()) continue;
    use.storage = weak_reference(storage);
    changed = true;
  }
  if (!changed) return false;
  homes_.clear();
  for (const Use& use : uses_) enter(use);
  return true;
}

void BlockMap::enter(const Use& use) {
  const c10::StorageImpl* storage = use.storage._unsafe_get_target();
  if (storage == nullptr) return;
  const std::uint16_t block = use.block.value();
  if (Home* home = homes_.find(storage); home == nullptr) {
    homes_[storage] = {block, use.cut == Cut::yes ? block : kNoCut};
  } else if (home->cut != block || use.cut == Cut::no) {
    home->cut = kNoCut;
  }
}

}  // namespace cox::detail
