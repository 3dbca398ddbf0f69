// Shared parts of the offload tests: small nets whose blocks run with or without an offloader, and
// a training step that returns every gradient.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/memory/offload.h"
#include "sdk/src/memory/tensor_memory.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/storage.h"

namespace offload_test {

using at::Tensor;
using cox::detail::Offloader;
using cox::detail::OffloadOptions;

// Returns the device of tensors made without naming a device.
inline c10::Device usual_device() {
  return at::empty({0}).device();
}

// Opens a frame that leaves the module's parameters and buffers in memory.
inline std::shared_ptr<cox::detail::OffloadFrame> frame_of(Offloader& offloader,
                                                           const std::string& name,
                                                           const torch::nn::Module& module) {
  auto frame = offloader.open_frame(name);
  for (const Tensor& tensor : module.parameters())
    frame->leave_alone(cox::detail::storage_impl(tensor));
  for (const Tensor& tensor : module.buffers())
    frame->leave_alone(cox::detail::storage_impl(tensor));
  return frame;
}

// Calls one block's function as a module would be called; `name` is the block's.
template <class Function>
Tensor call(Offloader* offloader, const std::string& name, torch::nn::Module& module,
            const Function& function, const Tensor& x) {
  if (offloader == nullptr) return function(x);
  const auto frame = frame_of(*offloader, name, module);
  Tensor y;
  {
    const cox::detail::SavedTensorScope saving(*frame);
    y = function(x);
  }
  frame->leave();
  return y;
}

struct Net : torch::nn::Module {
  virtual Tensor forward(Tensor x, Offloader* offloader) = 0;
  virtual Tensor input() const = 0;
};

struct Mlp final : Net {
  explicit Mlp(int blocks = 4) {
    for (int i = 0; i < blocks; ++i) {
      up.push_back(register_module("up" + std::to_string(i), torch::nn::Linear(48, 96)));
      down.push_back(register_module("down" + std::to_string(i), torch::nn::Linear(96, 48)));
    }
  }
  Tensor forward(Tensor x, Offloader* offloader) override {
    for (std::size_t i = 0; i < up.size(); ++i) {
      const auto block = [&](const Tensor& in) {
        return in + down[i]->forward(torch::dropout(torch::gelu(up[i]->forward(in)), 0.2, true));
      };
      x = call(offloader, "mlp" + std::to_string(i), *this, block, x);
    }
    return x;
  }
  Tensor input() const override { return torch::linspace(-1, 1, 32 * 48).view({32, 48}); }
  std::vector<torch::nn::Linear> up, down;
};

struct ConvNet final : Net {
  ConvNet()
      : first(register_module("first", torch::nn::Conv2d(options(3, 8)))),
        norm(register_module("norm", torch::nn::BatchNorm2d(8))),
        second(register_module("second", torch::nn::Conv2d(options(8, 8)))) {}
  static torch::nn::Conv2dOptions options(int in, int out) {
    return torch::nn::Conv2dOptions(in, out, 3).padding(1);
  }
  Tensor forward(Tensor x, Offloader* offloader) override {
    const auto head = [&](const Tensor& in) {
      return torch::max_pool2d(norm->forward(first->forward(in)).relu_(), 2);
    };
    const auto tail = [&](const Tensor& in) { return torch::silu(second->forward(in)); };
    x = call(offloader, "conv0", *this, head, x);
    return call(offloader, "conv1", *this, tail, x);
  }
  Tensor input() const override { return torch::linspace(-1, 1, 4 * 3 * 256).view({4, 3, 16, 16}); }
  torch::nn::Conv2d first;
  torch::nn::BatchNorm2d norm;
  torch::nn::Conv2d second;
};

// Uses one weight in three blocks, twice in each.
struct SharedNet final : Net {
  SharedNet() : layer(register_module("layer", torch::nn::Linear(48, 48))) {}
  Tensor forward(Tensor x, Offloader* offloader) override {
    for (int i = 0; i < 3; ++i) {
      const auto block = [&](const Tensor& in) {
        return torch::tanh(layer->forward(torch::matmul(in, layer->weight.t())));
      };
      x = call(offloader, "shared" + std::to_string(i), *this, block, x);
    }
    return x;
  }
  Tensor input() const override { return torch::linspace(-1, 1, 32 * 48).view({32, 48}); }
  torch::nn::Linear layer;
};

// Hand-written attention: slices of one storage, transposed and expanded views, an edit in place
// before any save.
struct ViewNet final : Net {
  ViewNet()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({48})))),
        qkv(register_module("qkv", torch::nn::Linear(48, 144))) {}
  Tensor forward(Tensor x, Offloader* offloader) override {
    const auto block = [&](const Tensor& in) {
      const auto parts = qkv->forward(norm->forward(in)).view({4, 8, 3, 48}).unbind(2);
      const Tensor scores = torch::matmul(parts[0], parts[1].transpose(1, 2)).mul_(0.2);
      const Tensor mixed = torch::matmul(torch::softmax(scores, -1), parts[2]);
      const Tensor gate = mixed.mean(1, true).expand_as(mixed);
      return (in.view({4, 8, 48}) + mixed * gate * parts[0]).view({32, 48});
    };
    for (int i = 0; i < 3; ++i) x = call(offloader, "view" + std::to_string(i), *this, block, x);
    return x;
  }
  Tensor input() const override { return torch::linspace(-1, 1, 32 * 48).view({32, 48}); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear qkv;
};

inline std::vector<Tensor> take_gradients(torch::nn::Module& net) {
  std::vector<Tensor> gradients;
  for (Tensor& parameter : net.parameters()) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad() = Tensor();
  }
  return gradients;
}

// Runs forward and backward with the same random numbers every time. Returns the loss first.
inline std::vector<Tensor> step(Net& net, Offloader* offloader, int backward_passes = 1) {
  if (!cox::detail::install_saved_tensor_engine().ok()) throw std::runtime_error("engine");
  if (offloader != nullptr) offloader->begin_step();
  torch::manual_seed(5);
  const Tensor loss = net.forward(net.input(), offloader).square().mean();
  for (int i = 1; i <= backward_passes; ++i) {
    loss.backward({}, /*retain_graph=*/i < backward_passes);
  }
  std::vector<Tensor> result = take_gradients(net);
  result.push_back(loss.detach());
  return result;
}

inline bool same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!torch::equal(a[i], b[i])) return false;
  }
  return true;
}

// Counts live bytes above the level at construction.
class Counted {
 public:
  Counted() : memory_(usual_device()), start_((check(), memory_.count().live_bytes)) {
    memory_.reset_peak();
  }
  std::int64_t live() const { return memory_.count().live_bytes - start_; }
  std::int64_t peak() const { return memory_.count().peak_bytes - start_; }

 private:
  static void check() {
    if (!cox::detail::install_counting_allocator().ok()) throw std::runtime_error("allocator");
  }
  cox::detail::TensorMemory memory_;
  std::int64_t start_;
};

}  // namespace offload_test
