// The rules of blame one by one, and that looking costs no bit and keeps no tensor.
#include "sdk/src/precision/block_health.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "metrics/step_row.h"
#include "sdk/src/precision/numerics_watch.h"
#include "tests/sdk/precision/fault_support.h"
#include "tests/sdk/precision/watched_blocks.h"

#include <doctest/doctest.h>

using namespace fault_test;
using cox::BlockEvidence;
using cox::BlockId;
using cox::MemoryAction;
using cox::Precision;
using cox::RankId;
using cox::detail::BlockHealth;
using cox::detail::BlockRegistry;
using cox::detail::HealthVerdict;
using Where = HealthVerdict::Where;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Fault fault(Fault::Pass pass, Fault::Kind kind = Fault::Kind::infinity) {
  Fault chosen;
  chosen.pass = pass;
  chosen.kind = kind;
  chosen.element = 3;
  return chosen;
}

Tensor with_fault(EmptyImpl&, const Tensor& x, const Fault& chosen) {
  return pass_through(x * 2, chosen, false);
}

struct OuterImpl : torch::nn::Module {
  OuterImpl() : inner(register_module("inner", DenseLayer(8))) {}
  Tensor forward(const Tensor& x, const Fault& own, const Fault& inside) {
    const Tensor y = cox::run(inner, &faulty<DenseLayerImpl>, x, inside);
    return pass_through(y * 2, own, false);
  }
  cox::Block<DenseLayer> inner;
};
TORCH_MODULE(Outer);

struct NestedNet : torch::nn::Module {
  NestedNet() : outer(register_module("outer", Outer())) {}
  Tensor loss(const Fault& own, const Fault& inside) {
    return cox::run(outer, &OuterImpl::forward, torch::linspace(-1, 1, 16).view({2, 8}), own,
                    inside)
        .sum();
  }
  cox::Block<Outer> outer;
};

std::vector<Tensor> gradients(Victim& victim, const std::vector<Tensor>& parameters) {
  torch::manual_seed(12);
  std::vector<Tensor> all = {victim.loss(std::vector<Fault>(victim.blocks))};
  all[0].backward();
  for (const Tensor& parameter : parameters) {
    all.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  all[0] = all[0].detach();
  return all;
}

}  // namespace

