// The templates of the SDK, compiled outside of its tree: a block that is called, and one that is
// wrapped.
#include <coxswain/coxswain.h>
#include <torch/torch.h>

namespace {

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return cox::run(
        layer,
        [](torch::nn::LinearImpl& linear, const at::Tensor& in) { return linear.forward(in); }, x);
  }
  cox::Block<torch::nn::Linear> layer{register_module("layer", torch::nn::Linear(4, 4))};
};

}  // namespace

bool blocks_compute() {
  Net net;
  torch::nn::Sequential tail;
  tail->push_back(torch::nn::Linear(4, 2));
  const bool is_wrapped = cox::wrap(tail).empty();
  const at::Tensor out = tail->forward(net.forward(at::ones({3, 4})));
  out.sum().backward();
  return is_wrapped && out.size(0) == 3 && net.layer->weight.grad().defined();
}
