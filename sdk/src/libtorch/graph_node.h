// Nodes of autograd's graph that we make. LibTorch holds them by std::shared_ptr up to 2.12, and by
// c10::intrusive_ptr from 2.13 on.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace cox::detail {

using NodePointer = decltype(torch::autograd::Edge::function);

// Returns a new node of the kind `N`, in the pointer that Edge takes.
template <class N, class... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (std::is_convertible_v<std::shared_ptr<N>, NodePointer>) {
    return std::make_shared<N>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<N>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace cox::detail
