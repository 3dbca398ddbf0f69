#include <torch/torch.h>

#include <string>
#include <vector>

#include "coxswain/safetensors.h"

#include <doctest/doctest.h>

namespace {

using cox::NamedTensor;

bool mentions(const cox::Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

TEST_SUITE("sdk.checkpoint") {
  TEST_CASE("tensors are copied by name into parameters that require grad") {
    const at::Tensor a = torch::zeros({2, 3}).set_requires_grad(true);
    const at::Tensor b = torch::zeros({4}, torch::kDouble);
    const std::vector<NamedTensor> targets = {{"a", a}, {"b", b}};
    const std::vector<NamedTensor> source = {{"b", torch::ones({4}, torch::kDouble)},
                                             {"a", torch::full({2, 3}, 5.0)}};
    REQUIRE(cox::load_into(targets, source).ok());
    CHECK(a.detach().equal(torch::full({2, 3}, 5.0)));
    CHECK(b.equal(torch::ones({4}, torch::kDouble)));
    CHECK(a.is_leaf());
  }

  TEST_CASE("missing, unexpected and different tensors are listed together and nothing is copied") {
    const at::Tensor a = torch::zeros({2});
    const std::vector<NamedTensor> targets = {{"a", a},
                                              {"lost", torch::zeros({1})},
                                              {"shape", torch::zeros({2, 2})},
                                              {"type", torch::zeros({2})}};
    const std::vector<NamedTensor> source = {{"a", torch::ones({2})},
                                             {"extra", torch::ones({1})},
                                             {"shape", torch::ones({4})},
                                             {"type", torch::ones({2}, torch::kHalf)}};
    const cox::Status status = cox::load_into(targets, source);
    CHECK(status.code() == cox::StatusCode::invalid_argument);
    CHECK(mentions(status, "missing: lost;"));
    CHECK(mentions(status, "unexpected: extra;"));
    CHECK(mentions(status, "shape (expected Float[2, 2], found Float[4])"));
    CHECK(mentions(status, "type (expected Float[2], found Half[2])"));
    CHECK(a.equal(torch::zeros({2})));
  }

  TEST_CASE("a long list of names is cut with a count") {
    std::vector<NamedTensor> source;
    for (int i = 0; i < 30; ++i) source.push_back({"t" + std::to_string(i), torch::ones({1})});
    CHECK(mentions(cox::load_into({}, source), "and 22 more"));
  }

  TEST_CASE("a name that occurs twice is an error on either side") {
    const std::vector<NamedTensor> once = {{"a", torch::ones({1})}};
    const std::vector<NamedTensor> twice = {{"a", torch::ones({1})}, {"a", torch::ones({1})}};
    CHECK(mentions(cox::load_into(twice, once), "target \"a\" occurs twice"));
    CHECK(mentions(cox::load_into(once, twice), "source \"a\" occurs twice"));
  }
}

}  // namespace
