#include "coxswain/block.h"

#include <sstream>

#include "coxswain/wrap.h"
#include "support.h"

#include <doctest/doctest.h>

namespace {

using namespace blocks_test;

template <class Dict>
std::vector<std::string> keys(const Dict& dict) {
  std::vector<std::string> names;
  for (const auto& item : dict) names.push_back(item.key());
  return names;
}

template <class Module>
std::string archive_of(const Module& module) {
  std::ostringstream bytes;
  torch::save(module, bytes);
  return bytes.str();
}

std::vector<std::string> names_in(torch::nn::Module& model) {
  auto registry = BlockRegistry::discover(model);
  REQUIRE(registry.ok());
  std::vector<std::string> names;
  for (std::size_t i = 0; i < registry->size(); ++i) {
    names.push_back(registry->name(BlockId(static_cast<BlockId::rep>(i))));
  }
  return names;
}

struct ManyImpl : torch::nn::Module {
  explicit ManyImpl(std::size_t blocks) {
    for (std::size_t i = 0; i < blocks; ++i) {
      cox::Block unit(register_module(std::to_string(i), torch::nn::Identity().ptr()));
    }
  }
};

}  // namespace

TEST_SUITE("sdk.blocks.block") {
  TEST_CASE("the marker changes no name, no state and no byte of an archive") {
    torch::manual_seed(1);
    MlpLayer layer(4);
    const auto parameters = keys(layer->named_parameters());
    const auto buffers = keys(layer->named_buffers());
    const auto children = keys(layer->named_children());
    const std::string archive = archive_of(layer);
    {
      const cox::Block<MlpLayer> block(layer);
      CHECK(keys(layer->named_parameters()) == parameters);
      CHECK(keys(layer->named_buffers()) == buffers);
      CHECK(archive_of(layer) == archive);
    }
    CHECK(names_in(*layer) == std::vector<std::string>{"model"});
    cox::detach(*layer);
    CHECK(keys(layer->named_children()) == children);
    CHECK(archive_of(layer) == archive);
    CHECK(names_in(*layer).empty());
  }

  TEST_CASE("archives load in both directions between marked and plain modules") {
    MlpLayer plain(4);
    MlpLayer marked(4);
    const cox::Block<MlpLayer> block(marked);
    for (const auto& [from, to] : {std::tuple(plain, marked), std::tuple(marked, plain)}) {
      torch::nn::init::normal_(from->linear->weight);
      std::istringstream bytes(archive_of(from));
      MlpLayer target = to;
      torch::load(target, bytes);
      CHECK(torch::equal(from->linear->weight, to->linear->weight));
    }
  }

  TEST_CASE("blocks are named by their path and numbered in the order of registration") {
    GptNet net(3);
    CHECK(names_in(*net) == std::vector<std::string>{"h.0", "h.1", "h.2"});
    auto registry = BlockRegistry::discover(*net);
    std::uint64_t elements = 0;
    for (const Tensor& parameter : net->blocks[1]->parameters()) {
      elements += static_cast<std::uint64_t>(parameter.numel());
    }
    CHECK(registry->parameters(BlockId(1)) == elements);
  }

  TEST_CASE("a module that is a block twice, or registered twice, is one block") {
    torch::nn::Module model;
    const auto layer = model.register_module("a", torch::nn::Linear(2, 2));
    model.register_module("b", layer);
    const cox::Block first(layer);
    const cox::Block<torch::nn::Linear> second(layer);
    CHECK(first.gate() == second.gate());
    CHECK(names_in(model) == std::vector<std::string>{"a"});
  }

  TEST_CASE("a model may live on the stack, and moves between dtypes with its blocks") {
    GptNetImpl net(1);
    net.to(torch::kFloat64);
    CHECK((net.blocks[0]->qkv->weight.scalar_type() == torch::kFloat64));
    CHECK(names_in(net).size() == 1);
  }

  TEST_CASE("a Cloneable block can be cloned once it is detached") {
    torch::nn::Linear linear(2, 2);
    const cox::Block<torch::nn::Linear> block(linear);
    cox::detach(*linear);
    const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(linear->clone());
    CHECK(torch::equal(copy->weight, linear->weight));
  }

  TEST_CASE("as many blocks as a plan can hold are found, one more is an error that counts them") {
    ManyImpl most(cox::kMaxBlocks);
    CHECK(names_in(most).size() == cox::kMaxBlocks);
    ManyImpl more(cox::kMaxBlocks + 1);
    const auto registry = BlockRegistry::discover(more);
    REQUIRE_FALSE(registry.ok());
    CHECK(registry.status().code() == cox::StatusCode::resource_exhausted);
    CHECK(registry.status().message().find("expected at most 1024, found 1025") !=
          std::string::npos);
  }

  TEST_CASE("a second observer of the same model is refused until the first is gone") {
    GptNet net;
    KeepingSink sink;
    auto second = BlockRegistry::discover(*net);
    {
      auto first = BlockRegistry::discover(*net);
      REQUIRE(first->attach(sink).ok());
      CHECK(second->attach(sink).code() == cox::StatusCode::failed_precondition);
    }
    CHECK(second->attach(sink).ok());
  }

  TEST_CASE("a block's state ends with its model, its registry and the graphs it is in") {
    std::weak_ptr<cox::detail::BlockGate> state;
    KeepingSink sink;
    Tensor loss;
    {
      GptNet net;
      state = net->blocks[0].gate();
      auto registry = BlockRegistry::discover(*net);
      REQUIRE(registry->attach(sink).ok());
      REQUIRE(registry->measure(MeasureMode::full).ok());
      net->forward(net->example(), Calls::through_run).sum().backward();
      call(Calls::through_run, net->blocks[0], torch::ones({1, 2, 8})).sum().backward();
      loss = net->forward(net->example(), Calls::through_run).sum();
    }
    CHECK_FALSE(state.expired());
    loss.backward();
    loss = Tensor();
    CHECK(state.expired());
  }

  TEST_CASE("a detached model runs on unobserved, and its registry is harmless") {
    GptNet net;
    KeepingSink sink;
    auto registry = BlockRegistry::discover(*net);
    REQUIRE(registry->attach(sink).ok());
    REQUIRE(registry->measure(MeasureMode::times).ok());
    cox::detach(*net);
    REQUIRE(registry->measure(MeasureMode::full).ok());
    net->forward(net->example(), Calls::through_run).sum().backward();
    CHECK(sink.reports.empty());
  }
}
