#include <torch/torch.h>

#include <cmath>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/precision.h"
#include "sdk/src/memory/counting_allocator.h"
#include "sdk/src/precision/numerics_watch.h"
#include "tests/sdk/precision/fault_support.h"

#include <doctest/doctest.h>

using namespace fault_test;
using cox::BlockId;
using cox::MemoryAction;
using cox::Precision;
using cox::detail::BlockRegistry;
using cox::detail::CurvatureOptions;
using cox::detail::probe_curvature;

namespace {

using Tensors = std::vector<Tensor>;

// Half of x A x with eigenvalues of choice in a random basis, for two groups of parameters.
struct Quadratic : torch::nn::Module {
  Quadratic(const Tensor& first, const Tensor& second)
      : a(with_spectrum(first)),
        b(with_spectrum(second)),
        x(register_parameter("x", torch::randn({first.numel()}))),
        y(register_parameter("y", torch::randn({second.numel()}))) {}
  static Tensor with_spectrum(const Tensor& values) {
    const Tensor basis = std::get<0>(at::linalg_qr(at::randn({values.numel(), values.numel()})));
    return basis.mm(at::diag(values)).mm(basis.t());
  }
  Tensor loss() const { return (x.dot(a.mv(x)) + y.dot(b.mv(y))) / 2 + x.sum() * y.sum(); }
  Tensor a, b, x, y;
};

std::vector<float> values(torch::nn::Module& model, const std::function<Tensor()>& loss,
                          const std::vector<Tensors>& groups, int iterations = 60) {
  auto found = probe_curvature(model, loss, groups, {.iterations = iterations, .seed = 3});
  if (!found.ok()) throw cox::Error(found.status());
  return *found;
}

std::vector<Tensors> groups_of(const Victim& victim, const BlockRegistry& registry) {
  std::vector<Tensors> groups;
  for (std::size_t b = 0; b < victim.blocks; ++b) {
    groups.push_back(registry.module(BlockId(static_cast<BlockId::rep>(b)))->parameters());
  }
  return groups;
}

// The same eigenvalue from the whole matrix.
double by_matrix(const std::function<Tensor()>& loss, const Tensors& group) {
  const Tensors first = torch::autograd::grad({loss()}, group, {}, true, true);
  Tensors rows;
  for (const Tensor& gradient : first) {
    const Tensor flat = gradient.reshape({-1});
    for (std::int64_t i = 0; i < flat.numel(); ++i) {
      Tensors row = torch::autograd::grad({flat[i]}, group, {}, true, false, true);
      for (std::size_t p = 0; p < row.size(); ++p) {
        row[p] = row[p].defined() ? row[p].reshape({-1}) : at::zeros({group[p].numel()});
      }
      rows.push_back(at::cat(row));
    }
  }
  const Tensor spectrum = at::linalg_eigvalsh(at::stack(rows).to(at::kDouble));
  const double least = spectrum[0].item<double>();
  const double most = spectrum[-1].item<double>();
  return std::abs(least) > std::abs(most) ? least : most;
}

Tensor state_of_generator() {
  return at::globalContext().defaultGenerator(at::kCPU).get_state();
}

}  // namespace

