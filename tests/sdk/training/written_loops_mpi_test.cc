// Users' loops, adopted: each gives the bits of the plain loop after every step, with memory and
// formats unchanged, observed, and steered; and its peaks are those that were predicted. All ranks
// have the same data, so the mean over ranks equals each rank's own gradient.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/text.h"
#include "coxswain/session.h"
#include "sdk/src/memory/counting_allocator.h"
#include "tests/sdk/same_bits.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/temp_folder.h"
#include "tests/sdk/training/written_loops.h"

#include <doctest/doctest.h>

using namespace cox;
using cox::test::LoopTrace;
using cox::test::Written;
using cox::test::written_loops;
using sdk_test::same_bits;

namespace {

using Flags = std::vector<std::string>;

// Trained is a finished loop: its trace, and its highest peak from the second step on.
struct Trained {
  explicit Trained(LoopTrace trace_in) : trace(std::move(trace_in)) {
    for (std::size_t i = trace.peaks().size() / 2; i < trace.peaks().size(); ++i)
      peak_bytes = std::max(peak_bytes, trace.peaks()[i]);
  }
  LoopTrace trace;
  std::int64_t peak_bytes = 0;
  SessionReport report;
  int rank = 0;
};

Trained trained_plain(const Written& loop, std::int64_t rows = 1) {
  torch::manual_seed(7);
  LoopTrace trace(rows);
  loop.run([](torch::nn::Module&) {}, trace);
  return Trained(std::move(trace));
}

Trained trained_adopted(const Written& loop, const Flags& flags, std::int64_t rows = 1) {
  const bool only_watch = flags == Flags{"watched"};
  Session session = solo_session(only_watch ? Flags() : flags);
  torch::manual_seed(7);
  LoopTrace trace(rows);
  loop.run([&](torch::nn::Module& model) { session.adopt(model, {.only_watch = only_watch}); },
           trace);
  Trained trained(std::move(trace));
  session.finish();
  trained.report = session.report();
  trained.rank = session.rank();
  return trained;
}

void check_same(const Trained& found_of, const Trained& plain_of) {
  const std::vector<at::Tensor> found = found_of.trace.tensors(), plain = plain_of.trace.tensors();
  REQUIRE(found.size() == plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) {
    CAPTURE(i);
    CHECK(same_bits(found[i], plain[i]));
  }
}

constexpr std::int64_t kRows = 256;
constexpr double kTrialsOwn = 16 << 10;  // bytes that a trial's run holds beside the step's
const std::vector<std::string> kWithInnerPass = {"a penalty on gradients", "second derivatives"};

// Leaves out loops whose later steps hold more than their first ones, and one with a thread that
// makes tensors at any time. A warning tells when their budgets are exceeded.
std::vector<Written> loops_of_equal_steps() {
  const std::vector<std::string> others = {"another type, then another layout",
                                           "a model that is frozen at first",
                                           "players that freeze each other in turn",
                                           "a head that is adopted after the first training",
                                           "closures of LBFGS",
                                           "evaluations within steps",
                                           "a worker that loads"};
  std::vector<Written> loops = written_loops();
  std::erase_if(loops, [&](const Written& loop) {
    return std::ranges::count(others, std::string(loop.name)) > 0;
  });
  return loops;
}

Trained trained_within(const Written& loop, std::int64_t budget) {
  return trained_adopted(
      loop, {"--cox.memory.smallest_bytes=1", concat("--cox.memory.budget=", budget)}, kRows);
}

// Returns the bytes of "give it at least 5.2 MiB" in an error's text; 0 if there is no such figure.
std::int64_t sufficient_bytes(const std::string& text) {
  const std::string before = "give it at least ";
  const std::size_t at = text.find(before);
  if (at == std::string::npos) return 0;
  const double mebibytes = std::stod(text.substr(at + before.size()));
  return static_cast<std::int64_t>(std::ceil(mebibytes * (1 << 20)));
}

}  // namespace

TEST_SUITE("written loops") {
  TEST_CASE("an adopted loop leaves the bits of the plain one after every step") {
    const TempFolder tier;
    const std::vector<Flags> modes = {
        {},
        {"watched"},
        {"--cox.memory.mode=observe"},
        {"--cox.memory.force=*=recompute"},
        {"--cox.memory.force=*=offload", "--cox.memory.smallest_bytes=1",
         "--cox.memory.tier_directory=" + tier.path().string()},
        {"--cox.precision.format=auto", "--cox.precision.mode=observe"},
    };
    for (const Written& loop : written_loops()) {
      const Trained plain = trained_plain(loop);
      for (const Flags& flags : modes) {
        CAPTURE(loop.name);
        CAPTURE(flags);
        check_same(trained_adopted(loop, flags), plain);
      }
    }
  }

  TEST_CASE("so do loops whose ranks divide what they hold, but for one that changes a type") {
    const std::string changes_type = "another type, then another layout";
    for (const Written& loop : written_loops()) {
      if (loop.name == changes_type) continue;  // refused with its name (docs/sharding.md)
      CAPTURE(loop.name);
      const Flags divided = {"--cox.shard.mode=state", "--cox.shard.grain=16"};
      check_same(trained_adopted(loop, divided), trained_plain(loop));
    }
  }

  TEST_CASE("the predicted peak is that of the later steps, and at most 0.2 percent more") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    for (const Written& loop : loops_of_equal_steps()) {
      CAPTURE(loop.name);
      const Trained seen = trained_adopted(loop, {"--cox.memory.mode=observe"}, kRows);
      if (seen.rank != 0) continue;  // only the coordinator's rank has the report
      const std::int64_t predicted = seen.report.memory_peak_bytes;
      CHECK(predicted >= seen.peak_bytes);
      // Plans of a pass with a backward pass inside take more than the sum of their blocks, and the
      // most that one takes more is added to all.
      const bool has_inner_pass = std::ranges::count(kWithInnerPass, std::string(loop.name)) > 0;
      const double most = has_inner_pass ? 1.2 : 1.002;
      CHECK(static_cast<double>(predicted) <=
            most * static_cast<double>(seen.peak_bytes) + kTrialsOwn);
    }
  }

  TEST_CASE("a budget of 70 percent is kept, or refused with a figure that is kept") {
    REQUIRE(cox::detail::install_counting_allocator().ok());
    int kept = 0;
    for (const Written& loop : loops_of_equal_steps()) {
      CAPTURE(loop.name);
      const Trained plain = trained_plain(loop, kRows);
      std::int64_t budget = plain.peak_bytes * 7 / 10;
      Trained found = plain;
      try {
        found = trained_within(loop, budget);
        ++kept;
      } catch (const Error& error) {
        budget = sufficient_bytes(error.what());
        CAPTURE(error.what());
        REQUIRE(budget > 0);
        found = trained_within(loop, budget);
      }
      CHECK(found.peak_bytes <= budget);
      check_same(found, plain);
    }
    CHECK(kept >= 1);
  }
}
