// Masks in one bit a value: unpacked masks have the original bits, and other tensors are
// recognised.
#include "sdk/src/stream/packed_mask.h"

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "sdk/src/stream/operator_times.h"
#include "sdk/src/stream/storage.h"
#include "sdk/src/stream/tape.h"
#include "tests/sdk/same_bits.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

using at::Tensor;

// Returns whether the tensor can be packed and unpacks bit for bit, with its strides.
bool comes_back(const Tensor& tensor) {
  const auto packed = PackedMask::pack(tensor);
  if (!packed) return false;
  const Tensor back = packed->tensor();
  return sdk_test::same_bits(tensor, back) && back.strides() == tensor.strides() &&
         back.storage_offset() == tensor.storage_offset() &&
         storage_impl(back) != storage_impl(tensor);
}

TEST_SUITE("packed masks") {
  TEST_CASE("masks of every width and length come back bit for bit") {
    torch::manual_seed(1);
    for (const at::ScalarType type :
         {at::kBool, at::kByte, at::kHalf, at::kBFloat16, at::kFloat, at::kInt, at::kDouble}) {
      for (const std::int64_t count : {1, 7, 63, 64, 65, 128, 1000, 70'001}) {
        CAPTURE(toString(type));
        CAPTURE(count);
        const Tensor drawn = torch::rand({count}) < 0.3;
        CHECK(comes_back(type == at::kBool ? drawn : (drawn.to(at::kFloat) * 3).to(type)));
        CHECK(comes_back(torch::zeros({count}, type)));
        CHECK(comes_back(torch::ones({count}, type)));
      }
    }
  }

  TEST_CASE("a mask of bool takes an eighth of its bytes, one of float a thirty-second part") {
    const Tensor mask = torch::rand({64, 1024}) < 0.1;
    CHECK(PackedMask::pack(mask)->bytes() == 64 * 1024 / 8);
    CHECK(PackedMask::pack(mask.to(at::kFloat))->bytes() == 64 * 1024 / 8);
  }

  TEST_CASE("values are compared as bits") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(comes_back(torch::tensor({0.0F, -0.0F, -0.0F})));
    CHECK(comes_back(torch::tensor({nan, 1.0F, nan})));
    CHECK_FALSE(comes_back(torch::tensor({0.0F, -0.0F, 1.0F})));
  }

  TEST_CASE("a third value is found wherever it is") {
    for (const std::int64_t place : {2, 63, 64, 70'000, 131'071}) {
      CAPTURE(place);
      Tensor values = (torch::rand({131'072}) < 0.5).to(at::kFloat);
      values[0] = 0;
      values[1] = 1;
      values[place] = 0.5;
      CHECK_FALSE(PackedMask::pack(values).has_value());
    }
  }

  TEST_CASE("views come back as views of the whole storage") {
    const Tensor mask = (torch::rand({12, 10}) < 0.5).to(at::kFloat);
    CHECK(comes_back(mask.t()));
    CHECK(comes_back(mask.narrow(1, 3, 4)));
    CHECK(comes_back(mask[2].expand({5, 10})));
    const auto packed = PackedMask::pack(mask);
    CHECK(sdk_test::same_bits(packed->sharing(mask.t())->tensor(), mask.t()));
    CHECK_FALSE(packed->sharing(mask.view(at::kInt)).has_value());
    CHECK(sdk_test::same_bits(packed->values(), mask.view({-1})));
  }

  TEST_CASE("what has no strided memory of a CPU, or none, is not packed") {
    CHECK_FALSE(PackedMask::pack(Tensor()).has_value());
    CHECK_FALSE(PackedMask::pack(torch::empty({0})).has_value());
    CHECK_FALSE(PackedMask::pack(torch::eye(3).to_sparse()).has_value());
    CHECK_FALSE(PackedMask::pack(torch::zeros({2}, at::kComplexDouble)).has_value());
  }

  struct Trained {
    std::vector<Tensor> bits;
    TapeCounts counts;
  };

  // Uses noise of a dropout, bool masks, and noise that is no mask, in one region.
  Tensor masked(const Tensor& x) {
    const Tensor y = at::dropout(x * 2, 0.3, true).sigmoid();
    const Tensor z = std::get<0>(at::native_dropout(y, 0.2, true));
    const Tensor w = at::where(z > 0.5, z, z * z);
    return (at::rrelu(w - 0.5, 0.1, 0.4, true) * y).sum();
  }

  Trained train(Tape * tape) {
    torch::manual_seed(5);
    const Tensor x = torch::randn({33, 17}).requires_grad_();
    torch::manual_seed(6);
    Tensor loss;
    if (tape != nullptr) {
      const TapeScope scope(*tape);
      loss = masked(x);
    } else {
      loss = masked(x);
    }
    if (tape != nullptr) tape->close();
    loss.backward();
    return {{loss.detach(), x.grad(), torch::rand({2})}, tape ? tape->counts() : TapeCounts{}};
  }

  TEST_CASE("a tape keeps masks packed, serves replays from them, and the bits are the same") {
    REQUIRE(install_saved_tensor_engine().ok());
    const Trained plain = train(nullptr);
    const auto keep_all = Tape::make("all", [](const SavedValue&) { return Hold::keep; });
    // Keeps only drawn or compared values; all others are recomputed from them.
    const auto keep_masks = Tape::make("masks", [](const SavedValue& value) {
      const bool is_noise = !value.tensor.requires_grad();
      return is_noise ? Hold::keep : Hold::drop;
    });
    for (Tape* tape : {keep_all.get(), keep_masks.get()}) {
      const Trained taped = train(tape);
      CHECK(taped.counts.packed == 3);
      for (std::size_t i = 0; i < plain.bits.size(); ++i)
        CHECK(sdk_test::same_bits(plain.bits[i], taped.bits[i]));
    }
    CHECK(keep_masks->counts().dropped > 0);
    CHECK(keep_masks->counts().replayed > 0);
  }

  TEST_CASE("the planner's graph has the bytes of packed masks") {
    REQUIRE(install_saved_tensor_engine().ok());
    for (const Hold hold : {Hold::keep, Hold::drop}) {
      const auto tape = Tape::make("measured", [hold](const SavedValue&) { return hold; });
      tape->measure(std::make_shared<RegionMeter>(&steady_ns));
      train(tape.get());
      const MeasuredRegion region = measured_region(*tape);
      REQUIRE(planner::validate(region.graph).ok());
      constexpr std::int64_t kBits = (33 * 17 + 63) / 64 * 8;
      std::vector<std::int64_t> whole;
      for (const planner::GraphStorage& it : region.graph.storages) {
        if (it.packed_bytes == 0) continue;
        CHECK(it.packed_bytes == kBits);
        whole.push_back(it.bytes);
      }
      const bool is_each = whole == std::vector<std::int64_t>{33 * 17 * 4, 33 * 17, 33 * 17};
      CHECK(is_each);
      const planner::KeptSet all(region.graph.storages.size(), true);
      CHECK(planner::saved_bytes(region.graph) - planner::held_bytes(region.graph, all) ==
            6 * 33 * 17 - 3 * kBits);
    }
  }

  TEST_CASE("a mask that was written to after it was packed is an error, as in plain autograd") {
    REQUIRE(install_saved_tensor_engine().ok());
    const auto tape = Tape::make("block test", [](const SavedValue&) { return Hold::keep; });
    const Tensor x = torch::randn({8, 8}).requires_grad_();
    Tensor noise, loss;
    {
      const TapeScope scope(*tape);
      noise = torch::empty_like(x).bernoulli_(0.5);
      loss = (x * noise).sum();
    }
    tape->close();
    CHECK(tape->counts().packed == 1);
    noise.add_(1);
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("was changed in place"),
                         std::exception);
  }
}

}  // namespace
