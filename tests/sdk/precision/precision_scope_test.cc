#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "coxswain/error.h"
#include "coxswain/precision.h"
#include "sdk/src/precision/execution_state.h"
#include "sdk/src/stream/saved_tensors.h"
#include "sdk/src/stream/tape.h"

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

// All state that a scope may change.
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
      at::autocast::set_autocast_cache_enabled(true);  // autocast's default
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

  TEST_CASE("attention that is made again takes the kernels of its first run") {
    REQUIRE(cox::detail::install_saved_tensor_engine().ok());
    const auto before = attention_flags();
    const at::Tensor leaf = at::linspace(-1, 1, 64).view({1, 1, 8, 8}).requires_grad_();
    const auto gradient = [&](AttentionBackend backend, bool is_taped) {
      const auto tape = cox::detail::Tape::make("attention");
      at::Tensor out;
      {
        const AttentionScope attention(backend);
        std::optional<cox::detail::TapeScope> recording;
        if (is_taped) recording.emplace(*tape);
        const at::Tensor y = at::tanh(leaf * 2);
        out = at::scaled_dot_product_attention(y, y, y).pow(2);
      }
      tape->close();
      const at::Tensor found = torch::autograd::grad({out.sum()}, {leaf})[0];
      CHECK((tape->counts().replayed > 0) == is_taped);
      return found;
    };
    for (const auto backend : {AttentionBackend::math, AttentionBackend::flash}) {
      CHECK(gradient(backend, true).equal(gradient(backend, false)));
      CHECK(attention_flags() == before);
    }
  }
}

}  // namespace
