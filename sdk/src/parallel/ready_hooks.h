// ReadyHooks tells when the gradient of a parameter is complete, by autograd's post-accumulate
// hooks. Each tensor has one slot for such a hook; whatever is in it already is kept and called
// first. The hooks end with this object. Whoever trains installs and removes them; `ready` is
// called by the thread that runs backward, which need not be that one.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace cox::detail {

class ReadyHooks {
 public:
  using Ready = std::function<void(std::size_t parameter)>;  // index in `parameters`

  // Hooks those parameters that require a gradient.
  ReadyHooks(std::span<const at::Tensor> parameters, Ready ready);
  ~ReadyHooks();
  ReadyHooks(const ReadyHooks&) = delete;
  ReadyHooks& operator=(const ReadyHooks&) = delete;

 private:
  struct Listener;
  std::shared_ptr<Listener> listener_;
  std::vector<at::Tensor> parameters_;
};

}  // namespace cox::detail
