#include <string>
#include <vector>

#include "fp8_support.h"
#include "sdk/src/precision/fp8_block.h"

#include <doctest/doctest.h>

namespace {

using namespace fp8_test;
using cox::detail::Fp8Blocks;
using cox::detail::pack_fp8;
using cox::detail::unpack_fp8;

Fp8Blocks fresh(std::size_t count, std::uint32_t history = 4) {
  Fp8Blocks blocks;
  for (std::size_t b = 0; b < count; ++b) {
    blocks.push_back(block_of({cox::Fp8Scaling::delayed, cox::Fp8Granularity::tensor, history, 0}));
  }
  return blocks;
}

// Returns blocks of which block b has seen b products of magnitude 10 b.
Fp8Blocks experienced(std::size_t count) {
  Fp8Blocks blocks = fresh(count);
  for (std::size_t b = 0; b < count; ++b) {
    for (std::size_t product = 0; product < b; ++product) {
      blocks[b]->see(
          cox::detail::Fp8Side::gradient, product,
          {.counts = {.sampled = 8, .amax = 10.0f * static_cast<float>(b)}, .pending = {}});
    }
    blocks[b]->end_step();
  }
  return blocks;
}

}  // namespace

TEST_SUITE("saved FP8 scaling") {
  TEST_CASE("all blocks go on with what they remembered, those without anything included") {
    const Fp8Blocks saved = experienced(4);
    const std::vector<double> row = pack_fp8(saved);
    const Fp8Blocks loaded = fresh(4);
    REQUIRE(unpack_fp8(row, loaded).ok());
    for (std::size_t b = 0; b < 4; ++b) CHECK((loaded[b]->state() == saved[b]->state()));
    CHECK_FALSE(loaded[0]->remembers());
    CHECK(loaded[3]->remembers());
  }

  TEST_CASE("where nothing is remembered the row is empty, and an empty row makes all forget") {
    CHECK(pack_fp8(fresh(3)).empty());
    CHECK(pack_fp8({}).empty());
    const Fp8Blocks blocks = experienced(3);
    REQUIRE(unpack_fp8({}, blocks).ok());
    CHECK(pack_fp8(blocks).empty());
  }

  TEST_CASE("rows of others, and damaged ones, are refused and change nothing") {
    const std::vector<double> row = pack_fp8(experienced(4));
    const Fp8Blocks blocks = experienced(4);
    const std::vector<double> before = pack_fp8(blocks);
    const auto refuses = [&](std::vector<double> other, const Fp8Blocks& into) {
      const cox::Status status = unpack_fp8(other, into);
      CHECK(status.code() == cox::StatusCode::invalid_argument);
      CHECK(status.message().find("FP8") != std::string::npos);
    };
    refuses(row, fresh(3));
    refuses(row, fresh(4, 5));
    for (std::size_t length = 1; length < row.size(); ++length) {
      refuses({row.begin(), row.begin() + static_cast<std::ptrdiff_t>(length)}, blocks);
    }
    std::vector<double> longer = row;
    longer.push_back(0);
    refuses(longer, blocks);
    for (const double bad : {-1.0, 1e300, std::nan("")}) {
      std::vector<double> damaged = row;
      damaged[1] = bad;
      refuses(damaged, blocks);
    }
    CHECK((pack_fp8(blocks) == before));
  }
}
