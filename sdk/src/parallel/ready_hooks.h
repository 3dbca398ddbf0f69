// ReadyHooks calls `ready` when a parameter's gradient is complete, by autograd's post-accumulate
// hooks. Each tensor has one slot for such a hook; an existing hook stays and runs first. The hooks
// end with the object. The training thread installs and removes them; the thread that runs backward
// calls `ready`.
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

  // Hooks the parameters that require a gradient.
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
