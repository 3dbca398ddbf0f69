// Creates nodes of autograd's graph. LibTorch holds nodes by std::shared_ptr up to 2.12, and by
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
inline constexpr bool kNodesAreShared =
    std::is_same_v<NodePointer, std::shared_ptr<torch::autograd::Node>>;

// WeakNode distinguishes a node from a later one at the same address. lock() returns a NodePointer.
using WeakNode = std::conditional_t<kNodesAreShared, std::weak_ptr<torch::autograd::Node>,
                                    c10::weak_intrusive_ptr<torch::autograd::Node>>;

// Returns a new node of type `N`, as the pointer type of Edge.
template <class N, class... Arguments>
auto make_node(Arguments&&... arguments) {
  if constexpr (kNodesAreShared) {
    return std::make_shared<N>(std::forward<Arguments>(arguments)...);
  } else {
    return c10::make_intrusive<N>(std::forward<Arguments>(arguments)...);
  }
}

}  // namespace cox::detail
