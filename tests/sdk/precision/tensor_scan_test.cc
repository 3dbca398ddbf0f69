#include "sdk/src/device/tensor_scan.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

using namespace cox::detail;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kHalf};

// Returns every bit pattern of a 16-bit format, once.
at::Tensor all_of(at::ScalarType type) {
  return at::arange(-32768, 32768, at::kInt).to(at::kShort).view(type);
}

// Computes the same figures in another way.
TensorScan expected(const at::Tensor& tensor) {
  const at::Tensor wide = tensor.to(at::kDouble).abs();
  const at::Tensor finite = at::isfinite(wide);
  const at::Tensor numbers = wide.masked_select(finite);
  TensorScan scan;
  scan.values = tensor.numel();
  scan.nonfinite = (~finite).sum().item<std::int64_t>();
  scan.tiny = ((wide > 0) & (wide < std::ldexp(1.0, -14))).sum().item<std::int64_t>();
  scan.zeros = (wide == 0).sum().item<std::int64_t>();
  if (numbers.numel() > 0) scan.amax = numbers.max().item<float>();
  return scan;
}

void check_equal(const TensorScan& found, const TensorScan& wanted) {
  CHECK(found.values == wanted.values);
  CHECK(found.nonfinite == wanted.nonfinite);
  CHECK(found.tiny == wanted.tiny);
  CHECK(found.zeros == wanted.zeros);
  CHECK(found.amax == wanted.amax);
}

at::Tensor mixed(std::int64_t size, at::ScalarType type) {
  return (at::randn({size}) * at::exp(at::randn({size}) * 6)).to(type);
}

double squares_in_double(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).pow(2).sum().item<double>();
}

// Spells out the order of the sum: 32 lanes in pieces of 2^17 values.
double squares_in_lanes(const std::vector<float>& values) {
  constexpr std::size_t kPiece = std::size_t{1} << 17;
  double total = 0;
  for (std::size_t first = 0; first < values.size(); first += kPiece) {
    std::array<double, 32> lanes{};
    for (std::size_t i = first; i < std::min(values.size(), first + kPiece); ++i) {
      lanes[i % 32] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    double piece = 0;
    for (const double lane : lanes) piece += lane;
    total += piece;
  }
  return total;
}

}  // namespace

