// block() marks a block by hand, inside a forward pass. Operators that run while the scope lives
// belong to the block of the given name, whichever parameters they read. Use block() for parts that
// the division by modules cannot see: half of a module, or a function without parameters that saves
// much (an attention core, a loss over large logits).
//
//   at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
//     const auto part = cox::block("attention");
//     return at::softmax(q.matmul(k.transpose(-2, -1)), -1).matmul(v);
//   }
//
// Thread rule: the training thread. Does not communicate. A scope does nothing with gradients off,
// and without a session that follows the model.
#pragma once

#include <string_view>

namespace cox {

namespace detail {
class SavedTensorFrame;
}  // namespace detail

// BlockScope is the scope that block() opens.
//
// The name is a block of the model or an entry of the setting blocks.scopes. The program sets
// blocks.scopes in SessionOptions::config, or the user on the command line
// (--cox.blocks.scopes=attention). Such a block is measured, planned and shown like any other. A
// name that is opened several times in a pass is one block, with the times, bytes and number
// format of all its scopes.
//
// Memory actions hold for regions. A region reaches from a block's first operator of the pass to
// the first operator of the next block that has not run yet. So operators after the scope, within
// the enclosing block, get the action of the scope's block. A second scope of the same name gets
// the action of the region around it.
class [[nodiscard]] BlockScope {
 public:
  // Throws cox::Error for a name that is neither a block nor in blocks.scopes.
  explicit BlockScope(std::string_view name);
  ~BlockScope();
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  detail::SavedTensorFrame* frame_ = nullptr;  // follows the scope and outlives it
};

// Returns the scope. REQUIRES: scopes end in the reverse order of their beginning.
inline BlockScope block(std::string_view name) {
  return BlockScope(name);
}

}  // namespace cox
