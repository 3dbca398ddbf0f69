#include "coxswain/wrap.h"

#include <sstream>

#include "support.h"

#include <doctest/doctest.h>

namespace {

using namespace blocks_test;
using torch::nn::Sequential;

struct TwoInputsImpl : torch::nn::Module {
  Tensor forward(Tensor a, Tensor b) { return a + b; }
};
TORCH_MODULE(TwoInputs);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    features = register_module(
        "features", Sequential(torch::nn::Linear(4, 6), torch::nn::BatchNorm1d(6),
                               torch::nn::ReLU(), torch::nn::Dropout(0.5),
                               torch::nn::Functional(torch::tanh), torch::nn::Linear(6, 2)));
  }
  Sequential features{nullptr};
};

struct Seen {
  std::vector<Tensor> tensors;
  std::vector<std::string> names;
  std::string archive;
};

// Forward, backward and state from a fixed seed.
Seen look(NetImpl& net) {
  torch::manual_seed(3);
  Seen seen;
  net.zero_grad();
  const Tensor out = net.features->forward(torch::linspace(-1, 1, 12).view({3, 4}));
  out.pow(2).sum().backward();
  seen.tensors.push_back(out.detach());
  for (const auto& parameter : net.named_parameters()) {
    seen.names.push_back(parameter.key());
    seen.tensors.push_back(parameter.value().grad().clone());
  }
  for (const auto& buffer : net.named_buffers()) {
    seen.names.push_back(buffer.key());
    seen.tensors.push_back(buffer.value().clone());
    buffer.value().zero_();
  }
  std::ostringstream bytes;
  torch::save(net.features, bytes);
  seen.archive = bytes.str();
  return seen;
}

bool same(const Seen& a, const Seen& b) {
  return same_bits(a.tensors, b.tensors) && a.names == b.names && a.archive == b.archive;
}

std::vector<const torch::nn::Module*> modules_of(const torch::nn::Module& module) {
  std::vector<const torch::nn::Module*> found;
  for (const auto& item : module.named_modules("", false)) found.push_back(item.value().get());
  return found;
}

}  // namespace

TEST_SUITE("sdk.blocks.wrap") {
  TEST_CASE(
      "a wrapped Sequential gives the same bits, names and archives; so does a detached one") {
    torch::manual_seed(2);
    NetImpl net;
    (void)look(net);  // from here on the buffers start at zero
    const Seen before = look(net);
    const auto modules = modules_of(net);
    CHECK(cox::wrap(net.features).empty());
    CHECK(modules_of(net) == modules);
    for (const MeasureMode mode : {MeasureMode::off, MeasureMode::times, MeasureMode::full}) {
      CAPTURE(static_cast<int>(mode));
      KeepingSink sink;
      auto registry = BlockRegistry::discover(net);
      REQUIRE(registry.ok());
      REQUIRE(registry->attach(sink).ok());
      REQUIRE(registry->measure(mode).ok());
      CHECK(same(look(net), before));
      CHECK(sink.reports.size() == (mode == MeasureMode::off ? 0 : 6));
    }
    cox::detach(net);
    CHECK(modules_of(net) == modules);
    CHECK(same(look(net), before));
    CHECK(BlockRegistry::discover(net)->size() == 0);
    CHECK(net.features->at<torch::nn::LinearImpl>(0).weight.defined());
  }

  TEST_CASE("elements are named by their path, in their order, with their own parameters") {
    NetImpl net;
    cox::wrap(net.features);
    const auto registry = BlockRegistry::discover(net);
    REQUIRE(registry->size() == 6);
    CHECK(registry->name(BlockId(0)) == "features.0");
    CHECK(registry->name(BlockId(5)) == "features.5");
    CHECK(registry->parameters(BlockId(0)) == 4 * 6 + 6);
    CHECK(registry->parameters(BlockId(2)) == 0);
  }

  TEST_CASE("wrapping twice changes nothing, also for elements added in between") {
    NetImpl net;
    cox::wrap(net.features);
    net.features->push_back(torch::nn::Linear(2, 2));
    CHECK(cox::wrap(net.features).empty());
    CHECK(BlockRegistry::discover(net)->size() == 7);
    cox::detach(net);
    CHECK(net.features->at<torch::nn::LinearImpl>(6).weight.defined());
  }

  TEST_CASE("pointers to elements stay those of the elements") {
    NetImpl net;
    const auto element = net.features->ptr(0);
    cox::wrap(net.features);
    CHECK(net.features->ptr(0) == element);
    CHECK(net.features[0] == element);
    CHECK_THROWS_AS(net.features->at<torch::nn::LinearImpl>(0), c10::Error);
  }

  TEST_CASE("a clone of a wrapped Sequential has its values, names and blocks of its own") {
    torch::manual_seed(2);
    Sequential original(torch::nn::Linear(4, 3), torch::nn::ReLU());
    cox::wrap(original);
    const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(original->clone());
    const Tensor x = torch::linspace(-1, 1, 8).view({2, 4});
    CHECK(torch::equal(copy->forward(x), original->forward(x)));
    CHECK(copy->named_parameters().keys() == original->named_parameters().keys());
    CHECK_FALSE(copy->parameters()[0].is_same(original->parameters()[0]));
    KeepingSink sink;
    auto registry = BlockRegistry::discover(*copy);
    REQUIRE(registry->attach(sink).ok());
    REQUIRE(registry->measure(MeasureMode::times).ok());
    original->forward(x).sum().backward();
    CHECK(sink.reports.empty());
    copy->forward(x).sum().backward();
    CHECK(sink.reports.size() == 2);
  }

  TEST_CASE("what cannot be a block is left as it is, with its place and a reason") {
    MlpLayer marked(4);
    const cox::Block<MlpLayer> block(marked);
    Sequential mixed(torch::nn::Linear(4, 4), torch::nn::LSTM(4, 4), marked);
    const auto notes = cox::wrap(mixed);
    REQUIRE(notes.size() == 2);
    CHECK(notes[0].index == 1);
    CHECK(notes[0].why.find("tuple") != std::string::npos);
    CHECK(mixed->at<torch::nn::LSTMImpl>(1).options.hidden_size() == 4);
    CHECK(notes[1].index == 2);
    CHECK(notes[1].why.find("already") != std::string::npos);
  }

  TEST_CASE("a call with several inputs passes through, and a wrong one fails as before") {
    Sequential two{TwoInputs(), torch::nn::ReLU()};
    cox::wrap(two);
    KeepingSink sink;
    auto registry = BlockRegistry::discover(*two);
    REQUIRE(registry->attach(sink).ok());
    REQUIRE(registry->measure(MeasureMode::full).ok());
    torch::NoGradGuard no_grad;
    const Tensor x = torch::ones({2});
    CHECK(torch::equal(two->forward(x, x), x + x));
    CHECK(sink.reports.size() == 1);  // the second element's
    CHECK_THROWS_AS(two->forward(x), c10::Error);
    CHECK_THROWS_AS(two->forward(x, 1), c10::Error);
  }

  TEST_CASE("an empty Sequential is wrapped to nothing") {
    Sequential empty;
    CHECK(cox::wrap(empty).empty());
  }
}
