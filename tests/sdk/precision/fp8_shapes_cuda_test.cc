// FP8 on a device: the timing of products, and the path of their counts to the host. Needs the
// stand-ins for CUDA.
#include <torch/torch.h>

#include <memory>

#include "sdk/src/precision/fp8_block.h"
#include "sdk/src/precision/fp8_watch.h"
#include "tests/sdk/device/stand_in_counts.h"

#include <doctest/doctest.h>

using cox::detail::Fp8Block;
using cox::detail::Fp8Blocks;
using cox::detail::Fp8Counts;
using cox::detail::Fp8Reading;
using cox::detail::Fp8Shapes;
using cox::detail::Fp8Side;

TEST_CASE("a device without a number is the current one when shapes of products are timed") {
  for (const at::Device device : {at::Device(at::kCUDA), at::Device(at::kCUDA, 0)}) {
    const std::shared_ptr<Fp8Shapes> shapes = Fp8Shapes::of(device);
    REQUIRE(shapes != nullptr);
    CHECK_NOTHROW(shapes->best({16, 16, 16}));
    // Shapes that the hardware does not support use bf16, without timing.
    CHECK((shapes->best({3, 16, 16}) == cox::detail::ProductPath::bf16));
  }
}

TEST_CASE(
    "what products of many blocks count on a device is read without a wait, each where it "
    "belongs") {
  Fp8Blocks blocks;
  for (int b = 0; b < 3; ++b)
    blocks.push_back(std::make_shared<Fp8Block>(cox::detail::Fp8Recipe{}));
  const auto product = [](Fp8Block& block, Fp8Side side, float value) {
    const at::Tensor values = torch::tensor({0.0f, 1e-30f, value}).to(at::kCUDA);
    const auto format = cox::detail::FloatFormat::e4m3;
    const at::Tensor scale = torch::ones({1}).to(at::kCUDA);
    block.see(side, 0, cox::detail::quantize_tensor(values, format, scale).seen);
  };
  product(*blocks[0], Fp8Side::activation, 2);
  product(*blocks[2], Fp8Side::activation, 1e6);
  product(*blocks[2], Fp8Side::gradient, -3);
  const std::uint64_t before = synchronisations();
  Fp8Reading reading(blocks);
  CHECK(blocks[2]->take_counts() == Fp8Counts());
  for (int polls = 0; !reading.finish(); ++polls) REQUIRE(polls < 1000);
  const Fp8Counts first = blocks[0]->take_counts();
  const Fp8Counts last = blocks[2]->take_counts();
  CHECK(synchronisations() == before);
  CHECK(blocks[1]->take_counts() == Fp8Counts());
  CHECK(first == Fp8Counts{3, 1, 0, 2, 0});
  CHECK(last == Fp8Counts{6, 2, 1, 1e6, 3});
  CHECK(reading.finish());  // nothing left to read
  CHECK(blocks[0]->take_counts() == Fp8Counts());
}
