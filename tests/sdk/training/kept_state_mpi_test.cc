// Session::keep saves what a loop has beside weights and optimizers: which gradients are there, and
// buffers of each rank.
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "coxswain/session.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/shared_folder.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Tensors = std::vector<at::Tensor>;
using Flags = std::vector<std::string>;

constexpr int kToTheEnd = std::numeric_limits<int>::max();

// Two heads that take turns, and a count that only rank 0 changes.
struct TurnsImpl : torch::nn::Module {
  TurnsImpl() {
    torch::manual_seed(3);
    body = register_module("body", torch::nn::Linear(4, 4));
    heads[0] = register_module("even", torch::nn::Linear(4, 1));
    heads[1] = register_module("odd", torch::nn::Linear(4, 1));
    bad = register_buffer("bad", torch::zeros({}));
  }
  at::Tensor loss(std::int64_t batch, int rank) {
    const at::Tensor x = torch::sin(torch::arange(12, torch::kFloat).view({3, 4}) + batch);
    if (rank == 0 && batch % 3 == 1) bad.add_(1);
    return (heads[batch % 2](torch::tanh(body(x))) / (1 + bad)).pow(2).mean();
  }
  torch::nn::Linear body{nullptr};
  torch::nn::Linear heads[2]{nullptr, nullptr};
  at::Tensor bad;
};
TORCH_MODULE(Turns);

// Trains 9 batches, or leaves the loop after `batches`. Returns the weights and buffers.
Tensors train(const Flags& flags, int batches = kToTheEnd) {
  Session session = solo_session(flags);
  Turns net;
  session.adopt(*net);
  torch::optim::Adam optimizer(net->parameters(), 0.05);
  std::int64_t epoch = 0, batch = 0;
  for (; batch < 9; ++batch) {
    session.keep(optimizer, epoch, batch);
    if (batches-- == 0) return {};
    optimizer.zero_grad(/*set_to_none=*/false);
    net->loss(batch, session.rank()).backward();
    optimizer.step();
  }
  Tensors state;
  for (const at::Tensor& p : net->parameters()) state.push_back(p.detach().clone());
  state.push_back(net->bad.clone());
  session.finish();
  return state;
}

// Steps the body at every second batch only.
void train_by_turns(const Flags& flags) {
  Session session = solo_session(flags);
  Turns net;
  session.adopt(*net);
  torch::optim::SGD body(net->body->parameters(), 0.05);
  Tensors parameters = net->heads[0]->parameters();
  for (const at::Tensor& p : net->heads[1]->parameters()) parameters.push_back(p);
  torch::optim::SGD heads(parameters, 0.05);
  std::int64_t epoch = 0, batch = 0;
  for (; batch < 4; ++batch) {
    session.keep({body, heads}, epoch, batch);
    heads.zero_grad();
    net->loss(batch, 1).backward();
    heads.step();
    if (batch % 2 == 0) continue;
    body.step();
    body.zero_grad();
  }
  session.finish();
}

// Returns what the process writes to standard error meanwhile.
std::string errors_of(const std::function<void()>& run) {
  const TempFolder folder;
  const std::string path = (folder.path() / "errors").string();
  const int before = ::dup(STDERR_FILENO);
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  REQUIRE(file >= 0);
  ::dup2(file, STDERR_FILENO);
  run();
  ::dup2(before, STDERR_FILENO);
  ::close(file);
  ::close(before);
  std::ifstream text(path);
  return {std::istreambuf_iterator<char>(text), {}};
}

}  // namespace

TEST_SUITE("what Session::keep saves beside weights") {
  TEST_CASE(
      "gradients that are cleared in place, and each rank's own buffers, go on as they were") {
    auto probe = solo_session();
    const SharedFolder folder(probe);
    probe.finish();
    const std::string directory = "--cox.checkpoint.directory=" + folder.text();
    const Tensors whole = train({});
    train({directory, "--cox.checkpoint.every_steps=4"}, 6);
    const Tensors resumed = train({directory, "--cox.checkpoint.resume=on"});
    REQUIRE(resumed.size() == whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      CAPTURE(i);
      CHECK(sdk_test::same_bits(resumed[i], whole[i]));
    }
  }

  TEST_CASE("a save beside a gradient that waits for its update is told, one without is not") {
    bool is_root = false;
    const auto told = [&](const char* every) {
      auto probe = solo_session();
      const SharedFolder folder(probe);
      is_root = probe.rank() == 0;
      probe.finish();
      const std::string errors = errors_of([&] {
        train_by_turns(
            {"--cox.checkpoint.directory=" + folder.text(), every, "--cox.run.log=info"});
      });
      return errors.find("found parameter body.weight whose gradient waits") != errors.npos;
    };
    const bool is_told = told("--cox.checkpoint.every_steps=3");
    CHECK(is_told == is_root);
    CHECK_FALSE(told("--cox.checkpoint.every_steps=2"));
  }
}
