// FP8 products are timed on a device that is named without a number. Needs the stand-ins for CUDA.
#include <torch/torch.h>

#include <memory>

#include "sdk/src/precision/fp8_block.h"

#include <doctest/doctest.h>

using cox::detail::Fp8Shapes;

TEST_CASE("a device without a number is the current one when shapes of products are timed") {
  for (const at::Device device : {at::Device(at::kCUDA), at::Device(at::kCUDA, 0)}) {
    const std::shared_ptr<Fp8Shapes> shapes = Fp8Shapes::of(device);
    REQUIRE(shapes != nullptr);
    CHECK_NOTHROW(shapes->best({16, 16, 16}));
    // What the hardware cannot take is left to bf16, untimed.
    CHECK((shapes->best({3, 16, 16}) == cox::detail::ProductPath::bf16));
  }
}
