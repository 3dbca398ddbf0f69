#include "tests/sdk/stream/random_programs.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

TEST_SUITE_BEGIN("random programs");

TEST_CASE("500 random programs under random plans give the bits of plain autograd") {
  const RandomTrials trials = try_random_programs(1, 500);
  CHECK(trials.equal == 500);
  CHECK(trials.refused > 0);
  for (const std::string& text : trials.different) CHECK_MESSAGE(text == "", text);
}

TEST_SUITE_END();

}  // namespace
