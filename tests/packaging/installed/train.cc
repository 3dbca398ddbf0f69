// Every header of the SDK, compiled outside of its tree, and a step whose layers compute in tiles.
#include <coxswain/coxswain.h>
#include <torch/torch.h>

bool tiles_compute() {
  torch::nn::Linear layer(4, 4);
  const at::Tensor x = torch::ones({6, 4});
  const at::Tensor out =
      cox::tile([&](const at::Tensor& rows) { return torch::gelu(layer(rows)); }, x, 0, 3);
  out.sum().backward();
  return out.size(0) == 6 && layer->weight.grad().defined();
}
