// Block is a named unit of a model, the thing that precision, memory and sharding are decided for.
// It wraps a module that is already registered, and is called through cox::run (run.h):
//
//   cox::Block<GptLayer> layer(register_module("0", GptLayer(config)));
//   x = cox::run(layer, &GptLayerImpl::forward, x);
//
// A block's name is its module's path in the model ("transformer.h.0"). To be found there, the
// module gets a child named "coxswain_block" that has no parameters, no buffers and is not saved:
// names, state and files stay as they were. A Cloneable module cannot be cloned while it has that
// child: call cox::detach(model) first (wrap.h). Copies of a Block and Blocks of one module are the
// same block. A block is run by one thread at a time.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace torch::nn {
class Module;
}

namespace cox {
namespace detail {

// BlockGate is the part of a block's state that every call reads first.
struct BlockGate {
  bool active = false;  // a session measures or steers this block
};

// Adds the marker unless the module has one; returns the state behind it. REQUIRES: `module` is not
// null.
std::shared_ptr<BlockGate> mark_block(const std::shared_ptr<torch::nn::Module>& module);

template <class Holder>
struct HolderTraits {  // a torch::nn::ModuleHolder
  using Impl = typename Holder::ContainedType;
  static std::shared_ptr<Impl> module_of(const Holder& holder) { return holder.ptr(); }
};

template <class Module>
struct HolderTraits<std::shared_ptr<Module>> {
  using Impl = Module;
  static std::shared_ptr<Impl> module_of(const std::shared_ptr<Module>& module) { return module; }
};

}  // namespace detail

// Holder: a torch::nn::ModuleHolder (GptLayer) or a std::shared_ptr to a module.
template <class Holder>
class Block {
 public:
  using Impl = typename detail::HolderTraits<Holder>::Impl;

  // An empty block, to be assigned later. Running it is an error.
  Block(std::nullptr_t) {}
  // REQUIRES: `holder` is not empty.
  explicit Block(const Holder& holder)
      : module_(detail::HolderTraits<Holder>::module_of(holder)),
        gate_(detail::mark_block(module_)) {}

  Impl* operator->() const { return module_.get(); }
  Impl& operator*() const { return *module_; }
  explicit operator bool() const { return module_ != nullptr; }
  const std::shared_ptr<Impl>& ptr() const { return module_; }
  Holder holder() const { return Holder(module_); }

  const std::shared_ptr<detail::BlockGate>& gate() const { return gate_; }  // for cox::run

 private:
  std::shared_ptr<Impl> module_;
  std::shared_ptr<detail::BlockGate> gate_;
};

template <class Module>
Block(std::shared_ptr<Module>) -> Block<std::shared_ptr<Module>>;

}  // namespace cox
