// Stray writes of another process into a segment of tensors: sums may be wrong, but all ranks end,
// and no access leaves the segment (it lies between inaccessible pages).
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/testing/random.h"
#include "coordinator/transport/exchange/bucket_exchange.h"
#include "tests/transport/ranks.h"

#include <doctest/doctest.h>

namespace cox::transport {
namespace {

using cox::testing::Random;

constexpr std::int32_t kRanks = 2;
constexpr std::size_t kElements = 700;

// Writes one to eight bytes, half of the time into the first page, which holds the counters.
void write_astray(std::span<std::byte> segment, Random& random) {
  const std::size_t reach =
      random.chance(0.5) ? std::min<std::size_t>(segment.size(), 4096) : segment.size();
  const std::size_t bytes = 1 + random.below(8);
  const std::size_t first = random.below(reach - bytes);
  for (std::size_t i = 0; i < bytes; ++i) {
    const bool flips = random.chance(0.5);
    const auto drawn = static_cast<std::byte>(random.below(256));
    segment[first + i] = flips ? segment[first + i] ^ drawn : drawn;
  }
}

// Returns why the rank left early; empty if it did not.
std::string exchange_with_strays(Communicator& ranks, std::uint64_t seed) {
  Random random(seed * kRanks + static_cast<std::uint64_t>(ranks.rank().value()));
  const std::vector<BucketSpec> specs(3, {kElements * sizeof(float), sum_f32()});
  ExchangeOptions options;
  options.chunk_bytes = 256;
  options.wait =
      with_timeout({.yields = 40}, std::chrono::milliseconds(30), "the ranks of the test");
  auto made = BucketExchange::create(ranks, specs, options);
  if (!made.ok()) return made.status().text();
  const std::unique_ptr<BucketExchange> exchange = std::move(*made);
  SharedSegment segment = exchange->memory();
  for (int round = 0; round < 3; ++round) {
    for (std::size_t b = 0; b < specs.size(); ++b) {
      const Bytes buffer = exchange->buffer(b);
      std::memset(buffer.data(), 0, buffer.size());
      if (random.chance(0.2)) write_astray(segment.bytes(), random);
      const Status started = exchange->start(b);
      const Status moved = started.ok() ? exchange->advance() : started;
      if (!moved.ok()) return exchange->leave(moved.text()), moved.text();
    }
    const Status done = exchange->wait_all([] {});
    if (!done.ok()) return exchange->leave(done.text()), done.text();
  }
  return {};
}

}  // namespace

TEST_SUITE_BEGIN("bucket exchange");

// COX_TEST_STRAYS sets the number of damaged segments.
TEST_CASE("whatever stray writes do to a segment of tensors, its ranks come to an end") {
  const char* const asked = std::getenv("COX_TEST_STRAYS");
  const std::uint64_t segments = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 300;
  std::uint64_t ended_early = 0;
  for (std::uint64_t seed = 1; seed <= segments; ++seed) {
    const LoopbackWorld world(kRanks, {});
    const auto results = on_every_rank(
        world, kRanks, [&](Communicator& ranks) { return exchange_with_strays(ranks, seed); });
    for (const std::string& result : results) ended_early += result.empty() ? 0 : 1;
  }
  CHECK(ended_early > 0);  // some writes reach the counters
  CHECK(ended_early < kRanks * segments);
  MESSAGE(ended_early << " of " << kRanks * segments << " ranks left early");
}

TEST_SUITE_END();

}  // namespace cox::transport
