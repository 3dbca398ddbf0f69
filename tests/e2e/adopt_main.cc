// A plain loop with two lines of Coxswain, for adopt.py:
//   e2e_adopt STEPS [--ask | --same | --late | --beside | --aside | --returned | --weighted]
// --ask: the loop asks whether to stop; --same: all ranks draw the same batches; --late: a layer is
// registered after adopt(); --beside: also trains a leaf outside all modules; --aside: backward()
// runs on another thread; --returned: torch::autograd::grad() takes the place of backward();
// --weighted: a second backward() of each step is given a gradient.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "coxswain/coxswain.h"

namespace {

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) model->push_back(torch::nn::Linear(64, 64));
  return model;
}

// Returns each rank's own data; the last rank's comes slowly.
torch::Tensor next_batch(const cox::Session& session) {
  const bool is_slow = session.rank() == session.world_size() - 1;
  std::this_thread::sleep_for(std::chrono::milliseconds(is_slow ? 12 : 2));
  return torch::randn({32, 64});
}

}  // namespace

int main(int argc, char** argv) try {
  auto session = cox::Session::start(argc, argv, {.program = "adopted"});
  const auto& arguments = session.arguments();
  const int steps = arguments.empty() ? 100 : std::stoi(arguments[0]);
  const std::string kind = arguments.size() > 1 ? arguments[1] : "";
  const bool asks = kind == "--ask", same = kind == "--same", is_late = kind == "--late";
  const bool is_beside = kind == "--beside", is_aside = kind == "--aside";
  const bool is_returned = kind == "--returned", is_weighted = kind == "--weighted";
  torch::manual_seed(same ? 1 : static_cast<std::uint64_t>(session.rank()) + 1);
  torch::nn::Sequential model = make_model();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  session.adopt(*model);
  if (is_late) {
    model->push_back(torch::nn::Linear(64, 64));
    optimizer.add_param_group(std::vector<torch::Tensor>(model[4]->parameters()));
  }
  const torch::Tensor scale = torch::ones({1}, torch::requires_grad());
  if (is_beside) optimizer.add_param_group(std::vector<torch::Tensor>{scale});
  int done = 0;
  for (; done < steps && !(asks && session.stop_requested()); ++done) {
    const torch::Tensor x = next_batch(session);
    optimizer.zero_grad();
    const torch::Tensor y = model->forward(x);
    const torch::Tensor loss = torch::mse_loss(is_beside ? y * scale : y, x.roll(1, 1));
    if (is_returned) {
      const auto gradients = torch::autograd::grad({loss}, model->parameters());
      for (std::size_t p = 0; p < gradients.size(); ++p)
        model->parameters()[p].mutable_grad() = gradients[p].clone();
    } else {
      is_aside ? std::thread([&loss] { loss.backward(); }).join() : loss.backward();
    }
    if (is_weighted) model->forward(x).mean().backward(torch::full({}, 0.5));
    optimizer.step();
    if (done == 0 && session.rank() == 0) {
      std::printf("page %s\n", session.status_address().c_str());
      std::fflush(stdout);
    }
  }
  session.finish();
  double sum = 0;
  for (const torch::Tensor& p : model->parameters()) sum += p.detach().abs().sum().item<double>();
  std::printf("rank %d: %d steps, weights %.17g\n", session.rank(), done, sum);
} catch (const std::exception& error) {
  return cox::report(error);
}
