#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <string>

#include "coxswain/error.h"
#include "coxswain/precision.h"
#include "coxswain/run.h"
#include "coxswain/wrap.h"
#include "sdk/src/blocks/block_registry.h"
#include "sdk/src/precision/execution_state.h"

#include <doctest/doctest.h>

namespace {

using cox::AttentionBackend;
using cox::AttentionScope;
using cox::Precision;
using cox::PrecisionScope;
using cox::detail::attention_flags;

at::ScalarType product_type() {
  return at::mm(at::ones({4, 4}), at::ones({4, 4})).scalar_type();
}

// Everything that a scope may change.
struct Seen {
  cox::FormatInForce format = cox::current_format(at::kCPU);
  at::ScalarType type = at::autocast::get_autocast_dtype(at::kCPU);
  bool has_cache = at::autocast::is_autocast_cache_enabled();
  int nesting = (at::autocast::increment_nesting(), at::autocast::decrement_nesting());
  friend bool operator==(const Seen&, const Seen&) = default;
};

TEST_SUITE("sdk.precision.scope") {
  TEST_CASE("each format computes products in its type and says so") {
    struct Case {
      Precision precision;
      at::ScalarType type;
      bool enabled;
    };
    for (const Case& c :
         {Case{Precision::fp32, at::kFloat, false}, Case{Precision::bf16, at::kBFloat16, true},
          Case{Precision::fp16, at::kHalf, true}, Case{Precision::fp8, at::kBFloat16, true}}) {
      const PrecisionScope scope(at::kCPU, c.precision);
      CHECK((product_type() == c.type));
      CHECK(cox::current_format(at::kCPU) ==
            cox::FormatInForce{at::kCPU, c.type, c.enabled, c.precision});
      CHECK_FALSE(at::autocast::is_autocast_cache_enabled());
      CHECK_FALSE(cox::current_format(at::kCUDA).enabled);
    }
    CHECK((product_type() == at::kFloat));
  }

  TEST_CASE("scopes nest and restore all that was before, after an exception as well") {
    const Seen outside;
    {
      const PrecisionScope fp16(at::Device(at::kCPU), Precision::fp16);
      const Seen in_fp16;
      try {
        const PrecisionScope fp8(at::kCPU, Precision::fp8);
        const PrecisionScope fp32(at::kCPU, Precision::fp32);
        CHECK((product_type() == at::kFloat));
        const PrecisionScope bf16(at::kCPU, Precision::bf16);
        CHECK(cox::current_format(at::kCPU).precision == Precision::bf16);
        throw std::runtime_error("leaves three scopes");
      } catch (const std::runtime_error&) {
        CHECK(Seen() == in_fp16);
        CHECK((product_type() == at::kHalf));
      }
    }
    CHECK(Seen() == outside);
  }

  TEST_CASE("a weight that is used twice is cast twice, so its gradients are added in fp32") {
    const at::Tensor x = at::linspace(0, 1, 64).view({8, 8});
    const auto gradient = [&](const std::function<at::Tensor(const at::Tensor&)>& compute) {
      const at::Tensor weight = at::linspace(-1, 1, 64).view({8, 8}).clone().requires_grad_();
      compute(weight).to(at::kFloat).pow(2).sum().backward();
      return weight.grad();
    };
    const auto twice = [&](const at::Tensor& w) { return at::mm(at::mm(x, w), w); };
    const at::Tensor wanted = gradient([&](const at::Tensor& w) {
      return at::mm(at::mm(x.to(at::kBFloat16), w.to(at::kBFloat16)), w.to(at::kBFloat16));
    });
    CHECK(wanted.equal(gradient([&](const at::Tensor& w) {
      const PrecisionScope scope(at::kCPU, Precision::bf16);
      return twice(w);
    })));
    CHECK_FALSE(wanted.equal(gradient([&](const at::Tensor& w) {
      const PrecisionScope scope(at::kCPU, Precision::bf16);
      at::autocast::set_autocast_cache_enabled(true);  // as autocast is by itself
      return twice(w);
    })));
  }

  TEST_CASE("autocast that somebody else turned on is reported") {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    CHECK(cox::current_format(at::kCPU).precision == Precision::fp16);
    {
      const PrecisionScope scope(at::kCPU, Precision::fp32);
      CHECK_FALSE(cox::current_format(at::kCPU).enabled);
    }
    CHECK(cox::current_format(at::kCPU).precision == Precision::fp16);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    CHECK(cox::current_format(at::kCPU).precision == Precision::fp32);
  }

  TEST_CASE("other devices are refused") {
    CHECK_THROWS_WITH_AS(PrecisionScope(at::kXPU, Precision::bf16),
                         doctest::Contains("expected a CPU or CUDA device, found xpu"), cox::Error);
    CHECK_THROWS_AS(cox::current_format(at::kMeta), cox::Error);
  }
}

TEST_SUITE("sdk.precision.formats") {
  TEST_CASE("the CPU runs every format, and each operation was tried") {
    for (const Precision format :
         {Precision::fp32, Precision::bf16, Precision::fp16, Precision::fp8}) {
      const std::string name(cox::to_string(format));
      CAPTURE(name);
      const auto trials = cox::try_format(format, at::kCPU);
      CHECK(trials.size() == 9);
      for (const auto& trial : trials) {
        CAPTURE(trial.operation);
        CAPTURE(trial.error);
        CHECK(trial.error.empty());
      }
      CHECK(cox::can_run(format, at::kCPU) == cox::ok_status());
      CHECK(cox::is_emulated(format, at::kCPU) == (format == Precision::fp8));
    }
    CHECK(cox::runnable_formats(at::kCPU) == 0b1111);
  }

  TEST_CASE("a trial leaves random numbers and formats alone") {
    const Seen before;
    torch::manual_seed(3);
    const at::Tensor wanted = torch::randn({4});
    torch::manual_seed(3);
    (void)cox::runnable_formats(at::kCPU);
    CHECK(torch::randn({4}).equal(wanted));
    CHECK(Seen() == before);
    const at::NoGradGuard no_grad;
    CHECK(cox::can_run(Precision::bf16, at::kCPU).ok());
  }

  TEST_CASE("a device that is not there is said to be missing") {
    CHECK(cox::can_run(Precision::bf16, at::kXPU).code() == cox::StatusCode::invalid_argument);
    if (at::hasCUDA()) return;
    const cox::Status status = cox::can_run(Precision::fp16, at::kCUDA);
    CHECK(status.code() == cox::StatusCode::unavailable);
    CHECK(status.message().find("precision fp16 on cuda: expected a cuda device, found none") == 0);
    CHECK(cox::runnable_formats(at::kCUDA) == 0);
    CHECK(cox::try_format(Precision::fp32, at::kCUDA).empty());
    CHECK(cox::is_emulated(Precision::fp8, at::kCUDA));
  }
}

// A block that counts how often it ran and what it saw.
struct AttentionImpl : torch::nn::Module {
  AttentionImpl() : linear(register_module("linear", torch::nn::Linear(8, 8))) {}
  at::Tensor forward(const at::Tensor& x) {
    const AttentionScope scope(backend);
    flags.push_back(attention_flags());
    const at::Tensor y = linear->forward(x);
    return at::scaled_dot_product_attention(y, y, y);
  }
  at::Tensor forward_outside(const at::Tensor& x) {
    flags.push_back(attention_flags());
    formats.push_back(cox::current_format(at::kCPU).precision);
    const at::Tensor y = linear->forward(x).to(at::kFloat);
    return at::scaled_dot_product_attention(y, y, y);
  }
  torch::nn::Linear linear;
  AttentionBackend backend = AttentionBackend::math;
  std::vector<cox::detail::AttentionFlags> flags;
  std::vector<Precision> formats;
};
TORCH_MODULE(Attention);

struct NetImpl : torch::nn::Module {
  cox::Block<Attention> block{register_module("block", Attention())};
};
TORCH_MODULE(Net);

TEST_SUITE("sdk.precision.steered_block") {
  TEST_CASE("a block that was steered to a format computes in the program's own after detach") {
    Net net;
    const at::Tensor x = at::linspace(-1, 1, 64).view({1, 1, 8, 8});
    {
      auto registry = *cox::detail::BlockRegistry::discover(*net);
      registry.set_precision(cox::BlockId(0), Precision::bf16);
      (void)cox::run(net->block, &AttentionImpl::forward_outside, x);
      CHECK(net->block->formats.back() == Precision::bf16);
    }
    cox::detach(*net);
    (void)cox::run(net->block, &AttentionImpl::forward_outside, x);
    CHECK(net->block->formats.back() == Precision::fp32);
  }
}

TEST_SUITE("sdk.precision.attention") {
  TEST_CASE("a backend is chosen for a scope and what was before comes back") {
    const auto before = attention_flags();
    {
      const AttentionScope math(AttentionBackend::math);
      CHECK(attention_flags().math);
      CHECK_FALSE(attention_flags().flash);
      CHECK_FALSE(attention_flags().efficient);
      {
        const AttentionScope flash(AttentionBackend::flash);
        CHECK(attention_flags().flash);
        CHECK_FALSE(attention_flags().math);
        const AttentionScope any(AttentionBackend::any);
        CHECK((attention_flags().math && attention_flags().flash && attention_flags().efficient));
      }
      CHECK(attention_flags().math);
      CHECK_FALSE(attention_flags().flash);
      const AttentionScope efficient(AttentionBackend::memory_efficient);
      CHECK(attention_flags().efficient);
      CHECK_FALSE(attention_flags().math);
    }
    CHECK(attention_flags() == before);
  }

  TEST_CASE("math has the second derivative that flash lacks") {
    const auto second = [](AttentionBackend backend) {
      const AttentionScope scope(backend);
      const at::Tensor x = at::linspace(-1, 1, 64).view({1, 1, 8, 8}).requires_grad_();
      const at::Tensor out = at::scaled_dot_product_attention(x, x, x).sum();
      const at::Tensor first = torch::autograd::grad({out}, {x}, {}, true, true)[0];
      return torch::autograd::grad({first.pow(2).sum()}, {x})[0].abs().sum().item<float>();
    };
    CHECK(second(AttentionBackend::math) > 0);
    CHECK_THROWS_AS(second(AttentionBackend::flash), c10::Error);
  }

  TEST_CASE("a block that runs again sees the backend and the format of its first run") {
    Net net;
    auto registry = *cox::detail::BlockRegistry::discover(*net);
    REQUIRE(registry.set_action(cox::BlockId(0), cox::MemoryAction::recompute).ok());
    const auto before = attention_flags();
    const at::Tensor x = at::linspace(-1, 1, 64).view({1, 1, 8, 8}).requires_grad_();
    for (const Precision format : {Precision::fp8, Precision::fp16, Precision::fp32}) {
      for (const AttentionBackend backend : {AttentionBackend::math, AttentionBackend::flash}) {
        at::Tensor out;
        net->block->flags.clear();
        net->block->formats.clear();
        {
          const AttentionScope attention(backend);
          const PrecisionScope precision(at::kCPU, format);
          out = cox::run(net->block, &AttentionImpl::forward_outside, x);
        }
        CHECK(attention_flags() == before);
        out.sum().backward();
        REQUIRE(net->block->flags.size() > 1);
        for (const cox::detail::AttentionFlags& flags : net->block->flags)
          CHECK(flags == net->block->flags[0]);
        for (const Precision seen : net->block->formats) CHECK(seen == format);
        CHECK(net->block->flags[0].math == (backend == AttentionBackend::math));
        CHECK(attention_flags() == before);
        CHECK(Seen().format.precision == Precision::fp32);
      }
    }
    CHECK(registry.pinned().empty());
  }

  TEST_CASE("a scope inside a block is opened again with it") {
    Net net;
    auto registry = *cox::detail::BlockRegistry::discover(*net);
    REQUIRE(registry.set_action(cox::BlockId(0), cox::MemoryAction::recompute).ok());
    const auto before = attention_flags();
    const at::Tensor x = at::linspace(-1, 1, 64).view({1, 1, 8, 8}).requires_grad_();
    cox::run(net->block, &AttentionImpl::forward, x).sum().backward();
    REQUIRE(net->block->flags.size() > 1);
    for (const cox::detail::AttentionFlags& flags : net->block->flags) {
      CHECK(flags.math);
      CHECK_FALSE(flags.flash);
    }
    CHECK(attention_flags() == before);
  }
}

}  // namespace
