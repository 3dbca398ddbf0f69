// What runs again when, and what becomes of graphs that are used in unusual ways.
#include <ATen/Context.h>
#include <c10/core/DefaultDtype.h>

#include "recompute_support.h"
#include "sdk/src/stream/saved_tensors.h"

#include <doctest/doctest.h>

namespace {

using namespace memory_test;

struct UnitImpl : torch::nn::Module {
  UnitImpl()
      : weight(register_parameter("weight", torch::linspace(0.5, 1.5, 4))),
        linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  Tensor forward(const Tensor& x) {
    ++begun;
    const Tensor y = torch::sigmoid(linear->forward(x) * weight) * x.exp();
    ++ended;
    return y;
  }
  Tensor weight;
  torch::nn::Linear linear;
  int begun = 0, ended = 0;
};
TORCH_MODULE(Unit);

// One block under one action; checked before unless told otherwise.
struct Steered {
  explicit Steered(MemoryAction action) {
    torch::manual_seed(5);
    block = cox::Block<Unit>(model.register_module("unit", Unit()));
    registry = std::make_unique<BlockRegistry>(*BlockRegistry::discover(model));
    steer(*registry, {action});
  }
  // Gets the first call's check over.
  Steered& checked() {
    cox::run(block, &UnitImpl::forward, input()).sum().backward();
    model.zero_grad();
    block->begun = block->ended = 0;
    return *this;
  }
  static Tensor input() { return torch::linspace(-1, 1, 8).view({2, 4}).requires_grad_() * 1; }
  torch::nn::Module model;
  cox::Block<Unit> block = nullptr;
  std::unique_ptr<BlockRegistry> registry;
};

template <class Test>
void same_for_keep_and_recompute(const Test& test) {
  CHECK(same_bits(test(kKeep), test(kRecompute)));
}

struct OuterImpl : torch::nn::Module {
  OuterImpl() : inner(register_module("inner", Unit())) {}
  Tensor forward(const Tensor& x) { return cox::run(inner, &UnitImpl::forward, x).tanh(); }
  cox::Block<Unit> inner;
};
TORCH_MODULE(Outer);

// x * weight with tensors saved by hand.
struct ScaleFunction : torch::autograd::Function<ScaleFunction> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1], (gradients[0] * saved[0]).sum(0)};
  }
};

}  // namespace

