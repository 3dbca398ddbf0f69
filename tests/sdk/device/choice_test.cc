#include "sdk/src/device/choice.h"

#include <string>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

TEST_CASE("a rank takes the device of its number on its node, and the CPU where there is none") {
  struct Case {
    DeviceSetting setting;
    CudaFacts facts;
    std::int32_t rank_on_node;
    std::string expected;  // empty = refused
  };
  const CudaFacts none{0, "no driver", {}};
  const CudaFacts unusable{2, {}, "no cuDNN"};
  const std::vector<Case> cases = {
      {DeviceSetting::automatic, {4, {}, {}}, 0, "cuda:0"},
      {DeviceSetting::automatic, {4, {}, {}}, 3, "cuda:3"},
      {DeviceSetting::automatic, {2, {}, {}}, 3, "cuda:1"},  // more ranks than devices
      {DeviceSetting::automatic,
       {1, {}, {}},
       5,
       "cuda:0"},  // the launcher shows each rank one device
      {DeviceSetting::automatic, none, 0, "cpu"},
      {DeviceSetting::automatic, unusable, 1, "cpu"},
      {DeviceSetting::cuda, {2, {}, {}}, 1, "cuda:1"},
      {DeviceSetting::cuda, none, 0, ""},
      {DeviceSetting::cuda, unusable, 0, ""},
      {DeviceSetting::cpu, {2, {}, {}}, 1, "cpu"},
      {DeviceSetting::cpu, unusable, 0, "cpu"},
  };
  for (const Case& each : cases) {
    CAPTURE(each.expected);
    CAPTURE(each.rank_on_node);
    const auto chosen = choose_device(each.setting, each.facts, each.rank_on_node);
    CHECK(chosen.ok() == !each.expected.empty());
    if (chosen.ok()) CHECK(chosen->str() == each.expected);
  }
}

TEST_CASE("a refusal says why there is no device, and what to do") {
  const auto refused = choose_device(DeviceSetting::cuda, {0, "the driver is too old", {}}, 0);
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.status().message().find("the driver is too old") != std::string::npos);
  CHECK(refused.status().message().find("run.device=auto") != std::string::npos);
}

TEST_CASE("without a driver there is no device, and the reason is CUDA's own") {
  const CudaFacts facts = find_cuda();
  if (facts.devices > 0) return;  // a machine with a GPU
  CHECK_FALSE(facts.why_none.empty());
  CHECK(facts.why_unusable.empty());
}
