// An own loop that averages through Reducer and runs its layers as blocks. Quoted by
// docs/watching.md.
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "coxswain/coxswain.h"

namespace {

// [model]
struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(8, 32))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(32, 1))};

  torch::Tensor forward(const torch::Tensor& x) { return second(torch::relu(first(x))); }
};
TORCH_MODULE(Net);
// [/model]

}  // namespace

// [loop]
int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "own_loop"});
  torch::manual_seed(1);
  Net model;
  cox::Reducer reducer(session, *model);  // finds the blocks; all ranks get rank 0's weights
  torch::optim::SGD optimizer(model->parameters(), 0.05);
  torch::manual_seed(100 + static_cast<std::uint64_t>(session.rank()));  // other data on each rank

  double loss_of_all = 0;
  for (int i = 0; i < 100; ++i) {
    auto step = session.step();
    for (const auto which : {cox::MicroBatch::more, cox::MicroBatch::last}) {
      const auto x = torch::randn({16, 8});
      torch::Tensor loss;
      {
        auto forward = step.phase(cox::Phase::forward);
        loss = torch::mse_loss(model(x), x.sum(1, true));
      }
      reducer.backward(step, loss, 16, which);  // counts as 16 samples in the average
    }
    step.samples(32);
    const cox::ReductionOutcome outcome = reducer.average(step);  // collective
    auto update = step.phase(cox::Phase::optimizer);
    if (outcome.finite) optimizer.step();  // all ranks take the same branch
    optimizer.zero_grad();
    loss_of_all = outcome.loss;
    if (outcome.stop) break;  // somebody got SIGTERM; all ranks leave after the same step
  }
  session.finish();
  if (session.rank() == 0) std::printf("loss %.4f over all ranks\n", loss_of_all);
} catch (const std::exception& error) {
  return cox::report(error);
}
// [/loop]
