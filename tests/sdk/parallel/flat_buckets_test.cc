#include "sdk/src/parallel/flat_buckets.h"

#include <torch/torch.h>

#include <vector>

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor parameter(std::vector<std::int64_t> shape, at::ScalarType type = at::kFloat) {
  return torch::randn(shape, type).set_requires_grad(true);
}

void give_gradient(const at::Tensor& p) {
  p.mutable_grad() = torch::randn_like(p, torch::TensorOptions().requires_grad(false));
}

}  // namespace

TEST_SUITE("flat buckets") {
  TEST_CASE("parameters lie end to end in their order, and bookkeeping behind the first bucket") {
    FlatBuckets buckets({parameter({2, 3}), parameter({}), parameter({0}), parameter({4})});
    REQUIRE(buckets.buckets().size() == 1);
    const Bucket& bucket = buckets.buckets()[0];
    CHECK(bucket.elements == 11);
    CHECK(bucket.flat.numel() == 11 + 4);
    REQUIRE(bucket.entries.size() == 4);
    const std::int64_t offsets[] = {0, 6, 7, 7};
    for (std::size_t i = 0; i < 4; ++i) {
      CHECK(bucket.entries[i].parameter == i);
      CHECK(bucket.entries[i].offset == offsets[i]);
    }
  }

  TEST_CASE("double parameters get buckets of their own, all others travel as float") {
    FlatBuckets buckets({parameter({2}), parameter({3}, at::kDouble), parameter({2}, at::kBFloat16),
                         parameter({2}, at::kHalf)});
    REQUIRE(buckets.buckets().size() == 3);
    CHECK((buckets.buckets()[0].flat.scalar_type() == at::kFloat));
    CHECK((buckets.buckets()[1].flat.scalar_type() == at::kDouble));
    CHECK((buckets.buckets()[2].flat.scalar_type() == at::kFloat));
    CHECK(buckets.buckets()[2].entries.size() == 2);
    CHECK(buckets.buckets()[1].flat.numel() == 3);  // no bookkeeping
  }

  TEST_CASE("a bucket ends at its size, and a larger parameter has one for itself") {
    const std::int64_t full = FlatBuckets::kBucketBytes / 4;
    FlatBuckets buckets({parameter({full - 1}), parameter({1}), parameter({1}),
                         parameter({full + 1}), parameter({1})});
    REQUIRE(buckets.buckets().size() == 4);
    CHECK(buckets.buckets()[0].entries.size() == 2);
    CHECK(buckets.buckets()[0].elements == full);
    CHECK(buckets.buckets()[2].elements == full + 1);
  }

  TEST_CASE("gradients go in times a factor and come back as views of the right shape") {
    torch::manual_seed(1);
    const Tensors parameters = {parameter({2, 3}), parameter({4})};
    for (const at::Tensor& p : parameters) give_gradient(p);
    const at::Tensor first = parameters[0].grad().clone();
    FlatBuckets buckets(parameters);
    buckets.fill(4);
    buckets.divide(2);
    buckets.hand_back();
    CHECK(torch::equal(parameters[0].grad(), first * 2));
    CHECK(parameters[0].grad().sizes() == parameters[0].sizes());
    CHECK(parameters[0].grad().is_alias_of(buckets.buckets()[0].flat));
  }

  TEST_CASE("filling again from the views changes nothing") {
    torch::manual_seed(1);
    const Tensors parameters = {parameter({2, 3}), parameter({4})};
    for (const at::Tensor& p : parameters) give_gradient(p);
    FlatBuckets buckets(parameters);
    buckets.fill(1);
    buckets.hand_back();
    const at::Tensor before = buckets.buckets()[0].flat.clone();
    buckets.fill(1);
    CHECK(torch::equal(before, buckets.buckets()[0].flat));
  }

  TEST_CASE("a gradient that is a transposed view lands in the parameter's order") {
    const at::Tensor p = parameter({2, 3});
    p.mutable_grad() = torch::arange(6, at::kFloat).view({3, 2}).t();
    const at::Tensor expected = p.grad().clone();
    FlatBuckets buckets({p});
    buckets.fill(1);
    buckets.hand_back();
    CHECK(torch::equal(p.grad(), expected));
  }

  TEST_CASE("gradients of other types are converted there and back") {
    torch::manual_seed(2);
    for (const auto type : {at::kBFloat16, at::kHalf, at::kDouble}) {
      const at::Tensor p = parameter({5}, type);
      give_gradient(p);
      const at::Tensor expected = p.grad().clone();
      FlatBuckets buckets({p});
      buckets.fill(1);
      buckets.hand_back();
      CHECK((p.grad().scalar_type() == type));
      CHECK(torch::equal(p.grad(), expected));
    }
  }

  TEST_CASE("who has no gradient contributes zeros, and gets none where nobody has one") {
    const Tensors parameters = {parameter({2}), parameter({3}), parameter({2}, at::kDouble)};
    give_gradient(parameters[1]);
    FlatBuckets buckets(parameters);
    buckets.buckets()[0].flat.fill_(7);
    buckets.buckets()[1].flat.fill_(7);
    buckets.fill(1);
    CHECK(buckets.buckets()[0].flat.narrow(0, 0, 2).abs().sum().item<double>() == 0);
    CHECK(buckets.buckets()[1].flat.abs().sum().item<double>() == 0);
    // Another rank, in effect, has a gradient for the last parameter and none for the first.
    buckets.buckets()[0].flat[buckets.buckets()[0].elements + 2].add_(1);
    buckets.hand_back();
    CHECK_FALSE(parameters[0].grad().defined());
    CHECK(parameters[1].grad().defined());
    REQUIRE(parameters[2].grad().defined());
    CHECK(parameters[2].grad().abs().sum().item<double>() == 0);
  }
}
