// Blocks in FP8 through cox::run: formats of blocks inside of blocks, and running again.
#include "fp8_support.h"
#include "tests/sdk/memory/recompute_support.h"

#include <doctest/doctest.h>

namespace {

using namespace fp8_test;
using cox::Precision;

struct InnerImpl : torch::nn::Module {
  InnerImpl() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  Tensor forward(const Tensor& x) { return torch::tanh(linear->forward(x)); }
  torch::nn::Linear linear;
};
TORCH_MODULE(Inner);

// Hands its own input straight on, which is a leaf that requires gradients when it runs again.
struct OuterImpl : torch::nn::Module {
  OuterImpl()
      : inner(register_module("inner", Inner())),
        linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  Tensor forward(const Tensor& x) {
    const Tensor y = cox::run(inner, &InnerImpl::forward, x);
    return cox::run(inner, &InnerImpl::forward, linear->forward(y));
  }
  cox::Block<Inner> inner;
  torch::nn::Linear linear;
};
TORCH_MODULE(Outer);

struct NetImpl : torch::nn::Module {
  NetImpl() : outer(register_module("outer", Outer())) {}
  Tensor forward(const Tensor& x) { return cox::run(outer, &OuterImpl::forward, x); }
  cox::Block<Outer> outer;
};
TORCH_MODULE(Net);

struct Step {
  std::vector<Tensor> tensors;
  std::vector<Fp8Counts> counts;
};

// One step with blocks 0 (outer) and 1 (inner) in these formats.
Step step(Precision outer, Precision inner, cox::MemoryAction action) {
  at::manual_seed(5);
  Net net;
  auto registry = *memory_test::BlockRegistry::discover(*net);
  REQUIRE(registry.size() == 2);
  memory_test::steer(registry, {action});
  std::vector<std::shared_ptr<Fp8Block>> fp8;
  for (std::size_t b = 0; b < 2; ++b) {
    fp8.push_back(block_of({cox::Fp8Scaling::delayed, cox::Fp8Granularity::tensor, 4, 0}));
    registry.set_fp8(cox::BlockId(static_cast<cox::BlockId::rep>(b)), fp8.back());
  }
  registry.set_precision(cox::BlockId(0), outer);
  registry.set_precision(cox::BlockId(1), inner);
  const Tensor leaf = at::randn({4, 8}).requires_grad_();
  const Tensor y = net->forward(leaf * 1);
  y.to(at::kFloat).pow(2).sum().backward();
  Step seen;
  seen.tensors = {y.detach(), leaf.grad()};
  for (const Tensor& parameter : net->parameters()) seen.tensors.push_back(parameter.grad());
  for (const auto& block : fp8) seen.counts.push_back(block->take_counts());
  CHECK(registry.pinned().empty());
  return seen;
}

}  // namespace

TEST_SUITE("sdk.precision.fp8_blocks") {
  TEST_CASE("blocks in blocks keep every bit and count once when the outer one runs again") {
    for (const Precision outer : {Precision::fp32, Precision::bf16, Precision::fp8}) {
      for (const Precision inner : {Precision::fp32, Precision::bf16, Precision::fp8}) {
        CAPTURE(cox::to_string(outer));
        CAPTURE(cox::to_string(inner));
        const Step kept = step(outer, inner, cox::MemoryAction::keep);
        const Step again = step(outer, inner, cox::MemoryAction::recompute);
        CHECK(blocks_test::same_bits(kept.tensors, again.tensors));
        CHECK((kept.counts == again.counts));
        CHECK((kept.counts[0].sampled > 0) == (outer == Precision::fp8));
        CHECK((kept.counts[1].sampled > 0) == (inner == Precision::fp8));
      }
    }
  }
}
