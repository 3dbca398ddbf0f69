// owned(f) hands a function with captures to cox::run, which copies it.
//
//   cox::run(block, cox::owned([scale](GptLayerImpl& layer, const at::Tensor& x) { ... }), x);
//
// The function may run again during the backward pass, after the scope that made it is gone.
// Capture by value only: a reference dangles then, and C++ cannot see that it is one. A captured
// tensor is kept alive but is no input of the block; pass it as one where its gradient or its size
// matters.
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

namespace cox {

template <class F>
struct Owned {
  F function;
};

template <class F>
[[nodiscard]] Owned<std::decay_t<F>> owned(F&& function) {
  using Function = std::decay_t<F>;
  static_assert(std::is_copy_constructible_v<Function>,
                "cox::owned: the function must be copyable, because it may run again");
  return {std::forward<F>(function)};
}

template <class F>
void owned(std::reference_wrapper<F>) = delete;  // would dangle: pass the function itself

}  // namespace cox
