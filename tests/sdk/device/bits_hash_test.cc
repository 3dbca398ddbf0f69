// The hash of the bits of tensors on a device: detects differences, does not depend on the order of
// additions, and needs little memory.
#include "sdk/src/device/bits_hash.h"

#include <torch/torch.h>

#include <vector>

#include "sdk/src/memory/tensor_memory.h"

#include <doctest/doctest.h>

namespace {

const at::Device kDevice(at::kCUDA, 0);
constexpr std::int64_t kElements = 1 << 18;
constexpr std::int64_t kAtOnce = 1 << 14;

std::int64_t hash_of(const at::Tensor& tensor, std::int64_t at_once = kAtOnce) {
  return cox::detail::bits_hash_on(kDevice, {{tensor}}, at_once).item<std::int64_t>();
}

at::Tensor values_of(at::ScalarType type) {
  torch::manual_seed(5);
  return torch::randn(kElements).mul(100).to(type).to(kDevice);
}

const std::vector<at::ScalarType> kTypes = {at::kByte,  at::kBool,   at::kHalf, at::kBFloat16,
                                            at::kFloat, at::kDouble, at::kLong};

}  // namespace

TEST_SUITE("hashes of bits on a device") {
  TEST_CASE("how many elements are looked at at once changes no hash") {
    for (const at::ScalarType type : kTypes) {
      CAPTURE(at::toString(type));
      const at::Tensor values = values_of(type);
      const std::int64_t whole = hash_of(values, kElements);
      for (const std::int64_t at_once : {kAtOnce, std::int64_t{1000}, 2 * kElements})
        CHECK(hash_of(values, at_once) == whole);
    }
  }

  TEST_CASE("an element that differs in one bit, or lies elsewhere, gives another hash") {
    for (const at::ScalarType type : kTypes) {
      CAPTURE(at::toString(type));
      const at::Tensor values = values_of(type);
      values[0].fill_(0);
      values[kElements - 1].fill_(1);
      const std::int64_t whole = hash_of(values);
      CHECK(hash_of(values.clone()) == whole);
      CHECK(hash_of(values.flip(0)) != whole);
      at::Tensor changed = values.clone();
      changed[kElements - 1].fill_(0);
      CHECK(hash_of(changed) != whole);
    }
    const at::Tensor zero = torch::zeros(3, kDevice);
    CHECK(hash_of(zero.neg()) != hash_of(zero));
  }

  TEST_CASE("tensors one after the other have the hash of one tensor") {
    const at::Tensor values = values_of(at::kFloat);
    const std::vector<at::Tensor> parts = values.split({1000, kElements - 1000});
    const at::Tensor apart = cox::detail::bits_hash_on(kDevice, parts, kAtOnce);
    CHECK(apart.item<std::int64_t>() == hash_of(values));
  }

  // The hash must need little memory, because a step that compares bits has the same memory budget.
  TEST_CASE("eight bytes are needed for each element that is looked at at once") {
    const cox::detail::TensorMemory memory(kDevice);
    for (const at::ScalarType type : kTypes) {
      CAPTURE(at::toString(type));
      const at::Tensor values = values_of(type);
      const std::int64_t live = memory.count().live_bytes;
      memory.reset_peak();
      (void)hash_of(values);
      constexpr std::int64_t kScalars = 16 * 1024;  // a few, of 512 bytes each
      CHECK(memory.count().peak_bytes - live <= 8 * kAtOnce + kScalars);
    }
  }
}
