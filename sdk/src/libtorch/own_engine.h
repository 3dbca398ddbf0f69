// OwnEngine is an autograd engine that takes the place of LibTorch's. LibTorch starts threads for
// devices and for deep passes once in a process, for the engine that runs first; an engine that
// comes later starts its own. Its user never destroys it, because its threads may outlive main().
#pragma once

#include <torch/csrc/autograd/engine.h>

#include <mutex>

namespace cox::detail {

class OwnEngine : public torch::autograd::Engine {
 public:
  ~OwnEngine() override { stop(); }

 protected:
  // A pass calls it before Engine::execute(). Any thread.
  void start_threads_once() {
    std::call_once(started_, [this] {
      initialize_device_threads_pool();
      if (thread_pool_shared_ == nullptr) start_device_threads();
    });
  }

 private:
  std::once_flag started_;
};

}  // namespace cox::detail
