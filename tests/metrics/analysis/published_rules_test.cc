// The figures and findings of the published rules, on all published cases.
#include "metrics/analysis/findings/published_rules.h"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "metrics/analysis/findings/figures.h"
#include "metrics/records/kernel_trace_file.h"
#include "metrics/records/run_reader.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using diagnosis::Finding;

const std::string kRuns = std::string(COX_TEST_DATA) + "/training-runs";

io::Json expected() {
  const auto text = io::read_file(kRuns + "/expected.json", 16 << 20);
  REQUIRE(text.ok());
  auto json = io::parse_json(*text);
  REQUIRE(json.ok());
  return *std::move(json);
}

void check_findings(const io::Json& wanted, const std::vector<Finding>& found) {
  REQUIRE(found.size() == wanted.items.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const io::Json& item = wanted.items[i];
    CHECK(found[i].code == item.find("code")->string);
    CHECK(to_string(found[i].severity) == item.find("severity")->string);
    CHECK(!found[i].title.empty());
    CHECK(!found[i].detail.empty());
  }
}

TEST_SUITE("analysis.published_rules") {
  TEST_CASE("pipelines have the published bubbles and findings") {
    const io::Json all = expected();
    for (const io::Json& item : all.find("pipeline")->items) {
      CAPTURE(item.find("name")->string);
      std::vector<diagnosis::StageInterval> intervals;
      for (const io::Json& each : item.find("intervals")->items)
        intervals.push_back({static_cast<std::int32_t>(each.items[0].number), each.items[1].number,
                             each.items[2].number});
      std::optional<std::size_t> microbatches;
      if (item.find("microbatches")->kind == io::JsonKind::number)
        microbatches = static_cast<std::size_t>(item.find("microbatches")->number);
      const auto pipeline = diagnosis::pipeline_of(intervals, microbatches);
      REQUIRE(pipeline);
      const io::Json& summary = *item.find("summary");
      CHECK(pipeline->makespan_seconds == summary.find("makespan")->number);
      CHECK(std::fabs(pipeline->bubble - summary.find("bubble_fraction")->number) < 1e-12);
      CHECK(pipeline->busiest_stage == summary.find("busiest_stage")->number);
      CHECK(pipeline->idlest_stage == summary.find("idlest_stage")->number);
      for (const io::JsonMember& stage : summary.find("per_stage_bubble")->members)
        CHECK(std::fabs(pipeline->stage_bubbles.at(std::stoi(stage.name)) - stage.value.number) <
              1e-12);
      check_findings(*item.find("findings"), diagnosis::published_findings(*pipeline));
    }
  }

  TEST_CASE("runs have the published findings") {
    const io::Json all = expected();
    for (const io::JsonMember& item : all.find("analyze")->members) {
      CAPTURE(item.name);
      const std::string path = kRuns + "/runs/" + item.name;
      const auto run = io::read_run(path);
      REQUIRE_MESSAGE(run.ok(), run.status().message());
      const std::size_t warmup = item.name == "warmup-flag" ? 5 : 0;
      diagnosis::Figures figures = figures_of(*run, {warmup, {}, {}});
      if (item.value.find("trace")->kind == io::JsonKind::object) {
        auto kernels = io::read_kernel_trace(path + "/trace.json");
        REQUIRE(kernels.ok());
        figures.trace = diagnosis::kernel_trace_of(*std::move(kernels));
      }
      check_findings(*item.value.find("findings"), diagnosis::published_findings(figures));
    }
  }
}

}  // namespace
}  // namespace cox
