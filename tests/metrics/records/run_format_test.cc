#include "metrics/records/run_format.h"

#include <limits>

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::metrics;

TEST_SUITE("metrics") {
  TEST_CASE("a step is one line in the layout, with our fields beside it") {
    StepRow row;
    row.step = StepId(3);
    row.round = RoundId(4);
    row.timestamp = 1750000000.5;
    row.phase_seconds[static_cast<std::size_t>(Phase::forward)] = 0.25f;
    row.phase_seconds[static_cast<std::size_t>(Phase::communication)] = 0.5f;
    row.phase_seconds[static_cast<std::size_t>(Phase::host)] = 0.125f;
    row.loss = 2.5;
    row.gradient_norm = 1;
    row.learning_rate = 0.001;
    row.loss_scale = 65536;
    row.memory_alloc_bytes = 10;
    row.memory_reserved_bytes = 20;
    row.memory_peak_alloc_bytes = 30;
    row.memory_peak_reserved_bytes = 40;
    row.headroom_bytes = 5;
    row.plan = 7;
    row.precision_blocks = {2, 12, 0, 0};
    row.recomputed_blocks = 4;
    row.offloaded_blocks = 2;
    row.tiled_blocks = 1;
    row.predicted_peak_bytes = 31;
    row.overflow = 1;
    CHECK(row.add_scalar("accuracy", 0.5));
    CHECK(step_line(row) ==
          "{\"step\":3,\"timestamp\":1750000000.5,\"phases\":{\"forward\":0.25,\"comm\":0.5},"
          "\"scalars\":{\"loss\":2.5,\"grad_norm\":1,\"lr\":0.001,\"accuracy\":0.5},"
          "\"memory\":{\"alloc\":10,\"reserved\":20,\"peak_alloc\":30,\"peak_reserved\":40,"
          "\"predicted_peak\":31},"
          "\"round\":4,\"plan\":7,\"precision\":{\"fp32\":2,\"bf16\":12},\"recomputed_blocks\":4,"
          "\"offloaded_blocks\":2,\"tiled_blocks\":1,"
          "\"headroom\":5,\"overflow\":1,\"loss_scale\":65536,\"host\":0.125}\n");
  }

  TEST_CASE("memory of a device: what its allocator holds, beside the four common fields") {
    StepRow row;
    row.memory_alloc_bytes = row.memory_peak_alloc_bytes = 10;
    row.memory_reserved_bytes = row.memory_peak_reserved_bytes = 20;
    CHECK(step_line(row).find("active") == std::string::npos);
    row.allocator = {20, 11, 5, 700};
    CHECK(step_line(row).find("\"memory\":{\"alloc\":10,\"reserved\":20,\"peak_alloc\":10,"
                              "\"peak_reserved\":20,\"active\":11,\"inactive_split\":5,"
                              "\"free\":700},") != std::string::npos);
  }

  TEST_CASE("numerics: who is to blame, what was sampled, whether the step counted") {
    StepRow row;
    row.overflow = 41;
    row.set_overflow("transformer.h.2", OverflowPass::backward);
    row.was_skipped = true;
    row.sampled_values = 4096;
    row.underflow_values = 12;
    row.saturated_values = 3;
    row.gradient_noise = 0.25f;
    CHECK(step_line(row).find("\"overflow\":41,\"overflow_block\":\"transformer.h.2\","
                              "\"overflow_pass\":\"backward\",\"skipped\":true,"
                              "\"sampled\":4096,\"underflow\":12,\"saturated\":3,"
                              "\"grad_noise\":0.25") != std::string::npos);
    row.set_overflow("", OverflowPass::forward);  // outside of all blocks
    CHECK(step_line(row).find("\"overflow_block\":\"\",\"overflow_pass\":\"forward\"") !=
          std::string::npos);
    row.set_overflow("h.0", OverflowPass::parameters);
    CHECK(step_line(row).find("\"overflow_pass\":\"parameters\"") != std::string::npos);
    std::string long_name(60, 'x');
    long_name.append(".mlp");
    row.set_overflow(long_name, OverflowPass::forward);
    CHECK(step_line(row).find("\"" + long_name.substr(25) + "\"") != std::string::npos);
  }

  TEST_CASE("a step in plain fp32 says nothing about numerics") {
    const std::string line = step_line(StepRow{});
    for (const char* name : {"overflow_block", "overflow_pass", "skipped", "sampled", "underflow",
                             "grad_noise", "loss_scale"})
      CHECK(line.find(name) == std::string::npos);
  }

  TEST_CASE(
      "waiting and recompute stand beside the phases they are part of, where they are known") {
    StepRow row;
    CHECK(step_line(row).find("waiting") == std::string::npos);
    CHECK(step_line(row).find("recompute\"") == std::string::npos);
    row.waiting_seconds = 0;
    row.recompute_seconds = 0.25F;
    CHECK(step_line(row).find("\"waiting\":0") != std::string::npos);
    CHECK(step_line(row).find("\"recompute\":0.25") != std::string::npos);
  }

  TEST_CASE("gradient buckets stand in the line where they are known, neighbours of many as one") {
    StepRow row;
    CHECK(step_line(row).find("reduction") == std::string::npos);
    row.reduction_seconds = 0.75F;
    row.reduction_exposed_seconds = 0.25F;
    CHECK(step_line(row).find("\"reduction\":0.75,\"reduction_exposed\":0.25") !=
          std::string::npos);
    StepBuckets buckets;
    buckets.add({1, 64, -0.5F, -0.25F}, 2);
    buckets.add({1, 128, -0.375F, 0.125F}, 2);
    CHECK(step_line(row, &buckets)
              .ends_with("\"buckets\":[[1,64,-0.5,-0.25],[1,128,-0.375,0.125]]}\n"));
    StepBuckets many;
    for (int b = 0; b < 100; ++b) {
      const auto at = static_cast<float>(b);
      many.add({1, 10, at, at + 2}, 100);
    }
    REQUIRE(many.count == 25);
    CHECK(many.spans[24].buckets == 4);
    CHECK(many.spans[24].bytes == 40);
    CHECK(many.spans[24].begin_seconds == 96);
    CHECK(many.spans[24].end_seconds == 101);
    for (int b = 0; b < 1000; ++b) many.add({1, 10, 0, 1}, 100);  // more than announced
    CHECK(many.count == StepBuckets::kSpans);
  }

  TEST_CASE("a peak that nobody predicted is left out") {
    StepRow row;
    row.memory_peak_alloc_bytes = 30;
    CHECK(step_line(row).find("peak_alloc") != std::string::npos);
    CHECK(step_line(row).find("predicted") == std::string::npos);
  }

  TEST_CASE("a loss that is not finite is a bare word, an unmeasured one is left out") {
    StepRow row;
    CHECK(step_line(row).find("loss") == std::string::npos);
    row.loss = std::numeric_limits<double>::quiet_NaN();
    CHECK(step_line(row).find("\"loss\":NaN") != std::string::npos);
    row.loss = -std::numeric_limits<double>::infinity();
    CHECK(step_line(row).find("\"loss\":-Infinity") != std::string::npos);
  }

  TEST_CASE(
      "a user scalar with the name of a figure of the row stands in only where that is missing") {
    StepRow row;
    CHECK(row.add_scalar("loss", 9));
    CHECK(row.add_scalar("grad_norm", 8));
    CHECK(row.add_scalar("lr", 7));
    row.loss = 2.5;
    row.learning_rate = 0.5;
    CHECK(step_line(row).find("\"scalars\":{\"loss\":2.5,\"lr\":0.5,\"grad_norm\":8}") !=
          std::string::npos);
  }

  TEST_CASE("eight user scalars fit, the same name replaces, long names are cut") {
    StepRow row;
    for (int i = 0; i < 8; ++i) CHECK(row.add_scalar("s" + std::to_string(i), i));
    CHECK_FALSE(row.add_scalar("one too many", 1));
    CHECK(row.add_scalar("s3", 33));
    CHECK(row.scalars[3].value == 33);
    StepRow other;
    CHECK(other.add_scalar("a_very_long_name_of_a_scalar", 1));
    CHECK(std::string_view(other.scalars[0].name.data()) == "a_very_long_nam");
    CHECK_FALSE(other.add_scalar("", 1));
  }

  TEST_CASE("run.json carries configuration and provenance with their kinds") {
    RunInfo info;
    info.name = "a \"run\"";
    info.rank = RankId(2);
    info.world_size = 4;
    info.started = 5;
    info.config = {{"lr", 0.001},
                   {"layers", std::int64_t{12}},
                   {"amp", std::string("bf16")},
                   {"resume", false}};
    info.environment = {{"machine", std::string("x86_64")}};
    info.variables = {{"OMP_NUM_THREADS", std::string("1")}};
    CHECK(run_json(info, {1.5, 10, 0}) ==
          "{\"name\":\"a \\\"run\\\"\",\"config\":{\"lr\":0.001,\"layers\":12,\"amp\":\"bf16\","
          "\"resume\":false},\"rank\":2,\"world_size\":4,\"environment\":{\"machine\":\"x86_64\","
          "\"env\":{\"OMP_NUM_THREADS\":\"1\"}},\"started\":5,\"wall_time\":1.5,\"n_steps\":10,"
          "\"dropped_rows\":0}\n");
  }

  TEST_CASE("run.json is read again, and numbers that no run has are left out") {
    const WrittenRun run = read_run_json(R"({"name":"a \"b\"","started":17.5,"wall_time":3})");
    CHECK(run.name == R"(a \"b\")");
    CHECK(run.started == 17.5);
    CHECK(run.wall_time == 3);
    for (const char* odd : {"nan", "inf", "-1", "1e999", "x", ""}) {
      const std::string text =
          std::string(R"({"name":"x\)") + R"(","started":)" + odd + R"(,"wall_time":)" + odd;
      const WrittenRun altered = read_run_json(text);
      CHECK(altered.started == 0);
      CHECK(altered.wall_time == 0);
    }
  }
}
