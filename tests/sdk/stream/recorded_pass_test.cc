// A recorded pass repeats the program's pass: the same operators in the same order, and the same
// bits of gradients, in every repetition.
#include "sdk/src/stream/recorded_pass.h"

#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>
#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sdk/src/stream/operator_stream.h"
#include "sdk/src/stream/saved_tensors.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/stream/models.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

using at::Tensor;

class Names final : public OperatorListener {
 public:
  bool wants_calls() const override { return true; }
  void begin(const OperatorCall& call) override {
    names_.push_back(call.handle.operator_name().name);
  }
  std::vector<std::string> take() { return std::exchange(names_, {}); }

 private:
  std::vector<std::string> names_;
};

std::vector<Tensor> gradients_of(const torch::nn::Module& model) {
  std::vector<Tensor> gradients;
  for (const Tensor& p : model.parameters()) {
    gradients.push_back(p.grad().defined() ? p.grad().clone() : Tensor());
    p.mutable_grad().reset();
  }
  return gradients;
}

bool same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Tensor& x, const Tensor& y) {
    return x.defined() == y.defined() && (!x.defined() || sdk_test::same_bits(x, y));
  });
}

Status close_at(RecordedPass& pass, const Tensor& loss) {
  const torch::autograd::Edge root = torch::autograd::impl::gradient_edge(loss);
  const Tensor one = at::ones_like(loss);
  return pass.close({&root, 1}, {&one, 1});
}

// Records whole steps, as an adopted loop's trial does.
class WholeStep final : public OperatorListener {
 public:
  bool wants_calls() const override { return true; }
  void begin(const OperatorCall& call) override { pass.begin(call); }
  void end(std::span<const c10::IValue> results) override { pass.end(results); }
  void failed() noexcept override { pass.failed(); }
  void backward_begins(const BackwardPass& it) override { pass.record_backward(it); }
  void backward_ended(BackwardKind) override { pass.end_backward(); }

  RecordedPass pass;
};

