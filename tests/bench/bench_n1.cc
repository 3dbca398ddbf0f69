// N1: checks the bits of the FP8 codec against the formats' definitions, and measures the codec's
// speed on one core. The check covers every float; with --quick, one of 61 and those at code
// borders.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "coordinator/testing/random.h"
#include "sdk/src/precision/float_codec.h"
#include "tests/bench/line.h"
#include "tests/sdk/precision/codec_comparison.h"

namespace {

using namespace cox;
using namespace cox::detail;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kValues = 1 << 18;  // 1 MiB of floats, which stays in a core's cache

// Returns the best of several runs, in gigabytes of floats a second.
double rate_of(const std::function<void()>& pass, int runs) {
  double best = 0;
  for (int run = 0; run < runs; ++run) {
    const auto start = Clock::now();
    for (int i = 0; i < 8; ++i) pass();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    best = std::max(best, 8.0 * kValues * sizeof(float) / seconds / 1e9);
  }
  return best;
}

void tell(const std::string& figure, double rate) {
  bench::Line("N1", rate, "GB/s").better(bench::Better::higher).with("figure", figure).print();
}

// Counts codes of either sign that decode to another value than the definition gives.
int wrong_values(const codec_test::Definition& format) {
  const std::vector<double> values = codec_test::finite_values(format);
  std::vector<std::uint8_t> codes(256);
  std::iota(codes.begin(), codes.end(), std::uint8_t{0});
  std::vector<float> found(codes.size());
  decode(format.format, codes, found);
  int wrong = 0;
  for (std::uint32_t code = 0; code < 128; ++code) {
    const float plus = found[code];
    const float minus = found[code + 128];
    const bool is_right = code < values.size()  ? plus == values[code] && minus == -values[code]
                          : format.is_nan(code) ? std::isnan(plus) && std::isnan(minus)
                                                : std::isinf(plus) && std::isinf(minus);
    wrong += is_right ? 0 : 1;
  }
  return wrong;
}

void tell_wrong(int wrong, const std::string& unit, const std::string& figure) {
  bench::Line("N1", wrong, unit).limit(0).with("figure", figure).print();
}

void compare_bits(const codec_test::Definition& format, std::uint32_t stride) {
  const bool differs = codec_test::first_difference(format, stride) != codec_test::kNoDifference;
  tell_wrong(wrong_values(format) + codec_test::wrong_borders(format), "codes",
             "codes and borders between codes that differ from the definition: " + format.name);
  tell_wrong(differs ? 1 : 0, "formats",
             "formats in which a finite float, of one in " + std::to_string(stride) +
                 ", gets another code: " + format.name);
}

void measure(FloatFormat format, const std::string& name, const std::vector<float>& values,
             int runs) {
  std::vector<std::uint8_t> codes(kValues);
  std::vector<float> back(kValues);
  tell("quantize to " + name + " with counts",
       rate_of([&] { quantize(format, values, 0.25F, codes); }, runs));
  tell("decode " + name, rate_of([&] { decode(format, codes, back); }, runs));
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_quick = bench::effort_of(argc, argv) == bench::Effort::quick;
  const int runs = is_quick ? 5 : 50;
  testing::Random random(1);
  std::vector<float> values(kValues);
  for (float& value : values) {
    value = static_cast<float>(random.below(2000001)) / 1000.0F - 1000.0F;
  }
  for (const codec_test::Definition& format : codec_test::definitions()) {
    compare_bits(format, is_quick ? 61 : 1);
  }
  measure(FloatFormat::e4m3, "e4m3", values, runs);
  measure(FloatFormat::e5m2, "e5m2", values, runs);
  return 0;
}
