// Hostile bytes: the assembler always answers with a step or an error, holds a valid plan, and
// never reads past the end (run under the address sanitizer in CI).
#include <algorithm>
#include <memory>
#include <vector>

#include "coordinator/core/hash.h"
#include "coordinator/wire/mask.h"
#include "coordinator/wire/plan_codec.h"
#include "tests/wire/random_values.h"

#include <doctest/doctest.h>

namespace cox::wire {
namespace {

using test::capable_job;
using test::RandomValues;

using Bytes = std::vector<std::byte>;

// Copies the bytes into an allocation of exact size, so that a sanitizer detects any read past the
// end.
Result<Assembly> feed_exactly(PlanAssembler& assembler, const Bytes& bytes) {
  const auto copy = std::make_unique<std::byte[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  return assembler.feed({copy.get(), bytes.size()});
}

void mutate(Bytes& bytes, const Bytes& other, RandomValues& random) {
  switch (random.below(4)) {
    case 0:
      for (auto flips = 1 + random.below(4); flips > 0 && !bytes.empty(); --flips)
        bytes[random.below(bytes.size())] ^= static_cast<std::byte>(1u << random.below(8));
      break;
    case 1:
      bytes.resize(random.below(bytes.size() + 1));
      break;
    case 2: {
      const std::size_t at = random.below(std::min(bytes.size(), other.size()) + 1);
      bytes.resize(at);
      bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(at), other.end());
      break;
    }
    default:
      if (!bytes.empty()) bytes[random.below(bytes.size())] = static_cast<std::byte>(random.bits());
  }
}

// Repairs the checksum, so that mutations reach the code behind the check.
void reseal(Bytes& bytes) {
  if (bytes.size() < 8 || bytes.size() > kFrameBytes) return;
  bytes[2] = static_cast<std::byte>(bytes.size());
  std::fill_n(bytes.begin() + 4, 4, std::byte{0});
  const std::uint32_t check = crc32(bytes);
  for (unsigned i = 0; i < 4; ++i) bytes[4 + i] = static_cast<std::byte>(check >> (8 * i));
}

Bytes bytes_of(const Frame& frame) {
  return {frame.used().begin(), frame.used().end()};
}

struct Material {
  JobFacts job;
  Plan base;
  std::vector<Bytes> frames;
};

Material material(std::uint64_t seed) {
  RandomValues random(seed);
  Material m;
  m.job = capable_job(static_cast<std::int32_t>(1 + random.below(60)), random.below(300));
  m.base = random.plan(m.job, 4);
  const Plan full = random.plan(m.job, 5);
  const Plan next = random.next_plan(m.job, m.base);
  for (const auto& frames : {encode_plan(full, nullptr), encode_plan(next, &m.base)}) {
    for (const Frame& frame : *frames) m.frames.push_back(bytes_of(frame));
  }
  return m;
}

TEST_SUITE("wire.mask.hostile") {
  TEST_CASE("200000 mutated frames never crash and never leave an invalid plan held") {
    std::size_t errors = 0;
    std::size_t accepted = 0;
    for (std::uint64_t seed = 0; seed < 100; ++seed) {
      const Material m = material(seed);
      RandomValues random(1000 + seed);
      PlanAssembler assembler(m.job, m.base);
      std::uint64_t number = assembler.held().id.number;
      for (int i = 0; i < 2000; ++i) {
        Bytes bytes = m.frames[random.below(m.frames.size())];
        mutate(bytes, m.frames[random.below(m.frames.size())], random);
        if (random.chance(60)) reseal(bytes);
        const auto step = feed_exactly(assembler, bytes);
        step.ok() ? ++accepted : ++errors;
        if (!step.ok()) CHECK_FALSE(step.status().message().empty());
        REQUIRE(assembler.held().id.number >= number);
        number = assembler.held().id.number;
        if (step.ok() && *step == Assembly::complete) {
          REQUIRE(validate(assembler.held(), m.job).ok());
          assembler = PlanAssembler(m.job, m.base);
          number = m.base.id.number;
        }
      }
    }
    MESSAGE("errors " << errors << ", accepted " << accepted);
    CHECK(errors > 50000);
    CHECK(accepted > 1000);
  }

  TEST_CASE("random bytes of every length from 0 to 160 are refused") {
    const JobFacts job = capable_job(4, 24);
    PlanAssembler assembler(job, initial_plan(job));
    RandomValues random(77);
    for (std::size_t length = 0; length <= kFrameBytes + 8; ++length) {
      for (int i = 0; i < 100; ++i) {
        Bytes bytes(length);
        for (std::byte& b : bytes) b = static_cast<std::byte>(random.bits());
        if (i % 2 == 0 && length > 1) {
          bytes[0] = std::byte{kMaskVersion};
          bytes[1] = static_cast<std::byte>(1 + random.below(4));
        }
        CHECK_FALSE(feed_exactly(assembler, bytes).ok());
      }
    }
    CHECK(assembler.held() == initial_plan(job));
  }

  TEST_CASE("100000 mutated payloads give a valid-shaped plan or an error") {
    RandomValues random(31);
    for (int round = 0; round < 200; ++round) {
      const JobFacts job =
          capable_job(static_cast<std::int32_t>(1 + random.below(90)), random.below(100));
      const Plan base = random.plan(job, 1);
      const Plan plan_in_full = random.plan(job, 2);
      const Plan next = random.next_plan(job, base);
      const Bytes full = full_payload(plan_in_full);
      const Bytes changes = delta_payload(next, base);
      for (int i = 0; i < 500; ++i) {
        Bytes bytes = i % 2 == 0 ? full : changes;
        mutate(bytes, i % 2 == 0 ? changes : full, random);
        if (i % 2 != 0) bytes.resize(std::max<std::size_t>(bytes.size(), 4));
        if (i % 2 != 0) std::copy_n(changes.begin(), 4, bytes.begin());
        BlockBits bits = block_bits(i % 2 == 0 ? plan_in_full : next);
        if (random.chance(10)) bits = bits == BlockBits::four ? BlockBits::eight : BlockBits::four;
        const auto plan = i % 2 == 0 ? read_full_payload(bytes, size_of(job), bits)
                                     : read_delta_payload(bytes, base, size_of(job), bits);
        if (!plan.ok()) continue;
        CHECK(check_shape(*plan).ok());
        for (const ActionProfile& actions : plan->profiles)
          CHECK(std::ranges::all_of(actions, [](MemoryAction a) { return a <= kLastAction; }));
      }
    }
  }

  TEST_CASE("an entry of the batch that is no number, is longer or comes twice is refused") {
    const JobFacts job = capable_job(2, 2);
    Bytes plain = full_payload(initial_plan(job));
    const auto with = [&](std::initializer_list<unsigned> more) {
      Bytes bytes = plain;
      for (const unsigned byte : more) bytes.push_back(static_cast<std::byte>(byte));
      return read_full_payload(bytes, size_of(job), BlockBits::four);
    };
    CHECK(with({9, 2, 0xC8, 1})->step_samples == 200);
    CHECK_FALSE(with({9, 0}).ok());
    CHECK_FALSE(with({9, 1, 0x80}).ok());
    CHECK_FALSE(with({9, 2, 1, 1}).ok());
    CHECK_FALSE(with({9, 1}).ok());
    CHECK_FALSE(with({9, 1, 1, 9, 1, 1}).ok());
    CHECK_FALSE(with({9, 1, 1, 7, 1, 1}).ok());  // ascending order
    CHECK_FALSE(with({255, 1, 1}).ok());
    CHECK_FALSE(with({5, 1, 2}).ok());  // a retired id
    const std::initializer_list<unsigned> too_long = {9,    11,   0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
                                                      0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1};
    CHECK_FALSE(with(too_long).ok());
  }

  TEST_CASE("actions that do not exist are refused wherever a plan has one") {
    const JobFacts job = capable_job(2, 2);
    const auto full = [&](std::initializer_list<unsigned> list) {
      Bytes bytes;
      for (const unsigned byte : list) bytes.push_back(static_cast<std::byte>(byte));
      return read_full_payload(bytes, size_of(job), BlockBits::eight);
    };
    CHECK(full({10 << 2 | 3, 4 << 2})->profiles[0] ==
          ActionProfile{recompute_level(7), recompute_level(1)});
    for (unsigned number = 11; number < 64; ++number) {
      CHECK_FALSE(full({number << 2, 0}).ok());
      CHECK_FALSE(full({0, number << 2 | 1}).ok());
    }
    for (unsigned number = 0; number < 16; ++number) {
      const bool is_one = number <= 10;
      CHECK(full({0, 0, 2, 3, 2, 0, number << 4}).ok() == is_one);     // profile 1, packed
      CHECK(full({0, 0, 2, 4, 2, 1, 1, 16 + number}).ok() == is_one);  // profile 1, a change
    }
    const Plan base = initial_plan(job);
    Plan next = base;
    next.profiles[0][1] = recompute_level(7);
    Bytes changes = delta_payload(next, base);
    REQUIRE(read_delta_payload(changes, base, size_of(job), BlockBits::eight).ok());
    const std::size_t low = changes.size() - 2;  // a number of two bytes: 256 + (10 << 2)
    REQUIRE(changes[low] == (std::byte{10 << 2} | std::byte{0x80}));
    changes[low] = std::byte{11 << 2} | std::byte{0x80};
    CHECK_FALSE(read_delta_payload(changes, base, size_of(job), BlockBits::eight).ok());
  }

  TEST_CASE("no payload is longer than the largest of its job") {
    RandomValues random(41);
    for (int round = 0; round < 300; ++round) {
      const JobFacts job =
          capable_job(static_cast<std::int32_t>(1 + random.below(90)), random.below(100));
      Plan plan = random.plan(job, 1);
      plan.step_samples = ~0ull;
      plan.hold_until = RoundId(~0ull);
      plan.rollback = {~0u, RoundId(~0ull)};
      CHECK(full_payload(plan).size() <= max_payload_bytes(job));
    }
  }

  TEST_CASE("a cut at any byte of the payload is noticed") {
    RandomValues random(8);
    const JobFacts job = capable_job(9, 31);
    for (int round = 0; round < 50; ++round) {
      const Plan plan = random.plan(job, 1);
      const Bytes whole = full_payload(plan);
      for (std::size_t size = 0; size < whole.size(); ++size) {
        const auto cut =
            read_full_payload(std::span(whole).first(size), size_of(job), block_bits(plan));
        // A cut between two entries gives a plan with fewer entries.
        if (cut.ok() && block_bits(*cut) == block_bits(plan))
          CHECK(full_payload(*cut).size() == size);
      }
    }
  }
}

}  // namespace
}  // namespace cox::wire