TEST_SUITE("block health") {
  TEST_CASE(
      "parameters that are not finite already are named, not the block whose result was first") {
    const Victim victim = mlp();
    Watched watched(victim.module);
    const auto parameters = victim.module->named_parameters();
    const auto spoil = [&](const std::string& name, double value) {
      const torch::NoGradGuard no_grad;
      parameters[name].view({-1}).slice(0, 0, 3).fill_(value);
    };
    const auto loss = [&](std::vector<Fault> faults) {
      faults.resize(victim.blocks);
      return [&victim, faults] { return victim.loss(faults); };
    };
    const Tensor before = parameters["layer2.up.weight"].detach().clone();
    spoil("layer2.up.weight", kInfinity);
    const auto evidence = watched.step(loss({}));
    const BlockId third = watched.block("layer2");
    CHECK(watched.verdict() == HealthVerdict{Where::parameters, third, 3});
    CHECK(evidence[third.value()].overflow_forward == 3);
    CHECK(evidence[third.value()].rank_of_overflow == kRank);
    // Mended, an ordinary fault is blamed as ever.
    {
      const torch::NoGradGuard no_grad;
      parameters["layer2.up.weight"].copy_(before);
    }
    watched.step(loss({}));
    CHECK(watched.verdict().where == Where::nothing);
    watched.step(loss({fault(Fault::Pass::forward)}));
    CHECK(watched.verdict().where == Where::forward);
    CHECK(watched.verdict().block == watched.block("layer0"));
  }

  TEST_CASE("bad parameters of a block that the step did not meet are not to blame") {
    struct Net : torch::nn::Module {
      Net() : table(register_module("table", torch::nn::Embedding(5, 3))) {}
      cox::Block<torch::nn::Embedding> table;
    };
    const auto net = std::make_shared<Net>();
    Watched watched(net);
    {
      const torch::NoGradGuard no_grad;
      watched.parameters[0][4].fill_(kInfinity);
    }
    watched.step([&] {
      return cox::run(net->table, &torch::nn::EmbeddingImpl::forward, torch::arange(4)).sum() *
             kInfinity;
    });
    CHECK(watched.verdict().where != Where::parameters);
  }

  TEST_CASE("the log says once since when parameters are not finite, and again when it is anew") {
    const Victim victim = mlp();
    std::vector<std::string> lines;
    const cox::Log log(cox::LogLevel::info, kRank,
                       [&](std::string_view line) { lines.emplace_back(line); });
    const cox::Config config;
    cox::detail::BlockWatch blocks;
    cox::detail::FormatActuator formats(config, blocks, log);
    cox::detail::NumericsWatch numerics(config.precision, kRank, blocks, formats, log);
    blocks.attach(*victim.module);
    const std::vector<Tensor> parameters = victim.module->parameters();
    numerics.watch(parameters);
    const cox::Plan plan;
    std::uint64_t number = 10;
    const auto step = [&](double weight) {
      {
        const torch::NoGradGuard no_grad;
        parameters[0].fill_(weight);
      }
      victim.module->zero_grad();
      numerics.begin_step();
      const Tensor loss = victim.loss(std::vector<Fault>(victim.blocks));
      numerics.loss(loss.item<double>());
      loss.backward();
      if (!std::isfinite(loss.item<double>()))
        static_cast<void>(numerics.blame(bad_gradients(parameters), cox::StepId(number)));
      ++number;
      cox::metrics::StepRow row;
      cox::detail::StepOutput output;
      output.row = &row;
      numerics.end_step({kRank, {}, plan, 1}, output);
      return row.overflow_pass;
    };
    for (const double weight : {0.1, kInfinity, kInfinity, 0.1, kInfinity}) {
      CAPTURE(weight);
      CHECK((step(weight) == cox::metrics::OverflowPass::parameters) == (weight > 1));
    }
    REQUIRE(lines.size() == 2);
    for (const std::string part : {"parameters of block layer0 have been non-finite since before "
                                   "step 11 (",
                                   "values)"}) {
      CAPTURE(lines[0]);
      CHECK(lines[0].find(part) != std::string::npos);
    }
    CHECK(lines[1].find("since before step 14 (") != std::string::npos);
    numerics.release();
    blocks.release();
  }

  TEST_CASE("of nested blocks the innermost is to blame, and the outer one for what is its own") {
    const auto net = std::make_shared<NestedNet>();
    Watched watched(net);
    for (const auto pass : {Fault::Pass::forward, Fault::Pass::backward}) {
      const Where where = pass == Fault::Pass::forward ? Where::forward : Where::backward;
      watched.step([&] { return net->loss({}, fault(pass)); });
      CHECK(watched.verdict().where == where);
      CHECK(watched.verdict().block == watched.block("outer.inner"));
      watched.step([&] { return net->loss(fault(pass), {}); });
      CHECK(watched.verdict().where == where);
      // What comes back from the outer block is an infinity that the inner one is given.
      CHECK(watched.verdict().block == watched.block("outer"));
    }
  }

  TEST_CASE("a block of integers is blamed for its parameter's gradient") {
    struct Net : torch::nn::Module {
      Net() : table(register_module("table", torch::nn::Embedding(5, 3))) {}
      cox::Block<torch::nn::Embedding> table;
    };
    const auto net = std::make_shared<Net>();
    Watched watched(net);
    const auto lookup = [&](const Fault& chosen) {
      return cox::run(
                 net->table,
                 [](torch::nn::EmbeddingImpl& table, const Tensor& ids, const Fault& inside) {
                   return pass_through(table.forward(ids), inside, false);
                 },
                 torch::arange(5), chosen)
          .sum();
    };
    const auto evidence = watched.step([&] { return lookup(fault(Fault::Pass::backward)); });
    CHECK(watched.verdict() == HealthVerdict{Where::backward, watched.block("table"), 1});
    CHECK(evidence[0].overflow_backward == 1);
    CHECK(evidence[0].rank_of_overflow == kRank);
  }

  TEST_CASE("any of several results counts, and a mask of -infinity is no bad input") {
    Frames frames(2);
    Watched watched(frames.module);
    const Tensor x = leaf();
    const Tensor mask = torch::full({8}, -kInfinity);
    const auto run = [&](const Fault& chosen) {
      const auto [a, b] = cox::run(
          frames.blocks[0],
          [](EmptyImpl&, const Tensor& in, const Tensor& masked, const Fault& inside) {
            return std::tuple(at::softmax(at::cat({in, masked}), 0),
                              pass_through(in * 1, inside, false));
          },
          x, mask, chosen);
      return cox::run(frames.blocks[1], &with_fault, b, Fault()).sum() + a.sum();
    };
    watched.step([&] { return run({}); });
    CHECK(watched.verdict().where == Where::nothing);
    watched.step([&] { return run(fault(Fault::Pass::forward, Fault::Kind::nan)); });
    CHECK(watched.verdict() == HealthVerdict{Where::forward, watched.block("b0"), 1});
    const Tensor data = torch::full({8}, kInfinity);
    watched.health.begin_step(1);
    watched.health.loss(
        cox::run(frames.blocks[1], &with_fault, data + x * 0, Fault()).sum().item<double>());
    watched.end();
    CHECK(watched.verdict() == HealthVerdict{Where::outside, watched.block("b1"), 0});
  }

  TEST_CASE("a block that is called several times a step is blamed for its bad call") {
    Victim victim = mlp();
    Watched watched(victim.module);
    std::vector<Fault> bad(4);
    bad[1] = fault(Fault::Pass::backward, Fault::Kind::nan);
    const std::vector<Fault> good(4);
    watched.step([&] { return victim.loss(good) + victim.loss(bad) + victim.loss(good); });
    CHECK(watched.verdict().where == Where::backward);
    CHECK(watched.verdict().block == watched.block("layer1"));
  }

  TEST_CASE("of micro-batches the first bad one is told, whatever the later ones do") {
    Victim victim = mlp();
    Watched watched(victim.module);
    const auto micro = [&](std::size_t block, Fault::Pass pass) {
      std::vector<Fault> faults(4);
      if (block < 4) faults[block] = fault(pass, Fault::Kind::nan);
      victim.loss(faults).backward();
    };
    watched.health.begin_step(1);
    micro(9, Fault::Pass::none);
    micro(2, Fault::Pass::backward);
    micro(0, Fault::Pass::forward);
    watched.end();
    CHECK(watched.verdict().where == Where::backward);
    CHECK(watched.verdict().block == watched.block("layer2"));
  }

  TEST_CASE("trouble outside of all blocks is nobody's, with the nearest block") {
    Victim victim = mlp();
    Watched watched(victim.module);
    const std::vector<Fault> good(4);
    auto evidence = watched.step([&] { return victim.loss(good) * kInfinity; });
    CHECK(watched.verdict() == HealthVerdict{Where::outside, watched.block("layer3"), 0});
    for (const BlockEvidence& each : evidence) CHECK_FALSE(each.has_overflow());
    CHECK(evidence[3].activation.rank == kRank);
  }

  TEST_CASE("an infinity that nothing came of is nobody's fault") {
    Frames frames(1);
    Watched watched(frames.module);
    const Tensor x = leaf();
    const auto evidence = watched.step([&] {
      const Tensor scores = cox::run(
          frames.blocks[0],
          [](EmptyImpl&, const Tensor& in) {
            return (in * 1).masked_fill(at::arange(8) > 4,
                                        -std::numeric_limits<double>::infinity());
          },
          x);
      return at::softmax(scores, 0)[0];
    });
    CHECK(watched.verdict() == HealthVerdict{});
    CHECK_FALSE(evidence[0].has_overflow());
  }

  TEST_CASE("magnitudes are of results and of gradients without the loss scale") {
    Frames frames(2);
    Watched watched(frames.module);
    const Tensor x = leaf();
    const auto run = [&] {
      const Tensor y = cox::run(frames.blocks[0], &with_fault, x * 1, Fault());
      return (cox::run(frames.blocks[1], &with_fault, y, Fault()) * 3).sum();
    };
    for (const float scale : {1.0f, 1024.0f}) {
      const auto evidence = watched.step(run, scale);
      CHECK(evidence[0].activation == cox::Magnitude{4, kRank});
      CHECK(evidence[1].activation == cox::Magnitude{8, kRank});
      CHECK(evidence[0].gradient == cox::Magnitude{12, kRank});  // at its input
      CHECK(evidence[1].gradient == cox::Magnitude{6, kRank});
      CHECK(evidence[0].sampled == 0);  // not in fp16
    }
  }

  TEST_CASE("the gradient of a result is its own, whichever of an operation's results it is") {
    Frames frames(2);
    Watched watched(frames.module);
    const Tensor x = leaf();
    const auto run = [&](double of_the_first) {
      const std::vector<Tensor> halves = cox::run(
          frames.blocks[0], [](EmptyImpl&, const Tensor& in) { return in.chunk(2); }, x * 1);
      const Tensor y = cox::run(frames.blocks[1], &with_fault, halves[1], Fault());
      const Tensor loss = y.sum() * 5;
      return of_the_first == 0 ? loss : loss + halves[0].sum() * of_the_first;
    };
    auto evidence = watched.step([&] { return run(3); });
    CHECK(evidence[1].gradient == cox::Magnitude{10, kRank});
    CHECK(evidence[0].gradient == cox::Magnitude{10, kRank});
    evidence = watched.step([&] { return run(300); });
    CHECK(evidence[1].gradient == cox::Magnitude{10, kRank});
    CHECK(evidence[0].gradient == cox::Magnitude{300, kRank});
    evidence = watched.step([&] { return run(0); });  // nobody differentiates the first
    CHECK(evidence[0].gradient == cox::Magnitude{10, kRank});
  }

  TEST_CASE("in fp16, gradients below its normal numbers are underflow; the largest is known") {
    Frames frames(1);
    Watched watched(frames.module);
    watched.registry.set_precision(BlockId(0), Precision::fp16);
    const Tensor x = leaf();
    const Tensor weight = torch::tensor({1.0, 4.0, 0x1p-15, 0x1p-20, 0.0, 0.0, 1.0, 0x1p-14});
    watched.health.begin_step(2);
    (cox::run(frames.blocks[0], &with_fault, x * 1, Fault()) * weight).sum().backward();
    CHECK(watched.health.amax_scaled_fp16() == 8);
    const auto evidence = watched.end();
    CHECK(evidence[0].sampled == 16);
    // Two incoming and one outgoing value are too small; the zeros were zeros before.
    CHECK(evidence[0].underflow == 3);
    CHECK(evidence[0].gradient.value == 4);
  }

  TEST_CASE("the largest gradient in fp16 may be a parameter's; other formats have no say") {
    for (const Precision format : {Precision::fp16, Precision::bf16}) {
      torch::manual_seed(6);
      Victim victim = mlp();
      Watched watched(victim.module);
      watched.registry.set_precision(BlockId(1), format);
      watched.health.begin_step(4096);
      (victim.loss(std::vector<Fault>(4)) * 4096).backward();
      float of_parameters = 0;
      const auto module = watched.registry.module(BlockId(1));
      for (const Tensor& parameter : module->parameters()) {
        of_parameters = std::max(of_parameters, parameter.grad().abs().max().item<float>());
      }
      const float found = watched.health.amax_scaled_fp16();
      const auto evidence = watched.end();
      const float at_boundary = evidence[1].gradient.value * 4096;
      CHECK(found == (format == Precision::fp16 ? std::max(of_parameters, at_boundary) : 0));
    }
  }

  TEST_CASE(
      "looking changes no bit, whatever the memory actions, and recompute is not seen twice") {
    for (const bool is_conv : {false, true}) {
      torch::manual_seed(4);
      Victim victim = is_conv ? conv_net() : gpt();
      const std::vector<Tensor> parameters = victim.module->parameters();
      std::vector<Tensor> buffers;
      for (const Tensor& buffer : victim.module->buffers()) buffers.push_back(buffer.clone());
      const std::vector<Tensor> plain = gradients(victim, parameters);
      for (const auto action : {MemoryAction::keep, MemoryAction::recompute, MemoryAction::tile}) {
        Watched watched(victim.module);
        for (std::size_t b = 0; b < victim.blocks; ++b) {
          const BlockId block(static_cast<BlockId::rep>(b));
          REQUIRE(watched.registry.set_action(block, action).ok());
          watched.registry.set_precision(block, Precision::fp32);
        }
        watched.health.begin_step(1);
        const std::vector<Tensor> seen = gradients(victim, parameters);
        const auto evidence = watched.end();
        REQUIRE(seen.size() == plain.size());
        for (std::size_t i = 0; i < seen.size(); ++i) CHECK(torch::equal(seen[i], plain[i]));
        for (const BlockEvidence& each : evidence) CHECK(each.activation.value > 0);
      }
    }
  }

  TEST_CASE("nothing is kept: tensors go with their graph, and hooks of past steps do nothing") {
    Frames frames(1);
    Watched watched(frames.module);
    const Tensor x = leaf();
    watched.health.begin_step(1);
    Tensor y = cox::run(frames.blocks[0], &with_fault, x * 1, Fault());
    c10::weak_intrusive_ptr<at::TensorImpl> weak(y.getIntrusivePtr());
    Tensor loss = y.sum();
    y.reset();
    loss.backward();
    loss.reset();
    CHECK(weak.expired());
    Tensor late = cox::run(frames.blocks[0], &with_fault, x * 1, Fault()).sum() * kInfinity;
    watched.end();
    late.backward();
    watched.health.begin_step(1);
    watched.end();
    CHECK(watched.verdict() == HealthVerdict{});
    watched.health.detach(watched.registry);
    CHECK_FALSE(frames.blocks[0].gate()->active);
    CHECK(watched.health.end_step(kRank).empty());
  }

  TEST_CASE("evaluation and calls that throw leave nothing behind") {
    Frames frames(1);
    Watched watched(frames.module);
    const Tensor x = leaf();
    watched.health.begin_step(1);
    {
      const torch::NoGradGuard no_grad;
      CHECK(cox::run(frames.blocks[0], &with_fault, x, Fault()).defined());
    }
    const auto throwing = [](EmptyImpl&, const Tensor& in) -> Tensor {
      if (in.numel() == 8) throw std::runtime_error("no");
      return in;
    };
    CHECK_THROWS(static_cast<void>(cox::run(frames.blocks[0], throwing, x * kInfinity)));
    watched.health.loss(std::numeric_limits<double>::quiet_NaN());
    const auto evidence = watched.end();
    CHECK(evidence[0] == BlockEvidence{});
    CHECK(watched.verdict().where == Where::outside);
  }

  TEST_CASE("a shared parameter belongs to each block that has it, a nested one to the inner") {
    const auto net = std::make_shared<NestedNet>();
    const auto registry = *BlockRegistry::discover(*net);
    const std::vector<Tensor> parameters = net->parameters();
    for (const auto& owners : owners_of(registry, parameters)) {
      REQUIRE(owners.size() == 1);
      CHECK(registry.name(owners[0]) == "outer.inner");
    }
    const Tensor stranger = torch::ones({1});
    CHECK(owners_of(registry, {&stranger, 1})[0].empty());
  }
}
