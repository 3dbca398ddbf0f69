#include "metrics/records/step_row.h"

#include <torch/torch.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "metrics/live_window.h"
#include "metrics/records/run_format.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/session/host_facts.h"
#include "sdk/src/session/run_directory.h"
#include "sdk/src/session/step_report.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace cox::detail;

namespace {

Plan plan_of_two_profiles() {
  Plan plan;
  plan.id.number = 3;
  plan.precision.assign(4, Precision::fp32);
  plan.profiles = {std::vector<MemoryAction>(4, MemoryAction::keep),
                   {MemoryAction::recompute, MemoryAction::offload, MemoryAction::tile,
                    MemoryAction::recompute}};
  plan.rank_profile = {ProfileId(0), ProfileId(1)};
  return plan;
}

metrics::StepRow row_of(std::int32_t rank) {
  const MemoryConfig config;
  BlockWatch blocks;
  MemoryActuator memory(config, RankId(rank), blocks, Log());
  metrics::StepRow row = row_from(StepReport{}, RoundId(5), UnixTime{1});
  const Plan plan = plan_of_two_profiles();
  StepOutput output{.row = &row};
  memory.end_step({RankId(rank), RoundId(5), plan}, output);
  return row;
}

}  // namespace

TEST_SUITE("step row") {
  TEST_CASE("counts the blocks under every action on its own rank") {
    const metrics::StepRow kept = row_of(0);
    CHECK(kept.recomputed_blocks == 0);
    CHECK(kept.offloaded_blocks == 0);
    CHECK(kept.tiled_blocks == 0);
    const metrics::StepRow mixed = row_of(1);
    CHECK(mixed.round == RoundId(5));
    CHECK(mixed.recomputed_blocks == 2);
    CHECK(mixed.offloaded_blocks == 1);
    CHECK(mixed.tiled_blocks == 1);
  }

  TEST_CASE("the coordinator makes the same line of a rank's report as the rank itself") {
    StepReport report;
    report.step = StepId(4);
    report.phase_seconds = {0.011, 0.1, 0.2, 0, 0.03, 0.017, 0.0021};
    report.waiting_seconds = 0.013;
    report.save_seconds = 1.5;
    report.loss = 2.125;
    report.weight = 3;
    report.gradient_norm = 0.7;
    report.has_gradient_norm = true;
    report.nonfinite_values = 2;
    report.flags = static_cast<std::uint16_t>(SignalFlag::waiting_measured) |
                   static_cast<std::uint16_t>(SignalFlag::step_skipped);
    const MemoryConfig config;
    BlockWatch blocks;
    MemoryProbe probe;
    MemoryActuator memory(config, RankId(1), blocks, Log());
    const Plan plan = plan_of_two_profiles();
    const StepEnd end{RankId(1), RoundId(5), plan};
    metrics::StepRow row = row_from(report, RoundId(5), UnixTime{1});
    row.plan = plan.id.number;
    StepOutput output{.row = &row};
    memory.end_step(end, output);
    probe.end_step(end, output);
    RankSignal signal = signal_from(report);
    signal.rank = RankId(1);
    signal.round = RoundId(5);
    signal.plan_applied = plan.id.number;
    memory.sign(signal);
    probe.sign(signal);
    metrics::StepRow again = metrics::row_of(signal, &plan, UnixTime{1});
    again.precision_blocks = row.precision_blocks;  // set by FormatActuator
    // On the CPU no report has these, so the rank repeats the bytes of tensors or the process.
    CHECK(again.memory_reserved_bytes == 0);
    again.memory_reserved_bytes = row.memory_alloc_bytes;
    again.memory_peak_reserved_bytes = row.memory_peak_alloc_bytes;
    CHECK(row.recomputed_blocks == 2);
    CHECK(metrics::step_line(again) == metrics::step_line(row));
  }

  TEST_CASE("numerics are summed over blocks, and the block to blame is named") {
    std::vector<BlockEvidence> evidence(4);
    evidence[1].sampled = 10;
    evidence[1].underflow = 2;
    evidence[1].noise_sum = 3;
    evidence[2].sampled = 5;
    evidence[2].saturated = 1;
    evidence[2].noise_sum = 1;
    evidence[1].noise_count = evidence[2].noise_count = 1;
    const HealthVerdict verdict{HealthVerdict::Where::backward, BlockId(2), 7};
    metrics::StepRow row;
    fill_row(row, evidence, verdict, "layer.2");
    CHECK(row.sampled_values == 15);
    CHECK(row.underflow_values == 2);
    CHECK(row.saturated_values == 1);
    CHECK(row.gradient_noise == 2);
    CHECK(row.overflow_pass == metrics::OverflowPass::backward);
    CHECK(std::string(row.overflow_block.data()) == "layer.2");
    CHECK(row.loss_scale == metrics::kNotMeasured);
  }

  TEST_CASE("without a prediction the peak stands alone") {
    metrics::StepRow row = row_of(1);
    MemoryProbe probe;
    const at::Tensor held = torch::ones({1000});  // if tensors are counted
    StepOutput output{.row = &row};
    probe.end_step({RankId(1), RoundId(5), Plan{}}, output);
    CHECK(row.memory_peak_alloc_bytes == probe.reading().peak_bytes);
    CHECK(row.memory_peak_alloc_bytes > 0);
    CHECK(row.predicted_peak_bytes == 0);
  }
}

TEST_SUITE("run info") {
  TEST_CASE("tells the variables that steer threads and transport, sorted, and no others") {
    const metrics::RunInfo info =
        run_info(Config{}, {"mine", RankId(0), 2}, UnixTime{1},
                 {"PATH=/bin", "OMP_NUM_THREADS=2", "MKL_CBWR=AVX2", "COX_LOG=debug", "TOKEN=x",
                  "NCCL_TOPO_FILE=/etc/topology.xml", "no variable"});
    CHECK(info.environment[0].name == "program");
    CHECK(std::get<std::string>(info.environment[0].value) == "mine");
    REQUIRE(info.variables.size() == 2);
    CHECK(info.variables[0].name == "MKL_CBWR");
    CHECK(std::get<std::string>(info.variables[0].value) == "AVX2");
    CHECK(info.variables[1].name == "OMP_NUM_THREADS");
    CHECK(std::get<std::string>(info.variables[1].value) == "2");
  }

  TEST_CASE("tells the host, and of a device what readers look for") {
    const auto texts = [](std::optional<DeviceFacts> device) {
      std::map<std::string, std::string> out;
      const RunPlace place{"mine", RankId(0), 2, RankId(0), std::move(device)};
      for (const auto& field : run_info(Config{}, place, UnixTime{1}, {}).environment) {
        const auto* text = std::get_if<std::string>(&field.value);
        out[field.name] = text != nullptr ? *text : "no text";
      }
      return out;
    };
    auto on_cpu = texts(std::nullopt);
    CHECK(on_cpu["host"] == this_host().host);
    auto on_device = texts(DeviceFacts{"NVIDIA H100 80GB HBM3", 80, 4, "13.0"});
    CHECK(on_device["gpu"] == "NVIDIA H100 80GB HBM3");
    CHECK(on_device["cuda"] == "13.0");
    for (const char* key : {"gpu", "gpu_count", "cuda", "cudnn_benchmark", "cudnn_deterministic",
                            "cudnn_allow_tf32"}) {
      CHECK(on_device.contains(key));
      CHECK_FALSE(on_cpu.contains(key));
    }
    CHECK_FALSE(texts(DeviceFacts{}).contains("gpu"));  // a runtime without a name
  }
}
