// Users' loops, adopted by several ranks with shard.mode=state: each gives the bits of the
// replicated loop, and reads the same values.
#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/sdk/shard/check_loops.h"
#include "tests/sdk/temp_folder.h"

#include <doctest/doctest.h>

using cox::test::check_loops;
using cox::test::ShardedLoop;

TEST_SUITE("sharded loops") {
  TEST_CASE("optimizers of LibTorch leave the bits of replicated training") {
    check_loops(cox::test::optimizers_and_models());
  }
  TEST_CASE("what a loop reads is whole and up to date") {
    check_loops(cox::test::loops_that_evaluate());
    check_loops(cox::test::loops_that_read_parameters());
    check_loops(cox::test::loops_that_read_gradients());
    check_loops(cox::test::loops_that_keep_averages());
  }
  TEST_CASE("narrow parameters follow the wide copies that a program updates") {
    check_loops(cox::test::loops_with_wide_copies());
  }
  TEST_CASE("what a loop writes besides its update reaches all ranks") {
    check_loops(cox::test::loops_that_clip());
    check_loops(cox::test::loops_that_write_to_parameters());
    check_loops(cox::test::loops_that_replace_parameters());
    check_loops(cox::test::loops_that_write_to_gradients());
  }
  TEST_CASE("optimizers of a program's own leave the bits of replicated training") {
    check_loops(cox::test::loops_with_own_optimizers());
    check_loops(cox::test::loops_with_optimizers_on_lists());
  }
  TEST_CASE("recomputed, offloaded and narrow blocks leave the bits of replicated training") {
    std::vector<ShardedLoop> loops;
    for (const char* model : {"language", "recurrent", "pictures"}) {
      loops.push_back({std::string("adamw of ") + model, model, "adamw"});
      loops.back().steps = 8;
    }
    const TempFolder tier;
    check_loops(loops, {"--cox.memory.force=*=recompute"});
    check_loops(loops, {"--cox.memory.force=*=offload", "--cox.memory.smallest_bytes=1",
                        "--cox.memory.tier_directory=" + tier.path().string()});
    check_loops(loops, {"--cox.precision.format=bf16"});
  }
  TEST_CASE("a thousand steps leave the bits of replicated training, with uneven slices too") {
    ShardedLoop loop{"a thousand steps", "language", "adamw"};
    loop.steps = 1000;
    check_loops({loop});
    check_loops({loop}, {"--cox.memory.budget=64MiB", "--cox.memory.budget_of_rank=1:192MiB"});
  }
  TEST_CASE("losses with penalties, hooks and closures leave the bits of replicated training") {
    check_loops(cox::test::loops_with_other_losses());
    check_loops(cox::test::loops_with_inner_backward());
    check_loops(cox::test::loops_with_odd_backward());
  }
}
