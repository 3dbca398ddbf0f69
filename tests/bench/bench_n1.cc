// N1: speed of the codecs on one core. That their bits are right is a test
// (sdk.precision.float_codec).
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/testing/random.h"
#include "sdk/src/precision/float_codec.h"
#include "tests/bench/line.h"

namespace {

using namespace cox;
using namespace cox::detail;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kValues = 1 << 18;  // 1 MiB of floats: stays in a core's cache

// The best of several runs, in gigabytes of floats a second.
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
  bench::Line("N1", rate, "GB/s").limit(1, bench::Better::higher).with("figure", figure).print();
}

template <class Code>
void measure(FloatFormat format, const std::string& name, const std::vector<float>& values,
             int runs) {
  std::vector<Code> codes(kValues);
  std::vector<float> back(kValues);
  tell("encode " + name + ", to nearest, saturating",
       rate_of(
           [&] { encode(format, values, codes, Rounding::nearest_even, OverflowRule::saturate); },
           runs));
  tell("decode " + name, rate_of([&] { decode(format, codes, back); }, runs));
}

}  // namespace

int main(int argc, char** argv) {
  const int runs = bench::effort_of(argc, argv) == bench::Effort::quick ? 5 : 50;
  testing::Random random(1);
  std::vector<float> values(kValues);
  for (float& value : values) {
    value = static_cast<float>(random.below(2000001)) / 1000.0F - 1000.0F;
  }
  measure<std::uint8_t>(FloatFormat::e4m3, "e4m3", values, runs);
  measure<std::uint8_t>(FloatFormat::e5m2, "e5m2", values, runs);
  measure<std::uint16_t>(FloatFormat::bf16, "bf16", values, runs);
  measure<std::uint16_t>(FloatFormat::fp16, "fp16", values, runs);
  std::vector<std::uint8_t> codes(kValues);
  tell("quantize to e4m3 with counts",
       rate_of([&] { quantize(FloatFormat::e4m3, values, 0.25F, codes); }, runs));
  return 0;
}
