#include "metrics/topics/numerics.h"

#include <set>
#include <string>

#include "metrics/blocks.h"
#include "metrics/catalogue.h"
#include "metrics/routes.h"
#include "metrics/telemetry_state.h"
#include "tests/metrics/simulated_job.h"
#include "tests/metrics/text_search.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

namespace {

std::string page_after(std::size_t blocks, int rounds, const char* path, bool numerics = true) {
  SimulatedSetup setup;
  setup.blocks = blocks;
  setup.numerics = numerics;
  SimulatedJob job(setup);
  TelemetryState state(job.job(), UnixTime{1}, {"0.1.0", "abc"});
  job.steps(state, rounds);
  const Served served{state.snapshot(), UnixTime{job.now()}, {}};
  return respond({"GET", path, ""}, served).body;
}

}  // namespace

TEST_SUITE("numerics shown") {
  TEST_CASE("metrics name format, loss scale and the block that overflowed") {
    const std::string text = page_after(14, 100, "/metrics");
    // Overflows in rounds 45, 70 and 95: each halves the scale.
    CHECK(contains(text, "\ncoxswain_loss_scale 8192\n"));
    CHECK(contains(text, "\ncoxswain_loss_scale_floor 1\n"));
    CHECK(contains(text, "\ncoxswain_loss_scale_ceiling 16777216\n"));
    CHECK(contains(text, "\ncoxswain_overflow_rounds_total 3\n"));
    CHECK(contains(text, "\ncoxswain_overflows_total{block=\"h.3\",pass=\"backward\"} 3\n"));
    CHECK(contains(text, "\ncoxswain_overflows_total{block=\"h.3\",pass=\"forward\"} 0\n"));
    CHECK(contains(text, "\ncoxswain_overflows_total{block=\"outside\",pass=\"backward\"} 0\n"));
    CHECK(contains(text, "\ncoxswain_block_precision{block=\"h.3\"} 2\n"));
    CHECK(contains(text, "\ncoxswain_block_precision{block=\"ln_f\"} 0\n"));
    CHECK(contains(text, "\ncoxswain_precision_changes_total{from=\"fp32\",to=\"bf16\"} 12\n"));
    CHECK(contains(text, "\ncoxswain_block_gradient_noise_ratio{block=\"h.0\"} 0.00"));
  }

  TEST_CASE("without numerics there are no values that nobody knows") {
    const std::string text = page_after(14, 100, "/metrics", false);
    CHECK(contains(text, "\ncoxswain_loss_scale 0\n"));
    CHECK(contains(text, "\ncoxswain_block_precision{block=\"h.3\"} 1\n"));
    CHECK_FALSE(contains(text, "coxswain_block_underflow_ratio{"));
  }

  TEST_CASE("the number of series stays bounded in models of many blocks") {
    for (const std::size_t blocks : {std::size_t{48}, std::size_t{49}, kMaxBlocks}) {
      CAPTURE(blocks);
      const std::string text = page_after(blocks, 60, "/metrics");
      CHECK(count(text, "\ncoxswain_block_precision{") <= kMostBlockSeries);
      CHECK(count(text, "\ncoxswain_block_precision{") > kMostBlockSeries / 2 - 1);
      CHECK(count(text, "\ncoxswain_") < 800);
    }
  }

  TEST_CASE("neighbours that share a series are told by the worst of them, overflows add up") {
    const std::string text =
        page_after(96, 100, "/metrics");  // the 33rd block overflows; fp16 starts there
    CHECK(contains(text, "coxswain_block_precision{block=\"h.31 to h.32\"} 2\n"));
    CHECK(contains(text, "coxswain_overflows_total{block=\"h.31 to h.32\",pass=\"backward\"} 3\n"));
  }

  TEST_CASE("groups cover every block once, and no two have one label") {
    JobFacts job;
    CHECK(block_groups(job).empty());
    for (std::size_t blocks = 1; blocks <= kMaxBlocks; blocks += 13) {
      job.blocks.assign(blocks, "same");
      job.blocks[0] = "outside";
      std::set<std::string> labels = {"outside"};
      std::size_t next = 0;
      for (const BlockGroup& group : block_groups(job)) {
        CHECK(group.first == next);
        CHECK(group.last >= group.first);
        next = group.last + 1;
        CHECK(labels.insert(group.label).second);
      }
      CHECK(next == blocks);
      CHECK(labels.size() <= kMostBlockSeries + 1);
    }
  }

  TEST_CASE("documents: the job in short, every block in full") {
    const std::string status = page_after(14, 100, "/api/v1/status");
    CHECK(contains(status, "\"numerics\":{\"at_work\":true,\"loss_scale\":8192,"));
    CHECK(contains(status, "\"last_overflow\":{\"round\":95,\"step\":95,"));
    const std::string page = page_after(14, 100, "/api/v1/numerics");
    CHECK(contains(page, "\"block\":\"h.3\",\"pass\":\"backward\",\"rank\":3,\"values\":41,"));
    CHECK(contains(page, "\"text\":\"step 95, round 95: block h.3, backward, rank 3: 41 values"));
    CHECK(contains(page, "\"scaler\":{\"initial_scale\":65536,"));
    CHECK(contains(page, "{\"from\":\"fp32\",\"to\":\"bf16\",\"blocks\":12}"));
    CHECK(contains(page, "{\"name\":\"h.3\",\"format\":\"fp16\",\"planned\":\"fp16\","));
    CHECK(contains(page, "\"why\":{\"round\":30,\"code\":\"precision_lowered\""));
    CHECK(count(page, "\"newest_reason\":") == 14);
    const std::string decisions = page_after(14, 100, "/api/v1/decisions");
    CHECK(contains(decisions, "\"block\":4,\"block_name\":\"h.3\""));
  }

  TEST_CASE("a plain job says so") {
    const std::string status = page_after(14, 20, "/api/v1/status", false);
    CHECK(contains(status,
                   "\"numerics\":{\"at_work\":false,\"loss_scale\":null,\"format_blocks\":"
                   "{\"fp32\":14,\"bf16\":0,\"fp16\":0,\"fp8\":0}"));
    CHECK(contains(status, "\"last_overflow\":null"));
  }
}
