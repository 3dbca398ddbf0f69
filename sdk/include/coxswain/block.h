// block() sets a boundary of a block by hand, inside a forward pass: what is computed while the
// scope lives belongs to the block of that name, whichever parameters it reads. It is for parts
// that the division by modules cannot see: a function without parameters that saves much (an
// attention core, a loss over large logits), or half of a module.
//
//   at::Tensor scores(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
//     const auto part = cox::block("attention");
//     return at::softmax(q.matmul(k.transpose(-2, -1)), -1).matmul(v);
//   }
//
// The name is that of a block of the model, or one of the setting blocks.scopes, which the program
// gives in SessionOptions::config or its user at start (--cox.blocks.scopes=attention). Such a
// block is measured, planned and shown like any other. A name that is opened several times in a
// pass is one block: its times, bytes and number format are those of all its scopes.
//
// Memory actions hold for regions: from a block's first operator of the pass to that of the next
// block that has not run yet. So what follows the scope within the block around it gets the action
// of the scope's block, and a second scope of that name the action of the region that it lies in.
//
// Called by the thread that trains. Communicates nothing; without a session that follows the model,
// and with gradients off, it does nothing.
#pragma once

#include <string_view>

namespace cox {

namespace detail {
class SavedTensorFrame;
}  // namespace detail

class [[nodiscard]] BlockScope {
 public:
  // Throws cox::Error for a name that is neither a block's nor in blocks.scopes.
  explicit BlockScope(std::string_view name);
  ~BlockScope();
  BlockScope(const BlockScope&) = delete;
  BlockScope& operator=(const BlockScope&) = delete;

 private:
  detail::SavedTensorFrame* frame_ = nullptr;  // that follows it; outlives the scope
};

// Returns the scope. Scopes end in the reverse order of their beginning.
inline BlockScope block(std::string_view name) {
  return BlockScope(name);
}

}  // namespace cox
