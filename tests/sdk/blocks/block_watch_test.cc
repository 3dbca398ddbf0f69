#include "sdk/src/blocks/block_watch.h"

#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/error.h"
#include "sdk/src/blocks/timed_run.h"

#include <doctest/doctest.h>

namespace {

using cox::detail::BlockMeasurement;
using cox::detail::BlockMeasurements;
using cox::detail::BlockWatch;

// Runs steps of a net on inputs of `rows`. Returns the steps after which a profile was sent.
std::vector<std::uint64_t> told_in(BlockWatch& watch, torch::nn::Linear& net,
                                   const std::vector<std::int64_t>& rows) {
  std::vector<std::uint64_t> told;
  for (std::uint64_t step = 0; step < rows.size(); ++step) {
    watch.begin_step();
    net->forward(torch::ones({rows[step], 4})).sum().backward();
    const cox::Plan plan;
    cox::detail::StepOutput output;
    watch.end_step({cox::RankId(0), {}, plan, 1}, output);
    const cox::Fragment fragment = watch.next_fragment();
    if (fragment.kind != cox::FragmentKind::block_profile) continue;
    told.push_back(step);
    CHECK(cox::read_block_profile(fragment)->forward_seconds > 0);
  }
  return told;
}

struct NestedImpl : torch::nn::Module {
  torch::nn::Sequential layers{register_module(
      "layers", torch::nn::Sequential(torch::nn::Linear(2, 3), torch::nn::Linear(3, 2)))};
  torch::nn::Linear head{register_module("head", torch::nn::Linear(2, 1))};
};
TORCH_MODULE(Nested);

}  // namespace

TEST_SUITE("sdk.blocks.block_watch") {
  TEST_CASE("what a block costs is told once, and again whenever its times were measured anew") {
    torch::nn::Linear net(4, 4);
    BlockWatch watch;
    watch.attach(*net);
    constexpr std::uint64_t kEvery = BlockMeasurements::kTimesEverySteps;
    const auto told = told_in(watch, net, std::vector<std::int64_t>(2 * kEvery + 2, 2));
    CHECK(told == std::vector<std::uint64_t>{0, kEvery, 2 * kEvery});
    watch.release();
  }

  TEST_CASE(
      "a step of other shapes is noticed when times are measured, and measured in full next") {
    torch::nn::Linear net(4, 4);
    BlockWatch watch;
    watch.attach(*net);
    constexpr std::size_t kEvery = BlockMeasurements::kTimesEverySteps;
    std::vector<std::int64_t> rows(kEvery, 2);
    rows.resize(kEvery + 3, 8);
    const auto told = told_in(watch, net, rows);
    CHECK(told == std::vector<std::uint64_t>{0, kEvery, kEvery + 1});
    watch.release();
  }

  TEST_CASE("a model without parameters has no blocks, and one that was released none any more") {
    BlockWatch watch;
    torch::nn::Sequential nothing;
    watch.attach(*nothing);
    CHECK(watch.size() == 0);
    CHECK(watch.followed() == nullptr);
    CHECK(watch.visits() == nullptr);
    torch::nn::Sequential net(torch::nn::Linear(2, 3), torch::nn::Linear(3, 1));
    watch.attach(*net);
    CHECK(watch.names() == std::vector<std::string>{"0", "1"});
    watch.release();
    CHECK(watch.size() == 0);
    watch.begin_step();
    net->forward(torch::ones({1, 2})).sum().backward();
    CHECK(watch.next_fragment().kind == cox::FragmentKind::none);
  }

  TEST_CASE("settings say which modules are blocks, and what the program opens itself") {
    Nested net;
    BlockWatch watch({.modules = {"layers.*"}, .scopes = {"loss"}});
    watch.attach(*net);
    CHECK(watch.names() == std::vector<std::string>{"layers.0", "layers.1", "head", "loss"});
    CHECK(watch.followed()->size() == 3);
    BlockWatch misspelt({.modules = {"layer.*"}, .scopes = {}});
    CHECK_THROWS_WITH_AS(misspelt.attach(*net), doctest::Contains("layer.*"), cox::Error);
    BlockWatch taken({.modules = {}, .scopes = {"head"}});
    CHECK_THROWS_WITH_AS(taken.attach(*net), doctest::Contains("blocks.scopes"), cox::Error);
    CHECK(taken.size() == 0);
  }

  TEST_CASE("of several models each is divided by the patterns that begin with its name") {
    Nested net;
    BlockWatch watch({.modules = {"g.head", "other.*"}, .scopes = {"loss"}});
    for (const char* name : {"g", "d"}) REQUIRE(watch.adopt(*watch.divide(*net, {}, name)).ok());
    CHECK(watch.names() == std::vector<std::string>{"g.layers", "g.head", "loss", "d.layers.0",
                                                    "d.layers.1", "d.head"});
    watch.release();
  }

  TEST_CASE("times of blocks are those of the step that is run for them, and of no other") {
    torch::nn::Sequential net(torch::nn::Linear(64, 64), torch::nn::Linear(64, 1));
    BlockWatch watch;
    watch.attach(*net);
    const BlockWatch::Following shown(watch);
    net->forward(torch::ones({64, 64})).sum().backward();
    const auto times = run_timed(*watch.visits(), [&] {
      for (int pass = 0; pass < 50; ++pass)
        net[0]->as<torch::nn::Linear>()->forward(torch::ones({64, 64})).sum().backward();
      return cox::ok_status();
    });
    REQUIRE(times.ok());
    REQUIRE(times->size() == 2);
    CHECK((*times)[0] > 0);
    CHECK((*times)[1] == 0);
    const auto failed = run_timed(*watch.visits(), [] { return cox::internal_error("no"); });
    CHECK(failed.status().message() == "no");
  }

  TEST_CASE("a measurement travels as a profile that keeps the end of a long name") {
    BlockMeasurement measured;
    measured.parameters = std::uint64_t{1} << 40;
    measured.saved_bytes = 7;
    measured.forward = cox::Seconds(0.5);
    const cox::BlockProfile profile =
        block_profile(cox::BlockId(3), 9, "a_long_prefix.transformer.h.13", measured);
    CHECK(std::string(profile.name.data(), profile.name.size()) == "_prefix.transformer.h.13");
    CHECK(profile.parameters == 0xFFFFFFFF);
    CHECK(profile.forward_seconds == 0.5f);
    CHECK(profile.saved_bytes == 7);
    CHECK(profile.blocks == 9);
  }
}