TEST_SUITE("tensor scan") {
  TEST_CASE("all patterns of 16 bits are told apart") {
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) {
      const at::Tensor all = all_of(type);
      check_equal(scan(all, ScanKind::small), expected(all));
      CHECK(scan(all, ScanKind::extent).nonfinite == expected(all).nonfinite);
      CHECK(scan(all, ScanKind::extent).amax == expected(all).amax);
    }
  }

  TEST_CASE("sizes around every boundary of the loops are counted right, in each type") {
    torch::manual_seed(2);
    for (const at::ScalarType type : kTypes) {
      for (const std::int64_t size : {1, 7, 8, 9, 31, 33, 63, 65, 127, 129, 5000, 131072, 300001}) {
        const at::Tensor values = mixed(size, type);
        check_equal(scan(values, ScanKind::small), expected(values));
        CHECK(scan(values, ScanKind::extent).amax == expected(values).amax);
      }
    }
  }

  TEST_CASE("one bad value anywhere is counted, and the largest finite one is still found") {
    torch::manual_seed(3);
    for (const at::ScalarType type : kTypes) {
      for (const std::int64_t position : {0, 1, 62, 131071, 131072, 262150}) {
        for (const float bad : {kInfinity, -kInfinity, kNaN, -kNaN}) {
          at::Tensor values = at::rand({262151}).to(type);
          values[position] = bad;
          const TensorScan found = scan(values, ScanKind::extent);
          CHECK(found.nonfinite == 1);
          CHECK(found.amax == expected(values).amax);
          CHECK(scan_gradient(values).nonfinite == 1);
          CHECK(count_unmasked(values) == (bad == -kInfinity ? 0 : 1));
        }
      }
    }
  }

  TEST_CASE("other layouts and types go through torch and say the same") {
    torch::manual_seed(4);
    const at::Tensor base = mixed(1200, at::kFloat).view({40, 30});
    for (const at::Tensor& tensor : {base.t(), base.slice(1, 3, 17), base.expand({3, 40, 30}),
                                     base.to(at::kDouble), base.to(at::kHalf).slice(0, 0, 40, 3)}) {
      check_equal(scan(tensor, ScanKind::small), expected(tensor));
    }
    for (const at::Tensor& tensor :
         {at::Tensor(), at::zeros({0}), at::arange(5), at::ones({2}) > 0}) {
      CHECK(scan(tensor, ScanKind::small).values == 0);
    }
  }

  TEST_CASE("many scans are read together") {
    std::vector<PendingScan> scans;
    for (int i = 1; i <= 4; ++i) {
      scans.push_back(
          start_scan(at::full({i}, i, i % 2 ? at::kDouble : at::kFloat), ScanKind::extent));
    }
    CHECK(scans[0].on_device.defined());
    std::vector<PendingScan*> all;
    for (PendingScan& each : scans) all.push_back(&each);
    read_scans(all);
    for (int i = 1; i <= 4; ++i) {
      CHECK(scans[static_cast<std::size_t>(i) - 1].scan.amax == i);
      CHECK(scans[static_cast<std::size_t>(i) - 1].scan.values == i);
    }
  }

  TEST_CASE("a scan that is named twice is read once") {
    PendingScan pending = start_scan(at::ones({4}, at::kDouble), ScanKind::small);
    PendingScan other = start_scan(at::full({3}, 2.0, at::kDouble), ScanKind::small);
    REQUIRE(pending.on_device.defined());
    PendingScan* const all[] = {&pending, &other, &pending};
    read_scans(all);
    CHECK(pending.scan.amax == 1);
    CHECK(other.scan.amax == 2);
  }

  TEST_CASE("squares are those of a sum in double, and threads change no bit") {
    torch::manual_seed(5);
    for (const at::ScalarType type : kTypes) {
      for (const std::int64_t size : {1, 31, 32, 33, 131073, 400001}) {
        const at::Tensor values = (at::randn({size}) * 0.01).to(type);
        const double wanted = squares_in_double(values);
        const double one = scan_gradient(values).squares;
        CHECK(std::abs(one - wanted) <= 1e-13 * wanted);
        const int before = at::get_num_threads();
        at::set_num_threads(3);
        CHECK(scan_gradient(values).squares == one);
        at::set_num_threads(before);
      }
      CHECK(scan_gradient(all_of(at::kHalf)).nonfinite == expected(all_of(at::kHalf)).nonfinite);
    }
    const at::Tensor subnormal = at::full({5}, 0x1p-24).to(at::kHalf);
    CHECK(scan_gradient(subnormal).squares == 5 * 0x1p-48);
  }

  TEST_CASE("the order of the sum is the one that is promised, for every type") {
    torch::manual_seed(8);
    for (const at::ScalarType type : kTypes) {
      for (const std::int64_t size : {5, 1000, 300001}) {
        const at::Tensor values = at::randn({size}).to(type);
        const at::Tensor wide = values.to(at::kFloat);
        const float* data = wide.const_data_ptr<float>();
        CHECK(scan_gradient(values).squares == squares_in_lanes({data, data + size}));
      }
    }
  }

  TEST_CASE("a copy has the bits of torch's and the squares of a look at it") {
    torch::manual_seed(6);
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      for (const float factor : {1.0f, 0.37f}) {
        for (const at::Tensor& gradient :
             {mixed(1, type), mixed(131075, type), mixed(600, type).view({20, 30}).t()}) {
          std::vector<float> to(static_cast<std::size_t>(gradient.numel()));
          const GradientScan found = copy_and_scan(gradient, to, factor);
          const at::Tensor copy = at::from_blob(to.data(), {gradient.numel()}, at::kFloat);
          CHECK(torch::equal(copy, gradient.reshape({-1}).to(at::kFloat) * factor));
          CHECK(found.squares == scan_gradient(copy).squares);
        }
      }
    }
    std::vector<float> to(65536);
    const at::Tensor all = all_of(at::kHalf);
    CHECK(copy_and_scan(all, to, 1).nonfinite == expected(all).nonfinite);
    CHECK(at::from_blob(to.data(), {65536}, at::kFloat)
              .nan_to_num(7)
              .equal(all.to(at::kFloat).nan_to_num(7)));
  }

  TEST_CASE("a look changes nothing and is no part of the graph") {
    const at::Tensor x = at::ones({8}, at::kDouble).requires_grad_(true);
    const at::Tensor y = x * 2;
    const auto version = y._version();
    CHECK_FALSE(start_scan(y, ScanKind::small).on_device.requires_grad());
    CHECK(y._version() == version);
  }
}
