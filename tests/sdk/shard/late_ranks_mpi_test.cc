// Sharded loops of three ranks, some of which are late.
#include "tests/sdk/shard/check_loops.h"

#include <doctest/doctest.h>

using cox::test::check_loops;

TEST_SUITE("sharded loops") {
  TEST_CASE("ranks that come late read and write the values that they would have") {
    check_loops(cox::test::loops_with_late_ranks());
  }
  TEST_CASE("three ranks evaluate, and write whole lists and parts, as one would") {
    check_loops(cox::test::loops_that_evaluate());
    check_loops(cox::test::loops_with_optimizers_on_lists());
    check_loops(cox::test::loops_that_write_to_parameters());
  }
}
