// An own loop in mixed precision. The model is in bf16 with fp32 master weights, and computes in
// fp16 or another format. The loop has a loss scaler and a moving average of the weights.
//
//   mixed_precision [fp32|bf16|fp16]
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "coxswain/coxswain.h"

namespace {

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(8, 64))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(64, 1))};

  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x))); }
};
TORCH_MODULE(Net);

cox::Precision precision_of(const cox::Session& session) {
  if (session.arguments().empty()) return cox::Precision::fp16;
  for (const cox::Precision format :
       {cox::Precision::fp32, cox::Precision::bf16, cox::Precision::fp16}) {
    if (session.arguments()[0] == cox::to_string(format)) return format;
  }
  throw cox::Error(
      cox::invalid_argument("expected fp32, bf16 or fp16, found " + session.arguments()[0]));
}

torch::Tensor loss_of(Net& model, const torch::Tensor& x) {
  return torch::mse_loss(model(x).to(torch::kFloat), x.sum(1, true).to(torch::kFloat));
}

}  // namespace

// [loop]
int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "mixed_precision"});
  const cox::Precision format = precision_of(session);
  if (auto status = cox::can_run(format, at::kCPU); !status.ok()) throw cox::Error(status);

  torch::manual_seed(1);  // the same data on each rank: nothing is averaged here
  Net model;
  model->to(torch::kBFloat16);                      // 2 bytes a parameter ...
  cox::MasterWeights masters(model->parameters());  // ... and 4 for what the optimizer adds up
  cox::AdamW optimizer(masters.tensors(), {.lr = 3e-3});
  cox::LossScaler scaler(session, {.growth_interval = 50});
  cox::WeightAverage average(*model, {.decay = 0.98});

  int skipped = 0;
  for (int i = 0; i < 200; ++i) {
    auto step = session.step();
    const auto x = torch::randn({32, 8});
    torch::Tensor loss;
    {
      cox::PrecisionScope scope(at::kCPU, format);
      loss = loss_of(model, x.to(torch::kBFloat16));
    }
    scaler.scale(loss).backward();
    masters.take_gradients();
    scaler.unscale(optimizer);
    step.gradient_norm(cox::clip_by_global_norm(masters.tensors(), 10.0));
    if (!scaler.step(optimizer)) ++skipped;  // all ranks take the same branch
    scaler.update();
    optimizer.zero_grad();
    masters.give_weights();
    average.update();
    step.loss(loss.item<double>(), 32);
    if (session.stop_requested_anywhere()) break;  // equal on all ranks, as scaler.step() needs it
  }

  const auto x = torch::randn({256, 8}).to(torch::kBFloat16);
  const torch::NoGradGuard no_grad;
  const double last = loss_of(model, x).item<double>();
  cox::AveragedWeights scope(average);
  const double averaged = loss_of(model, x).item<double>();
  if (session.rank() == 0) {
    std::printf("loss %.4f, with averaged weights %.4f; scale %g, %d steps skipped\n", last,
                averaged, static_cast<double>(scaler.value().scale), skipped);
  }
  session.finish();
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/loop]
