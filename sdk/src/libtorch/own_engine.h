// OwnEngine is an autograd engine that replaces LibTorch's. LibTorch starts threads for devices and
// for deep passes once in a process, for the first engine that runs; a later engine starts its own.
// Never destroyed, because its threads may outlive main().
#pragma once

#include <torch/csrc/autograd/engine.h>

#include <mutex>

namespace cox::detail {

class OwnEngine : public torch::autograd::Engine {
 public:
  ~OwnEngine() override { stop(); }

 protected:
  // Starts the threads. A pass calls the function before Engine::execute(). Any thread.
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