TEST_SUITE("curvature") {
  TEST_CASE("the eigenvalue of a quadratic with a known spectrum, per group, with its sign") {
    torch::manual_seed(1);
    const auto net = std::make_shared<Quadratic>(torch::tensor({5.0, 2.0, 1.0, -0.5, 0.1, 0.0}),
                                                 torch::tensor({-7.0, 3.0, 2.0, 1.0}));
    const auto found = values(*net, [&] { return net->loss(); }, {{net->x}, {net->y}});
    CHECK(found[0] == doctest::Approx(5).epsilon(1e-4));
    CHECK(found[1] == doctest::Approx(-7).epsilon(1e-4));
  }

  TEST_CASE("a linear loss has no curvature") {
    const auto net = std::make_shared<Quadratic>(torch::ones({3}), torch::ones({2}));
    CHECK(values(*net, [&] { return net->x.sum() * 3 + net->y.dot(net->y); },
                 {{net->x}, {net->y}, {}}) == std::vector<float>{0, 2, 0});
  }

  TEST_CASE("blocks of three models agree with the whole matrix, under every plan and format") {
    torch::manual_seed(2);
    for (Victim& victim : std::vector<Victim>{mlp(), conv_net(), gpt()}) {
      BlockRegistry registry = *BlockRegistry::discover(*victim.module);
      const std::vector<Tensors> groups = groups_of(victim, registry);
      const auto loss = [&] { return victim.loss(std::vector<Fault>(victim.blocks)); };
      victim.module->eval();
      std::vector<float> plain;
      for (const auto action : {MemoryAction::keep, MemoryAction::recompute, MemoryAction::tile}) {
        for (const auto format : {Precision::fp32, Precision::bf16, Precision::fp8}) {
          for (std::size_t b = 0; b < registry.size(); ++b) {
            const BlockId block(static_cast<BlockId::rep>(b));
            REQUIRE(registry.set_action(block, action).ok());
            registry.set_precision(block, format);
          }
          const cox::PrecisionScope around(at::kCPU, format);
          const std::vector<float> found = values(*victim.module, loss, groups, 8);
          if (plain.empty()) plain = found;
          CHECK(found == plain);
        }
      }
      for (std::size_t b = 0; b < registry.size(); ++b) {
        const BlockId block(static_cast<BlockId::rep>(b));
        REQUIRE(registry.set_action(block, MemoryAction::keep).ok());
        registry.set_precision(block, Precision::fp32);
      }
      const cox::AttentionScope math(cox::AttentionBackend::math);
      const double wanted = by_matrix(loss, groups[1]);
      const auto found = values(*victim.module, loss, groups, 200);
      CHECK(found[1] == doctest::Approx(wanted).epsilon(0.01));
    }
  }

  TEST_CASE("a probe leaves no trace, and fifty leave no bytes") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    {
      torch::manual_seed(3);
      Victim victim = conv_net();
      const BlockRegistry registry = *BlockRegistry::discover(*victim.module);
      const std::vector<Tensors> groups = groups_of(victim, registry);
      const auto loss = [&] {
        return at::dropout(victim.loss(std::vector<Fault>(victim.blocks)).reshape({1}), 0.5, true)
            .sum();
      };
      Tensors buffers;
      for (const Tensor& buffer : victim.module->buffers()) buffers.push_back(buffer.clone());
      const Tensor generator = state_of_generator();
      const Tensor flags = torch::tensor(
          {at::globalContext().userEnabledFlashSDP(), at::globalContext().userEnabledMathSDP()});
      const std::vector<float> first = values(*victim.module, loss, groups, 3);
      const auto live = cox::detail::counted_memory().live_bytes;
      for (int probe = 0; probe < 50; ++probe) {
        CHECK(values(*victim.module, loss, groups, 3) == first);
      }
      CHECK(cox::detail::counted_memory().live_bytes == live);
      CHECK(torch::equal(state_of_generator(), generator));
      for (const Tensor& parameter : victim.module->parameters()) {
        CHECK_FALSE(parameter.grad().defined());
      }
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        CHECK(torch::equal(victim.module->buffers()[i], buffers[i]));
      }
      CHECK(flags[0].item<bool>() == at::globalContext().userEnabledFlashSDP());
      CHECK(flags[1].item<bool>() == at::globalContext().userEnabledMathSDP());
    }
    REQUIRE(cox::detail::uninstall_counting_allocator().ok());
  }

  TEST_CASE("what cannot be probed is said") {
    const auto net = std::make_shared<Quadratic>(torch::ones({3}), torch::ones({2}));
    const std::vector<Tensors> groups = {{net->x}};
    const auto status = [&](const std::function<Tensor()>& loss, int iterations) {
      return probe_curvature(*net, loss, groups, {.iterations = iterations}).status();
    };
    CHECK(status([&] { return net->loss(); }, 0).code() == cox::StatusCode::invalid_argument);
    CHECK(status([&] { return net->x; }, 1).code() == cox::StatusCode::invalid_argument);
    CHECK(status([&] { return net->loss() / 0; }, 1).code() == cox::StatusCode::invalid_argument);
    const auto throws = status([]() -> Tensor { throw std::runtime_error("no batch"); }, 1);
    CHECK(throws.code() == cox::StatusCode::failed_precondition);
    CHECK(throws.message().find("no batch") != std::string::npos);
  }
}
