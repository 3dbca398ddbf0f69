#include "metrics/analysis/whatif/what_if.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "coordinator/testing/random.h"
#include "metrics/analysis/whatif/trace_model.h"
#include "metrics/records/trace_file.h"
#include "tests/metrics/analysis/made_trace.h"

#include <doctest/doctest.h>

namespace cox::diagnosis {
namespace {

using test::MadeLayout;
using test::MadeOperation;

JobModel model_of_rows(std::vector<TraceRow> rows) {
  const auto trace = arrange(std::move(rows));
  REQUIRE_MESSAGE(trace.ok(), trace.status().message());
  auto model = model_of(*trace);
  REQUIRE_MESSAGE(model.ok(), model.status().message());
  return *std::move(model);
}

WhatIf figures_of(const JobModel& model) {
  auto figures = what_if(model);
  REQUIRE_MESSAGE(figures.ok(), figures.status().message());
  return *std::move(figures);
}

WhatIf figures_of(const MadeLayout& layout, const test::MadeSeconds& seconds) {
  return figures_of(model_of_rows(test::made_trace(layout, seconds)));
}

bool is_pass(const MadeOperation& operation) {
  return operation.kind == OperationKind::forward_compute ||
         operation.kind == OperationKind::backward_compute;
}

double slowdown_of(const WhatIf& figures, const std::string& label) {
  const auto found = std::ranges::find(figures.labels, label, &LabelSlowdown::label);
  REQUIRE(found != figures.labels.end());
  return found->slowdown;
}

// Returns two data-parallel ranks and one stage, so that each figure can be computed by hand.
JobModel tiny() {
  JobModel model;
  model.dp_ranks = 2;
  model.stages = 1;
  model.types = {
      {"work", "work"},
      {"sync", "sync", OperationType::Centre::median, OperationType::Traffic::data_parallel}};
  model.operations = {{0, 0}, {1, 0}};
  auto graph = ordered({{{1}, OperationGroup::Reach::all_dp_ranks}}, {{}, {0}});
  REQUIRE(graph.ok());
  model.graph = *std::move(graph);
  model.ranks = {4, 5};
  model.steps = {0, 1};
  model.own_seconds = {2, 6, 1, 1, 2, 2, 1, 3};
  model.traced_seconds = {8, 6};
  return model;
}

TEST_SUITE("analysis.what_if") {
  TEST_CASE("figures of a job of two ranks, worked out by hand") {
    const WhatIf figures = figures_of(tiny());
    // Ideal work is the mean 3; ideal sync is the median 1.
    CHECK(figures.types[0].ideal_seconds == 3);
    CHECK(figures.types[1].ideal_seconds == 1);
    CHECK(figures.ideal_seconds == 4);
    CHECK(figures.steps[0].actual_seconds == 7);  // 6 + 1
    CHECK(figures.steps[1].actual_seconds == 5);  // 2 + 3
    CHECK(figures.actual_seconds == 6);
    CHECK(figures.slowdown == 1.5);
    CHECK(figures.simulation_gap() == doctest::Approx(7.0 / 6));
    CHECK(slowdown_of(figures, "work") == doctest::Approx((7 + 3) / 2.0 / 4));
    CHECK(slowdown_of(figures, "sync") == doctest::Approx((4 + 6) / 2.0 / 4));
    CHECK(figures.of_dp_ranks[0] == doctest::Approx((4 + 4) / 2.0 / 4));
    CHECK(figures.of_dp_ranks[1] == doctest::Approx((7 + 6) / 2.0 / 4));
    CHECK(figures.of_stages[0] == 1.5);
    CHECK(figures.worst_ranks == std::vector<std::int32_t>{5});
    CHECK(figures.worst.removed_seconds == 4);  // rank 4: 2 + 1; rank 5 ideal: 3 + 1
    CHECK(figures.worst.added_seconds == 6.5);
    CHECK(figures.worst.removed_share == doctest::Approx(1));
    CHECK(figures.worst.added_share == doctest::Approx(1.25));
    CHECK(figures.last_stage.removed_share == doctest::Approx(1));
    CHECK(figures.culprits.ranks == std::vector<std::int32_t>{5});
    CHECK(figures.data_parallel_free == doctest::Approx(6 / ((6 + 2) / 2.0)));
    CHECK_FALSE(figures.pipeline_free);
    CHECK(figures.labels[0].label == "work");
    CHECK((figures.work_seconds == std::vector<double>{2, 1, 4, 2}));
  }

  TEST_CASE("a job without differences loses nothing, and nobody is named") {
    const WhatIf figures = figures_of({.dp_ranks = 2, .stages = 1}, test::usual_seconds);
    CHECK(figures.slowdown == doctest::Approx(1).epsilon(1e-12));
    for (const LabelSlowdown& label : figures.labels)
      CHECK(label.slowdown == doctest::Approx(1).epsilon(1e-12));
    CHECK_FALSE(figures.worst.removed_share);
    CHECK(figures.culprits.ranks.empty());
  }

  TEST_CASE("all times twice as long are twice the times and the same ratios") {
    testing::Random random(3);
    JobModel model = model_of_rows(test::made_trace({}, [&random](const MadeOperation& o) {
      return test::usual_seconds(o) * (0.5 + random.uniform());
    }));
    const WhatIf before = figures_of(model);
    for (double& seconds : model.own_seconds) seconds *= 2;
    const WhatIf after = figures_of(model);
    CHECK(after.actual_seconds == 2 * before.actual_seconds);
    CHECK(after.ideal_seconds == 2 * before.ideal_seconds);
    CHECK(after.slowdown == before.slowdown);
    CHECK(after.of_workers == before.of_workers);
    CHECK(after.worst.removed_share == before.worst.removed_share);
  }

  TEST_CASE("the order of the rows changes no figure") {
    testing::Random random(5);
    auto rows = test::made_trace({}, [&random](const MadeOperation& o) {
      return test::usual_seconds(o) * (0.5 + random.uniform());
    });
    const WhatIf before = figures_of(model_of_rows(rows));
    for (std::size_t i = rows.size(); i > 1; --i) std::swap(rows[i - 1], rows[random.below(i)]);
    const WhatIf after = figures_of(model_of_rows(rows));
    CHECK(after.slowdown == before.slowdown);
    CHECK(after.of_workers == before.of_workers);
    CHECK(after.actual_seconds == before.actual_seconds);
  }

  TEST_CASE("workers that are slow are named, wherever they are and however many") {
    const struct {
      MadeLayout layout;
      std::vector<std::int32_t> slow;  // rank = stage * dp_ranks + dp_rank
    } cases[] = {
        {{.dp_ranks = 4, .stages = 4, .microbatches = 8}, {6}},
        {{.dp_ranks = 8, .stages = 1, .microbatches = 2}, {3}},
        {{.dp_ranks = 8, .stages = 1, .microbatches = 2}, {0, 7}},
        {{.dp_ranks = 1, .stages = 4, .microbatches = 8}, {2}},
        {{.dp_ranks = 2, .stages = 4, .chunks = 2, .microbatches = 4}, {5}},
    };
    for (const auto& it : cases) {
      CAPTURE(it.slow[0]);
      testing::Random random(11);
      const WhatIf figures = figures_of(it.layout, [&](const MadeOperation& o) {
        const int rank = o.stage * it.layout.dp_ranks + o.dp_rank;
        const bool is_slow = std::ranges::count(it.slow, rank) > 0 && is_pass(o);
        return test::usual_seconds(o) * (is_slow ? 1.5 : 1) * (1 + 0.02 * random.uniform());
      });
      CHECK(figures.slowdown > 1.1);
      CHECK(figures.culprits.ranks == it.slow);
      CHECK(std::ranges::count(it.slow, figures.worst_ranks[0]) == 1);
      CHECK(is_pass({operation_kind_of(figures.labels[0].label).value(), 0, 0, 0, 0}));
    }
  }

  TEST_CASE("a last stage that is too long is told by M_S") {
    const WhatIf figures =
        figures_of({.dp_ranks = 4, .stages = 4, .microbatches = 8}, [](const MadeOperation& o) {
          return test::usual_seconds(o) * (o.stage == 3 && is_pass(o) ? 1.6 : 1);
        });
    CHECK(figures.last_stage.removed_share.value() > 0.9);
    CHECK(figures.worst.removed_share.value() < 0.2);
    CHECK(figures.culprits.ranks == std::vector<std::int32_t>{12, 13, 14, 15});
  }

  TEST_CASE("micro-batches that differ are nobody's fault") {
    testing::Random random(13);
    std::vector<double> lengths;
    for (int i = 0; i < 1000; ++i) lengths.push_back(0.5 + random.uniform());
    const WhatIf figures = figures_of(
        {.dp_ranks = 8, .stages = 4, .microbatches = 8, .steps = 5}, [&](const MadeOperation& o) {
          const auto batch = static_cast<std::size_t>((o.step * 8 + o.dp_rank) * 8 + o.sequence);
          return test::usual_seconds(o) * (is_pass(o) ? lengths[batch] : 1);
        });
    CHECK(figures.slowdown > 1.1);
    CHECK(figures.culprits.ranks.empty());
    CHECK(figures.last_stage.removed_share.value() < 0.5);
    CHECK(slowdown_of(figures, "backward-compute") > 1.05);
  }

  TEST_CASE("a job whose operations take no time has no figures") {
    JobModel model = tiny();
    std::ranges::fill(model.own_seconds, 0);
    CHECK(what_if(model).status().code() == StatusCode::invalid_argument);
  }
}

// --- The published trace.

std::string data(const std::string& name) {
  return std::string(COX_TEST_DATA) + "/straggler-traces/" + name;
}

WhatIf published_trace() {
  const auto text = io::read_trace_text(data("trace-ST.csv.gz"));
  REQUIRE_MESSAGE(text.ok(), text.status().message());
  auto rows = io::parse_trace(*text);
  REQUIRE_MESSAGE(rows.ok(), rows.status().message());
  return figures_of(model_of_rows(*std::move(rows)));
}

void check_near(double found, const io::Json& expected, const std::string& where) {
  CHECK_MESSAGE(std::abs(found / expected.number - 1) <= 1e-5,
                where << ": expected " << expected.number << ", found " << found);
}

TEST_SUITE("analysis.what_if") {
  TEST_CASE("the published figures of a real job come out again") {
    const WhatIf figures = published_trace();
    const auto text = io::read_file(data("expected-ST.json"), 1 << 20);
    REQUIRE(text.ok());
    const auto expected = io::parse_json(*text);
    REQUIRE(expected.ok());
    const auto at = [&expected](const char* name) -> const io::Json& {
      const io::Json* found = expected->find(name);
      REQUIRE_MESSAGE(found != nullptr, name);
      return *found;
    };
    check_near(figures.traced_seconds, at("t_traced"), "t_traced");
    check_near(figures.actual_seconds, at("t_actual"), "t_actual");
    check_near(figures.ideal_seconds, at("t_ideal"), "t_ideal");
    check_near(figures.slowdown, at("S"), "S");
    check_near(figures.simulation_gap(), at("simulation_gap"), "simulation_gap");
    CHECK(std::abs(figures.worst.removed_share.value() - at("M_W").number) <= 1e-5);
    CHECK(std::abs(figures.last_stage.removed_share.value() - at("M_S").number) <= 1e-5);
    check_near(figures.worst.removed_seconds, *at("M_W_detail").find("t_removed"), "M_W");
    check_near(figures.worst.added_seconds, *at("M_W_detail").find("t_added"), "M_W");
    check_near(figures.last_stage.added_seconds, *at("M_S_detail").find("t_added"), "M_S");
    CHECK(figures.worst_ranks == std::vector<std::int32_t>{7});
    check_near(figures.pipeline_free.value(), at("speedup_if_pipeline_comm_free"), "pipeline");
    check_near(figures.data_parallel_free.value(), at("speedup_if_data_parallel_comm_free"), "dp");
    CHECK(figures.labels.size() == at("S_type").members.size());
    for (const auto& [name, value] : at("S_type").members)
      check_near(slowdown_of(figures, name), value, name);
    for (const auto& [name, value] : at("S_dp_rank").members)
      check_near(figures.of_dp_ranks[std::stoul(name)], value, "dp rank " + name);
    for (const auto& [name, value] : at("S_stage").members)
      check_near(figures.of_stages[std::stoul(name)], value, "stage " + name);
    REQUIRE(figures.steps.size() == at("S_step").members.size());
    for (std::size_t s = 0; s < figures.steps.size(); ++s) {
      const StepTimes& step = figures.steps[s];
      const std::string name = std::to_string(step.step);
      check_near(step.actual_seconds / step.ideal_seconds, *at("S_step").find(name), name);
      check_near(step.traced_seconds, *at("step_traced").find(name), name);
      for (const LabelSlowdown& label : figures.labels)
        check_near(label.of_steps[s], *at("S_type_per_step").find(name)->find(label.label), name);
    }
  }
}

}  // namespace
}  // namespace cox::diagnosis