TEST_SUITE("sdk.memory.recompute_rules") {
  TEST_CASE("a function runs once forward, and once again only as far as backward needs it") {
    Steered steered(kRecompute);
    steered.checked();
    const Tensor out = cox::run(steered.block, &UnitImpl::forward, Steered::input());
    CHECK(steered.block->begun == 1);
    out.sum().backward();
    CHECK(steered.block->begun == 2);
    CHECK(steered.block->ended == 1);
  }

  TEST_CASE("nothing runs again without gradients, and nothing for outputs nobody differentiates") {
    Steered steered(kRecompute);
    steered.checked();
    {
      const torch::NoGradGuard no_grad;
      (void)cox::run(steered.block, &UnitImpl::forward, Steered::input());
    }
    {
      const c10::InferenceMode inference;
      (void)cox::run(steered.block, &UnitImpl::forward, torch::ones({2, 4}));
    }
    (void)cox::run(steered.block, &UnitImpl::forward, Steered::input());
    CHECK(steered.block->begun == 3);
  }

  TEST_CASE("a graph that is kept can be differentiated again") {
    same_for_keep_and_recompute([](MemoryAction action) {
      Steered steered(action);
      const Tensor x = Steered::input();
      x.retain_grad();
      const Tensor out = cox::run(steered.checked().block, &UnitImpl::forward, x);
      out.sum().backward({}, /*retain_graph=*/true);
      std::vector<Tensor> seen = {x.grad().clone(), steered.block->weight.grad().clone()};
      out.pow(2).sum().backward();
      seen.push_back(x.grad());
      seen.push_back(steered.block->weight.grad());
      return seen;
    });
  }

  TEST_CASE("gradients of gradients have the same bits") {
    same_for_keep_and_recompute([](MemoryAction action) {
      Steered steered(action);
      const Tensor x = torch::linspace(-1, 1, 8).view({2, 4}).requires_grad_();
      const Tensor out = cox::run(steered.checked().block, &UnitImpl::forward, x);
      const Tensor weight = steered.block->weight;
      const auto first = torch::autograd::grad({out.sum()}, {x, weight}, {}, true, true);
      const Tensor penalty = first[0].pow(2).sum() + first[1].pow(3).sum();
      const auto second = torch::autograd::grad({penalty}, {x, weight});
      return std::vector<Tensor>{first[0].detach(), first[1].detach(), second[0], second[1]};
    });
  }

  TEST_CASE("a function that differentiates inside itself can be recomputed") {
    same_for_keep_and_recompute([](MemoryAction action) {
      Steered steered(action);
      steered.checked();
      const auto penalised = [](UnitImpl& unit, const Tensor& x) {
        const Tensor y = unit.forward(x);
        return y + torch::autograd::grad({y.sum()}, {unit.weight}, {}, true, true)[0];
      };
      const Tensor x = Steered::input();
      x.retain_grad();
      cox::run(steered.block, penalised, x).pow(2).sum().backward();
      CHECK(steered.registry->pinned().empty());
      return std::vector<Tensor>{x.grad(), steered.block->weight.grad()};
    });
  }

  TEST_CASE("functions of autograd's users, noexcept ones and careless handlers are recomputed") {
    same_for_keep_and_recompute([](MemoryAction action) {
      std::vector<Tensor> seen;
      Steered steered(action);
      steered.checked();
      const auto custom = [](UnitImpl& unit, const Tensor& x) {
        return ScaleFunction::apply(x.sin(), unit.weight).exp();
      };
      const auto careful = [](UnitImpl& unit, const Tensor& x) noexcept { return unit.forward(x); };
      const auto swallowing = [](UnitImpl& unit, const Tensor& x) {
        try {
          return unit.forward(x);
        } catch (...) {
          return x * 2;
        }
      };
      const Tensor x = Steered::input();
      x.retain_grad();
      for (int pass = 0; pass < 2; ++pass) cox::run(steered.block, custom, x).sum().backward();
      cox::run(steered.block, careful, x).sum().backward();
      cox::run(steered.block, swallowing, x).sum().backward();
      seen.push_back(x.grad());
      seen.push_back(steered.block->weight.grad());
      return seen;
    });
  }

  TEST_CASE("every kind of argument is kept for the second run") {
    same_for_keep_and_recompute([](MemoryAction action) {
      Steered steered(action);
      steered.checked();
      using Pair = std::tuple<Tensor, std::optional<Tensor>>;
      const auto mixed = [](Unit unit, const Pair& in, const std::vector<Tensor>& more, int factor,
                            const std::string& word) {
        const Tensor sum = std::get<0>(in).exp() * unit->weight * factor + more.at(0).sin();
        return std::tuple(sum * static_cast<double>(word.size()), std::get<1>(in));
      };
      const Tensor x = Steered::input();
      const Tensor y = Steered::input();
      x.retain_grad();
      y.retain_grad();
      const auto out = cox::run(steered.block, mixed, Pair(x, std::nullopt), std::vector<Tensor>{y},
                                3, std::string("abc"));
      CHECK_FALSE(std::get<1>(out).has_value());
      std::get<0>(out).sum().backward();
      return std::vector<Tensor>{x.grad(), y.grad(), steered.block->weight.grad()};
    });
  }

  TEST_CASE("the second run sees autocast, kernels, default type and random state of the first") {
    same_for_keep_and_recompute([](MemoryAction action) {
      Steered steered(action);
      steered.checked();
      const auto mixed = [](UnitImpl& unit, const Tensor& x) {
        const Tensor q = unit.forward(x).view({1, 1, 2, 4});
        const Tensor attended = at::scaled_dot_product_attention(q, q, q * 2).view({2, 4});
        return torch::dropout(attended * torch::full({4}, 0.5).exp(), 0.5, true).sin();
      };
      at::Context& context = at::globalContext();
      const Tensor x = Steered::input();
      x.retain_grad();
      context.setSDPUseFlash(false);
      torch::manual_seed(4);
      Tensor out;
      {
        const Autocast on(true);
        out = cox::run(steered.block, mixed, x);
      }
      context.setSDPUseFlash(true);
      torch::manual_seed(9);
      c10::set_default_dtype(caffe2::TypeMeta::Make<double>());
      out.sum().backward();
      CHECK(c10::get_default_dtype() == caffe2::TypeMeta::Make<double>());
      c10::set_default_dtype(caffe2::TypeMeta::Make<float>());
      CHECK(context.userEnabledFlashSDP());
      CHECK_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
      CHECK(at::autocast::is_autocast_cache_enabled());
      return std::vector<Tensor>{out.detach(), x.grad(), steered.block->weight.grad(),
                                 at::detail::getDefaultCPUGenerator().get_state()};
    });
  }

  TEST_CASE("a block inside a recomputed one is covered by it, inside a kept one it acts") {
    for (const MemoryAction outer : {kKeep, kRecompute}) {
      CAPTURE(static_cast<int>(outer));
      torch::nn::Module model;
      const cox::Block<Outer> block(model.register_module("outer", Outer()));
      BlockRegistry registry = *BlockRegistry::discover(model);
      REQUIRE(registry.size() == 2);
      steer(registry, {outer, kRecompute});
      cox::run(block, &OuterImpl::forward, Steered::input()).sum().backward();
      UnitImpl& inner = *block->inner;
      inner.begun = 0;
      const Tensor out = cox::run(block, &OuterImpl::forward, Steered::input());
      CHECK(inner.begun == 1);
      out.sum().backward();
      CHECK(inner.begun == 2);
      CHECK(registry.pinned().empty());
    }
  }

  TEST_CASE("asked for checks reach inner blocks one call after those around them") {
    torch::nn::Module model;
    const cox::Block<Outer> block(model.register_module("outer", Outer()));
    BlockRegistry registry = *BlockRegistry::discover(model);
    REQUIRE(cox::detail::install_saved_tensor_engine().ok());
    registry.request_checks();
    const int begun[] = {2, 4, 5};  // the outer's check, the inner's own, none
    for (int pass = 0; pass < 3; ++pass) {
      CHECK(registry.has_pending_checks() == (pass < 2));
      (void)cox::run(block, &OuterImpl::forward, Steered::input());
      CHECK(block->inner->begun == begun[pass]);
    }
    CHECK(registry.pinned().empty());
  }

  TEST_CASE("the running block's action can be asked for") {
    Steered steered(kTile);
    CHECK_FALSE(cox::detail::current_action().has_value());
    const auto ask = [](UnitImpl& unit, const Tensor& x) {
      unit.begun = static_cast<int>(*cox::detail::current_action());
      return x.exp();
    };
    steered.checked();
    (void)cox::run(steered.block, ask, Steered::input());
    CHECK(steered.block->begun == static_cast<int>(kTile));
    CHECK_FALSE(cox::detail::current_action().has_value());
  }
}
