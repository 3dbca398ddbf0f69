#include "sdk/examples/gpt2/summary.h"

#include <doctest/doctest.h>

namespace {

cox::SessionReport planned() {
  cox::SessionReport report;
  report.memory_planned = true;
  report.memory_peak_bytes = 113 << 20;
  report.memory_saved_bytes = 29 << 20;
  report.memory_added_ratio = 0.0731;
  report.cost = 12.5;
  report.memory_cost_hourly = 0.25;
  return report;
}

}  // namespace

TEST_SUITE("gpt2 summary") {
  TEST_CASE("says nothing of memory that was not planned, and of a price that was not given") {
    CHECK(gpt2::memory_line({}).empty());
    CHECK(gpt2::cost_line(planned(), 0).empty());
  }

  TEST_CASE("says what a plan saves on one rank and the time that it takes for it") {
    CHECK(
        gpt2::memory_line(planned()) ==
        "memory: at most 113.0 MiB on a rank; up to 29.0 MiB of a rank are saved, against keeping "
        "every block, for up to +7.3 % of time (predicted)\n");
    cox::SessionReport keeping = planned();
    keeping.memory_saved_bytes = 0;
    CHECK(gpt2::memory_line(keeping) == "memory: at most 113.0 MiB on a rank (predicted)\n");
  }

  TEST_CASE("says what the run cost, and what the time costs that saves memory") {
    CHECK(gpt2::cost_line(planned(), 2.5) ==
          "cost: 12.5 at 2.5 per device-hour; the time that saves memory costs 0.25 per hour\n");
    cox::SessionReport unplanned = planned();
    unplanned.memory_planned = false;
    CHECK(gpt2::cost_line(unplanned, 2.5) == "cost: 12.5 at 2.5 per device-hour\n");
  }
}