TEST_SUITE("recorded pass") {
  TEST_CASE("a step with several backward passes runs again as a whole") {
    REQUIRE(install_saved_tensor_engine().ok());
    const stream_models::ModelCase it = stream_models::all_models(1).front();
    WholeStep whole;
    {
      const StreamScope shown({&whole});
      it.loss(3).backward();
      const Tensor loss = it.loss(4);
      (loss * 2).backward({}, /*retain_graph=*/true);
      loss.square().backward();
      static_cast<void>(it.loss(5) * 3);  // follows the last backward pass
    }
    CHECK(whole.pass.backward_passes() == 3);
    REQUIRE(whole.pass.close_behind_backward().ok());
    const std::vector<Tensor> gradients = gradients_of(*it.model);
    for (int run = 0; run < 2; ++run) {
      CHECK_FALSE(whole.pass.run().defined());
      CHECK(same(gradients_of(*it.model), gradients));
      whole.pass.release();
    }
  }

  TEST_CASE("a whole step with a backward pass that cannot be repeated is refused") {
    REQUIRE(install_saved_tensor_engine().ok());
    const Tensor w = at::ones({4}).requires_grad_();
    WholeStep whole;
    {
      const StreamScope shown({&whole});
      (w * 2).sum().backward();
      (w * 3).backward(at::ones({4}));
    }
    CHECK(whole.pass.close_behind_backward().message().find("gradient passed to backward()") !=
          std::string::npos);
  }

  TEST_CASE("every model runs again with its own operators and gradients") {
    REQUIRE(install_saved_tensor_engine().ok());
    for (const stream_models::ModelCase& it : stream_models::all_models(1)) {
      CAPTURE(it.name);
      RecordedPass pass;
      Names names;
      Tensor loss;
      {
        const StreamScope shown({&names, &pass});
        loss = it.loss(3);
      }
      REQUIRE(close_at(pass, loss).ok());
      const std::vector<std::string> expected = names.take();
      loss.backward();
      const std::vector<Tensor> gradients = gradients_of(*it.model);
      for (int run = 0; run < 2; ++run) {
        Tensor again;
        {
          const StreamScope shown({&names});
          again = pass.run();
        }
        CHECK(names.take() == expected);
        CHECK(sdk_test::same_bits(again.detach(), loss.detach()));
        again.backward();
        CHECK(same(gradients_of(*it.model), gradients));
        pass.release();
      }
    }
  }

  TEST_CASE("an operator that throws is no part of the pass") {
    const Tensor w = at::ones({4}).requires_grad_();
    RecordedPass pass;
    Tensor loss;
    {
      const StreamScope shown({&pass});
      const Tensor x = w * 2;
      CHECK_THROWS(static_cast<void>(x + at::ones({3})));
      loss = (x * x).sum();
    }
    REQUIRE(close_at(pass, loss).ok());
    CHECK(sdk_test::same_bits(pass.run().detach(), loss.detach()));
  }

  TEST_CASE("a pass whose backward cannot be repeated is refused with the reason") {
    const Tensor w = at::ones({4}).requires_grad_();
    const Tensor elsewhere = (w * 3).sum();
    const auto refusal = [&](const Tensor& root, double gradient, std::size_t roots) {
      RecordedPass pass;
      Tensor loss;
      {
        const StreamScope shown({&pass});
        loss = (w * 2).sum();
      }
      const torch::autograd::Edge edge =
          torch::autograd::impl::gradient_edge(root.defined() ? root : loss);
      const std::vector<torch::autograd::Edge> edges(roots, edge);
      const std::vector<Tensor> gradients(roots, at::full({}, gradient));
      return pass.close(edges, gradients).message();
    };
    CHECK(refusal({}, 1, 1).empty());
    CHECK(refusal(elsewhere, 1, 1).find("a scalar from outside this step") != std::string::npos);
    CHECK(refusal({}, 2, 1).find("a gradient passed to backward()") != std::string::npos);
    CHECK(refusal({}, 1, 2).find("2 tensors") != std::string::npos);
  }

  TEST_CASE("a pass that writes to a leaf is refused, so that no run repeats the write") {
    const Tensor w = at::ones({4}).requires_grad_();
    RecordedPass pass;
    Tensor loss;
    {
      const StreamScope shown({&pass});
      {
        const at::NoGradGuard no_grad;
        w.mul_(2);
      }
      loss = (w * 2).sum();
    }
    CHECK(close_at(pass, loss).message().find("a write to one with 4 elements") !=
          std::string::npos);
  }

  TEST_CASE("a pass that reads a graph from before is refused with what it read") {
    const Tensor w = at::ones({4}).requires_grad_();
    const Tensor before = w * 3;
    RecordedPass pass;
    Tensor loss;
    {
      const StreamScope shown({&pass});
      loss = (before * 2).sum();
    }
    CHECK(close_at(pass, loss).message().find("4 elements with an earlier history") !=
          std::string::npos);
  }

  TEST_CASE("memory of the program's own is read as it was, also when it is gone") {
    const Tensor w = at::ones({4}).requires_grad_();
    RecordedPass pass;
    Tensor loss;
    {
      std::vector<float> raw = {1, 2, 3, 4};
      const StreamScope shown({&pass});
      const Tensor first = torch::from_blob(raw.data(), {4}).clone();
      raw.assign({5, 6, 7, 8});  // the next batch, which no counter sees
      const Tensor second = torch::from_blob(raw.data(), {4}).clone();
      loss = (w * first * second).sum();
    }
    REQUIRE(close_at(pass, loss).ok());
    for (int run = 0; run < 2; ++run) {
      CHECK(sdk_test::same_bits(pass.run().detach(), loss.detach()));
      pass.release();
    }
    RecordedPass* const all[] = {&pass};
    CHECK(RecordedPass::held_bytes(all) == 2 * 16);
  }

  TEST_CASE("an operator that the program registered is run by the program alone") {
    static int calls = 0;
    torch::Library library(torch::Library::DEF, "mine", std::nullopt, __FILE__, __LINE__);
    library.def("doubled(Tensor x) -> Tensor",
                torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, [](const Tensor& x) {
                  ++calls;
                  return x.mul(2);
                }));
    const auto doubled = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("mine::doubled", "")
                             .typed<Tensor(const Tensor&)>();
    const Tensor weight = at::ones({3}, at::requires_grad());
    RecordedPass pass;
    Tensor loss;
    {
      const StreamScope shown({&pass});
      loss = (doubled.call(at::ones({3})) * weight).sum();
    }
    const Status closed = close_at(pass, loss);
    CHECK_FALSE(closed.ok());
    CHECK(closed.message().find("found mine::doubled, which the program registered") !=
          std::string::npos);
    CHECK(calls == 1);
  }

  TEST_CASE("too much memory of the program's own is refused") {
    const Tensor w = at::ones({1}).requires_grad_();
    std::vector<float> raw((std::size_t{17} << 20) + 1);
    RecordedPass pass;
    Tensor loss;
    {
      const StreamScope shown({&pass});
      loss =
          (torch::from_blob(raw.data(), {static_cast<std::int64_t>(raw.size())}).sum() * w).sum();
    }
    CHECK(close_at(pass, loss).message().find("at most 64 MiB") != std::string::npos);
  }

  TEST_CASE("a backward pass within the forward pass runs again, with its derivatives") {
    REQUIRE(install_saved_tensor_engine().ok());
    const Tensor w = torch::linspace(-1, 1, 8).requires_grad_();
    const Tensor x = torch::linspace(0, 2, 8).requires_grad_();
    RecordedPass pass;
    Tensor loss;
    {
      const StreamScope shown({&pass});
      const Tensor y = (w * x).tanh();
      const Tensor slope =
          torch::autograd::grad({y}, {x}, {at::ones_like(y)}, std::nullopt, true)[0];
      loss = slope.pow(2).sum() + y.sum();
    }
    REQUIRE(close_at(pass, loss).ok());
    loss.backward();
    const Tensor expected = w.grad().clone();
    for (int run = 0; run < 2; ++run) {
      w.mutable_grad().reset();
      pass.run().backward();
      CHECK(sdk_test::same_bits(w.grad(), expected));
      pass.release();
    }
  }
}

}  // namespace
