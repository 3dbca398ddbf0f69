// The rules of blame one by one. Watching costs no bit and keeps no tensor.
#include "sdk/src/precision/block_health.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "metrics/records/step_row.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/fp8_watch.h"
#include "sdk/src/precision/loss_scale.h"
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

float largest(const cox::detail::Largest& found) {
  if (!found.on_device.defined()) return found.here;
  return std::max(found.here, static_cast<float>(found.on_device.item<double>()));
}

std::vector<Tensor> gradients(Victim& victim, const std::vector<Tensor>& parameters) {
  torch::manual_seed(12);
  std::vector<Tensor> all = {victim.loss(std::vector<Fault>(victim.called.size()))};
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
      faults.resize(victim.called.size());
      return [&victim, faults] { return victim.loss(faults); };
    };
    const Tensor before = parameters["layer2.up.weight"].detach().clone();
    spoil("layer2.up.weight", kInfinity);
    const auto evidence = watched.step(loss({}));
    const BlockId third = watched.block("layer2");
    CHECK(watched.verdict() == HealthVerdict{Where::parameters, third, 3});
    CHECK(evidence[third.value()].overflow_forward == 3);
    CHECK(evidence[third.value()].rank_of_overflow == kRank);
    // After the repair, an ordinary fault is blamed as before.
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
    const auto net = std::make_shared<torch::nn::Module>("net");
    torch::nn::Embedding table = net->register_module("table", torch::nn::Embedding(5, 3));
    Gain last = net->register_module("last", Gain(2));
    Watched watched(net);
    {
      const torch::NoGradGuard no_grad;
      watched.parameters[0][4].fill_(kInfinity);
    }
    watched.step([&] { return last(table->forward(torch::arange(4))).sum() * kInfinity; });
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
    const cox::detail::LossScale loss_scale(formats, blocks);
    cox::detail::Fp8Watch fp8(config.precision, kRank, log);
    cox::detail::NumericsWatch numerics(config.precision, kRank, blocks, loss_scale, fp8, log);
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
      const cox::detail::BlockWatch::Following following(blocks);
      const Tensor loss = victim.loss(std::vector<Fault>(victim.called.size()));
      numerics.health().loss(loss.item<double>());
      loss.backward();
      if (!std::isfinite(loss.item<double>()))
        numerics.health().parameter_gradients(bad_gradients(parameters), cox::StepId(number));
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

  TEST_CASE("a block of integers is blamed for its parameter's gradient") {
    const auto net = std::make_shared<torch::nn::Module>("net");
    torch::nn::Embedding table = net->register_module("table", torch::nn::Embedding(5, 3));
    Watched watched(net);
    const Fault bad = fault(Fault::Pass::backward);
    const auto evidence = watched.step(
        [&] { return pass_through(table->forward(torch::arange(5)), bad, Place::result).sum(); });
    CHECK(watched.verdict() == HealthVerdict{Where::backward, watched.block("table"), 1});
    CHECK(evidence[0].overflow_backward == 1);
    CHECK(evidence[0].rank_of_overflow == kRank);
  }

  TEST_CASE("any of several results counts, and a mask of -infinity is no bad input") {
    Gains gains(2);
    Watched watched(gains.module);
    const Tensor x = leaf();
    const Tensor mask = torch::full({8}, -kInfinity);
    const auto run = [&](const Fault& chosen) {
      const Tensor y = gains(0, x);
      const Tensor first = at::softmax(at::cat({y, mask}), 0);
      const Tensor second = pass_through(y * 1, chosen, Place::result);
      return gains(1, second).sum() + first.sum();
    };
    watched.step([&] { return run({}); });
    CHECK(watched.verdict().where == Where::nothing);
    watched.step([&] { return run(fault(Fault::Pass::forward, Fault::Kind::nan)); });
    CHECK(watched.verdict() == HealthVerdict{Where::forward, watched.block("b0"), 1});
    const Tensor data = torch::full({8}, kInfinity);
    watched.begin();
    watched.health.loss(gains(1, data + x * 0).sum().item<double>());
    watched.end();
    CHECK(watched.verdict() == HealthVerdict{Where::outside, watched.block("b1"), 0});
  }

  TEST_CASE("a result that goes past the next block is its maker's, and an input of who reads it") {
    Gains gains(3);
    Watched watched(gains.module);
    const Tensor x = leaf();
    const auto run = [&](const Fault& chosen) {
      const Tensor skip = pass_through(gains(0, x), chosen, Place::result);
      return (gains(2, gains(1, x * 1)) + skip).sum();
    };
    watched.step([&] { return run(fault(Fault::Pass::forward, Fault::Kind::nan)); });
    CHECK(watched.verdict() == HealthVerdict{Where::forward, watched.block("b0"), 1});
    watched.step([&] { return run(fault(Fault::Pass::backward, Fault::Kind::nan)); });
    CHECK(watched.verdict().where == Where::backward);
    CHECK(watched.verdict().block == watched.block("b0"));
  }

  TEST_CASE("a block that is visited several times a step is blamed for its bad visit") {
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
    watched.begin();
    micro(9, Fault::Pass::none);
    micro(2, Fault::Pass::backward);
    micro(0, Fault::Pass::forward);
    watched.end();
    CHECK(watched.verdict().where == Where::backward);
    CHECK(watched.verdict().block == watched.block("layer2"));
  }

  TEST_CASE("what goes wrong in the loss is told of the block before it") {
    Victim victim = mlp();
    Watched watched(victim.module);
    const std::vector<Fault> good(4);
    auto evidence = watched.step([&] { return victim.loss(good) * kInfinity; });
    CHECK(watched.verdict() == HealthVerdict{Where::forward, watched.block("layer3"), 1});
    for (std::size_t b = 0; b < 3; ++b) CHECK_FALSE(evidence[b].has_overflow());
    CHECK(evidence[2].activation.rank == kRank);
  }

  TEST_CASE("an infinity that nothing came of is nobody's fault") {
    Gains gains(2);
    Watched watched(gains.module);
    const Tensor x = leaf();
    const auto evidence = watched.step([&] {
      const Tensor scores = gains(0, x).masked_fill(at::arange(8) > 4, -kInfinity);
      return at::softmax(gains(1, x * 1) + scores, 0)[0];
    });
    CHECK(watched.verdict() == HealthVerdict{});
    CHECK_FALSE(evidence[0].has_overflow());
  }

  TEST_CASE("magnitudes are of results and of gradients without the loss scale") {
    Gains gains(3);
    Watched watched(gains.module);
    const Tensor x = leaf();
    const auto run = [&] { return gains(2, gains(1, gains(0, x * 1))).sum(); };
    for (const float scale : {1.0f, 1024.0f}) {
      const auto evidence = watched.step(run, scale);
      CHECK(evidence[0].activation == cox::Magnitude{4, kRank});
      CHECK(evidence[1].activation == cox::Magnitude{8, kRank});
      CHECK(evidence[0].gradient == cox::Magnitude{8, kRank});  // at its input
      CHECK(evidence[1].gradient == cox::Magnitude{4, kRank});
      CHECK(evidence[2].gradient == cox::Magnitude{2, kRank});
      CHECK(evidence[0].sampled == 0);  // not in fp16
    }
  }

  TEST_CASE("the gradient of a result is its own, whichever of an operation's results it is") {
    Gains gains(3, 1);
    Watched watched(gains.module);
    const Tensor x = leaf();
    const auto run = [&](double of_the_first) {
      const std::vector<Tensor> halves = gains(0, x * 1).chunk(2);
      const Tensor loss = gains(1, halves[1]).sum() * 5;
      return of_the_first == 0 ? loss : loss + gains(2, halves[0]).sum() * of_the_first;
    };
    auto evidence = watched.step([&] { return run(3); });
    CHECK(evidence[2].gradient == cox::Magnitude{3, kRank});
    CHECK(evidence[1].gradient == cox::Magnitude{5, kRank});
    CHECK(evidence[0].gradient == cox::Magnitude{5, kRank});
    evidence = watched.step([&] { return run(300); });
    CHECK(evidence[1].gradient == cox::Magnitude{5, kRank});
    CHECK(evidence[0].gradient == cox::Magnitude{300, kRank});
    evidence = watched.step([&] { return run(0); });  // the first result has no gradient
    CHECK(evidence[0].gradient == cox::Magnitude{5, kRank});
  }

  TEST_CASE("in fp16, gradients below its normal numbers are underflow; the largest is known") {
    Gains gains(2, 1);
    Watched watched(gains.module);
    watched.blocks.visits()->parts().steering.set_format(BlockId(0), Precision::fp16);
    {
      const torch::NoGradGuard no_grad;
      gains.layers[0]->gain.fill_(2);
    }
    const Tensor x = leaf();
    const Tensor weight = torch::tensor({1.0, 4.0, 0x1p-15, 0x1p-20, 0.0, 0.0, 1.0, 0x1p-14});
    watched.begin(2);
    (gains(1, gains(0, x * 1)) * weight).sum().backward();
    CHECK(largest(watched.health.amax_scaled_fp16()) == 8);
    const auto evidence = watched.end();
    CHECK(evidence[0].sampled == 16);
    // Two incoming and one outgoing value are too small; the zeros were already zeros.
    CHECK(evidence[0].underflow == 3);
    CHECK(evidence[0].gradient.value == 4);
  }

  TEST_CASE("the largest gradient in fp16 may be a parameter's; other formats have no say") {
    for (const Precision format : {Precision::fp16, Precision::bf16}) {
      torch::manual_seed(6);
      Victim victim = mlp();
      Watched watched(victim.module);
      watched.blocks.visits()->parts().steering.set_format(BlockId(1), format);
      watched.begin(4096);
      (victim.loss(std::vector<Fault>(4)) * 4096).backward();
      float of_parameters = 0;
      for (const Tensor& parameter : watched.blocks.followed()->parameters(BlockId(1))) {
        of_parameters = std::max(of_parameters, parameter.grad().abs().max().item<float>());
      }
      const float found = largest(watched.health.amax_scaled_fp16());
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
        for (std::size_t b = 0; b < watched.blocks.size(); ++b) {
          watched.blocks.visits()->parts().steering.set_action(
              BlockId(static_cast<BlockId::rep>(b)), action);
        }
        watched.begin();
        const std::vector<Tensor> seen = gradients(victim, parameters);
        const auto evidence = watched.end();
        REQUIRE(seen.size() == plain.size());
        for (std::size_t i = 0; i < seen.size(); ++i) CHECK(torch::equal(seen[i], plain[i]));
        for (std::size_t b = 0; b + 1 < evidence.size(); ++b)
          CHECK(evidence[b].activation.value > 0);
      }
    }
  }

  TEST_CASE("nothing is kept: tensors go with their graph, and hooks of past steps do nothing") {
    Gains gains(2);
    Watched watched(gains.module);
    const Tensor x = leaf();
    watched.begin();
    Tensor y = gains(0, x * 1);
    c10::weak_intrusive_ptr<at::TensorImpl> weak(y.getIntrusivePtr());
    Tensor loss = gains(1, y).sum();
    y.reset();
    loss.backward();
    loss.reset();
    CHECK(weak.expired());
    Tensor late = gains(1, gains(0, x * 1)).sum() * kInfinity;
    watched.end();
    late.backward();
    watched.begin();
    watched.end();
    CHECK(watched.verdict() == HealthVerdict{});
    watched.health.release();
    CHECK(watched.health.end_step(kRank).empty());
  }

  TEST_CASE("evaluation and operators that throw leave nothing behind") {
    Gains gains(1);
    Watched watched(gains.module);
    const Tensor x = leaf();
    watched.begin();
    {
      const torch::NoGradGuard no_grad;
      CHECK(gains(0, x).defined());
    }
    CHECK_THROWS(static_cast<void>(gains(0, x * kInfinity).view({3, 3})));
    watched.health.loss(std::numeric_limits<double>::quiet_NaN());
    const auto evidence = watched.end();
    CHECK(evidence[0] == BlockEvidence{});
    CHECK(watched.verdict().where == Where::outside);
  }
}
