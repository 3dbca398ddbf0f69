// Backward passes that run another one inside, as a program's own checkpointing does. A gradient
// then completes more than once.
#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "coxswain/reducer.h"
#include "tests/sdk/session/solo.h"

#include <doctest/doctest.h>

using namespace cox;

namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor modulated(const at::Tensor& x, const at::Tensor& weight) {
  return (x * weight).sin();
}

// Recomputes modulated() in its backward pass, and runs an inner backward pass on the result.
class Checkpointed : public torch::autograd::Function<Checkpointed> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight) {
    ctx->save_for_backward({x});
    ctx->saved_data["weight"] = weight;
    const torch::NoGradGuard no_grad;
    return modulated(x, weight);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               const torch::autograd::tensor_list& gradients) {
    const torch::AutoGradMode enabled(true);
    const at::Tensor x = ctx->get_saved_variables()[0].detach().requires_grad_();
    modulated(x, ctx->saved_data["weight"].toTensor()).backward(gradients[0]);
    return {x.grad(), at::Tensor()};
  }
};

enum class Weights { shared, own };  // weights in the two functions

at::Tensor loss_of(const Tensors& of, Weights weights, int rank, int step) {
  const at::Tensor x = at::linspace(0.1, 1.3, 8) * (1 + rank + 0.5 * step);
  at::Tensor y = x * of[0];
  y = Checkpointed::apply(y, of[1]);
  y = Checkpointed::apply(y * of[2], of[weights == Weights::shared ? 1 : 3]);
  return y.sum();
}

Tensors parameters() {
  torch::manual_seed(5);
  Tensors made;
  for (int i = 0; i < 4; ++i) made.push_back(torch::rand({8}).set_requires_grad(true));
  return made;
}

// Computes gradients by a rank's plain backward pass.
Tensors own_gradients(const Tensors& of, Weights weights, int rank, int step) {
  Tensors copies;
  for (const at::Tensor& p : of) copies.push_back(p.detach().clone().set_requires_grad(true));
  loss_of(copies, weights, rank, step).backward();
  Tensors out;
  for (const at::Tensor& copy : copies) out.push_back(copy.grad());
  return out;
}

void check_average(const Tensors& of, Weights weights, int world, int step) {
  for (std::size_t p = 0; p < of.size(); ++p) {
    if (weights == Weights::shared && p == 3) continue;  // used nowhere
    at::Tensor sum = at::zeros({8}, at::kDouble);
    double total = 0;
    for (int rank = 0; rank < world; ++rank) {
      sum += own_gradients(of, weights, rank, step)[p].to(at::kDouble) * (1.0 + rank);
      total += 1.0 + rank;
    }
    CAPTURE(p);
    CHECK(at::allclose(of[p].grad().to(at::kDouble), sum / total, 1e-5, 1e-7));
  }
}

// Returns how many steps had to be repeated.
int train(Weights weights, const std::vector<std::string>& settings) {
  auto session = solo_session(settings);
  const Tensors of = parameters();
  Reducer reducer(session, of);
  int repeats = 0;
  for (int i = 0; i < 6; ++i) {
    ReductionOutcome outcome;
    do {
      for (const at::Tensor& p : of) p.mutable_grad().reset();
      auto step = session.step();
      reducer.backward(step, loss_of(of, weights, session.rank(), i), 1.0 + session.rank());
      outcome = reducer.average(step);
      repeats += outcome.repeat ? 1 : 0;
    } while (outcome.repeat && repeats < 20);
    REQUIRE_FALSE(outcome.repeat);
    check_average(of, weights, session.world_size(), i);
  }
  return repeats;
}

}  // namespace

TEST_SUITE("backward within backward") {
  TEST_CASE(
      "a gradient that comes again after it was sent repeats the step, once, and none is lost") {
    CHECK(train(Weights::shared, {}) == 1);
  }

  TEST_CASE("a hook that is called again for nothing repeats no step") {
    CHECK(train(Weights::own, {}) == 0);
  }

  TEST_CASE("nothing is lost in reproducible mode either") {
    for (const Weights weights : {Weights::shared, Weights::own})
      CHECK(train(weights, {"--cox.reduction.reproducible=on"}) < 4);
  }
}
