#include "metrics/analysis/whatif/trace_model.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/testing/random.h"
#include "tests/metrics/analysis/made_trace.h"

#include <doctest/doctest.h>

namespace cox::diagnosis {
namespace {

using Rows = std::vector<TraceRow>;
using test::MadeLayout;
using test::MadeOperation;
using Recorded = MadeLayout::Recorded;

Result<JobModel> model_of_rows(Rows rows) {
  const auto trace = arrange(std::move(rows));
  if (!trace.ok()) return trace.status();
  return model_of(*trace);
}

bool is_work(OperationKind kind) {
  return kind == OperationKind::forward_compute || kind == OperationKind::backward_compute ||
         kind == OperationKind::optimizer || kind == OperationKind::gc;
}

TEST_SUITE("analysis.model") {
  TEST_CASE("a simulated job takes the time of the timeline that the trace was made from") {
    testing::Random random(7);
    const MadeLayout layouts[] = {
        {.dp_ranks = 1, .stages = 1, .chunks = 1, .microbatches = 1},
        {.dp_ranks = 1, .stages = 1, .chunks = 1, .microbatches = 3},
        {.dp_ranks = 4, .stages = 1, .chunks = 1, .microbatches = 2},
        {.dp_ranks = 1, .stages = 4, .chunks = 1, .microbatches = 4},
        {.dp_ranks = 3, .stages = 2, .chunks = 1, .microbatches = 5},
        {.dp_ranks = 2, .stages = 4, .chunks = 1, .microbatches = 8},
        {.dp_ranks = 2, .stages = 8, .chunks = 1, .microbatches = 3},
        {.dp_ranks = 2, .stages = 2, .chunks = 2, .microbatches = 4},
        {.dp_ranks = 1, .stages = 4, .chunks = 3, .microbatches = 4},
        {.dp_ranks = 2, .stages = 4, .chunks = 2, .microbatches = 4, .recorded = Recorded::all},
    };
    for (const MadeLayout& layout : layouts) {
      CAPTURE(layout.dp_ranks);
      CAPTURE(layout.stages);
      CAPTURE(layout.chunks);
      const auto seconds = [&random](const MadeOperation& o) {
        return test::usual_seconds(o) * (is_work(o.kind) ? 0.5 + random.uniform() : 1);
      };
      const auto model = model_of_rows(test::made_trace(layout, seconds));
      REQUIRE_MESSAGE(model.ok(), model.status().message());
      CHECK_MESSAGE(model->gaps.size() == (layout.dp_ranks == 0 ? 1 : 0),
                    (model->gaps.empty() ? "" : model->gaps[0]));
      CHECK(model->chunks == static_cast<std::size_t>(layout.chunks));
      const std::vector<double> simulated = simulate(*model, model->own_seconds);
      for (std::size_t s = 0; s < simulated.size(); ++s)
        CHECK(simulated[s] == doctest::Approx(model->traced_seconds[s]).epsilon(1e-9));
    }
  }

  TEST_CASE("waiting is no work: a transfer is what is left behind the last to begin") {
    const auto seconds = [](const MadeOperation& o) {
      return test::usual_seconds(o) * (o.dp_rank == 1 && is_work(o.kind) ? 3 : 1);
    };
    const auto model = model_of_rows(test::made_trace({.dp_ranks = 2, .stages = 2}, seconds));
    REQUIRE(model.ok());
    for (std::size_t o = 0; o < model->operations.size(); ++o) {
      const OperationType& type = model->types[model->operations[o].type];
      if (type.traffic != OperationType::Traffic::data_parallel) continue;
      for (std::size_t d = 0; d < 2; ++d)
        CHECK(model->own_seconds[o * 2 + d] == doctest::Approx(0.003).epsilon(1e-9));
    }
  }

  TEST_CASE("the slowest member holds up its group, and each ends by its own transfer") {
    JobModel model;
    model.dp_ranks = 2;
    model.stages = 1;
    model.types = {{"work", "work"}, {"sync", "sync"}};
    model.operations = {{0, 0}, {1, 0}};
    auto graph = ordered({{{1}, OperationGroup::Reach::all_dp_ranks}}, {{}, {0}});
    REQUIRE(graph.ok());
    model.graph = *graph;
    model.steps = {0, 1};
    const std::vector<double> own = {3, 5, 1, 2, 4, 1, 3, 0};
    CHECK(simulate(model, own) == std::vector<double>{7, 7});  // 5 + 2; 4 + 3
  }

  TEST_CASE("operations that wait for each other in a circle are refused") {
    CHECK_FALSE(ordered({}, {{1}, {0}}).ok());
    CHECK_FALSE(ordered({{{0, 1}, OperationGroup::Reach::dp_rank}}, {{}, {0}}).ok());
    CHECK(ordered({{{0, 1}, OperationGroup::Reach::dp_rank}}, {{}, {}, {0}}).ok());
  }

  TEST_CASE("kinds that a trace does not have are left out of the graph, and told") {
    for (std::size_t k = 0; k < kOperationKindNames.size(); ++k) {
      const auto kind = static_cast<OperationKind>(k);
      CAPTURE(to_string(kind));
      Rows rows = test::made_trace({.dp_ranks = 2, .stages = 2, .microbatches = 2});
      std::erase_if(rows, [kind](const TraceRow& row) { return row.kind == kind; });
      const auto model = model_of_rows(rows);
      REQUIRE_MESSAGE(model.ok(), model.status().message());
      const bool is_told = kind != OperationKind::gc &&
                           kind != OperationKind::layernorm_grads_all_reduce &&
                           kind != OperationKind::separate_grads_all_reduce;
      const bool is_half = to_string(kind).ends_with("send") || to_string(kind).ends_with("recv");
      REQUIRE(model->gaps.size() == (is_half ? 2 : is_told ? 1 : 0));
      if (is_told) CHECK(model->gaps[0].starts_with(concat("the trace has no ", kind, ":")));
      CHECK(model->doubt.empty() == !is_half);
    }
  }

  TEST_CASE("gradients that are reduced during backward tie the end of the step together") {
    Rows rows = test::made_trace({.dp_ranks = 2, .stages = 1, .microbatches = 2, .steps = 1});
    Rows separate;
    for (TraceRow& row : rows) {
      if (row.kind != OperationKind::grads_reduce_scatter) continue;
      separate.push_back(row);
      separate.back().kind = OperationKind::separate_grads_all_reduce;
      row.start_seconds = 0.06;  // from the last backward's end
    }
    rows.insert(rows.end(), separate.begin(), separate.end());
    const auto model = model_of_rows(rows);
    REQUIRE_MESSAGE(model.ok(), model.status().message());
    const auto index_of = [&model](const std::string& name) {
      for (std::uint32_t o = 0; o < model->operations.size(); ++o)
        if (model->types[model->operations[o].type].name == name) return o;
      return ~0u;
    };
    const auto depends = [&](const std::string& later, const std::string& earlier) {
      const auto& inputs = model->graph.depends_on[index_of(later)];
      return std::ranges::count(inputs, index_of(earlier)) > 0;
    };
    CHECK(depends("layernorm-grads-all-reduce", "grads-reduce-scatter"));
    CHECK(depends("layernorm-grads-all-reduce", "gc"));
    CHECK(depends("separate-grads-all-reduce", "embedding-grads-all-reduce"));
    CHECK(depends("optimizer-clip-main-grad", "separate-grads-all-reduce"));
    CHECK_FALSE(depends("grads-reduce-scatter", "embedding-grads-all-reduce"));
  }

  TEST_CASE("sends and receives that do not match are an error, not another rank's fault") {
    const struct {
      const char* what;
      std::function<bool(const TraceRow&)> is_gone;
      std::string words;
    } cases[] = {
        {"a send everywhere",
         [](const TraceRow& r) {
           return r.kind == OperationKind::forward_send && r.stage == 0 && r.sequence == 3;
         },
         "expected as many forward-recv in stage 1 as forward-send in stage 0, found 4 and 3"},
        {"the last stage", [](const TraceRow& r) { return r.stage == 3; },
         "stage 2: expected no forward-send at the last of 3 stages, found some: the rows of a "
         "stage are missing"},
        {"half of the computes",
         [](const TraceRow& r) {
           return r.kind == OperationKind::forward_compute && r.stage == 1 && r.sequence >= 2;
         },
         "stage 1: expected at most one forward-send for each of 2 forward-compute, found 4"},
    };
    for (const auto& it : cases) {
      CAPTURE(it.what);
      Rows rows = test::made_trace({});
      std::erase_if(rows, it.is_gone);
      const auto model = model_of_rows(std::move(rows));
      REQUIRE_FALSE(model.ok());
      CHECK_MESSAGE(model.status().message().starts_with(it.words), model.status().message());
    }
  }

  TEST_CASE("model chunks that do not go around the stages are an error") {
    Rows rows = test::made_trace({.dp_ranks = 1, .stages = 2, .chunks = 2, .microbatches = 2});
    for (TraceRow& row : rows)
      if (row.stage == 1 && row.chunk == 1) row.global_chunk = 2;
    CHECK_FALSE(model_of_rows(rows).ok());
    for (TraceRow& row : rows) row.global_chunk = -1;  // then the layout decides
    CHECK(model_of_rows(rows).ok());
  }

  TEST_CASE("operations that the recorder wrote down but nobody launched pair with nothing") {
    Rows rows = test::made_trace({.dp_ranks = 1, .stages = 2, .microbatches = 2, .steps = 1});
    TraceRow early{10, 0, 0, 0, OperationKind::forward_send, 0, -1, -1, 0, 0.001};
    TraceRow late{10, 0, 1, 1, OperationKind::forward_recv, 2, -1, -1, 0.05, 0.001};
    for (TraceRow& row : rows)
      if (row.kind == OperationKind::forward_send) ++row.sequence;
    rows.push_back(early);
    rows.push_back(late);
    const auto model = model_of_rows(rows);
    REQUIRE_MESSAGE(model.ok(), model.status().message());
    const auto pairs = std::ranges::count_if(
        model->graph.groups, [](const OperationGroup& g) { return g.members.size() == 2; });
    CHECK(pairs == 4 + 2);  // two each way, embedding, clip
  }

  TEST_CASE("nobody is to be named where one side of those that wait for each other is missing") {
    const struct {
      std::function<bool(const TraceRow&)> is_gone;
      std::string doubt;
    } cases[] = {
        {[](const TraceRow& r) { return r.kind == OperationKind::backward_send; }, "backward-send"},
        {[](const TraceRow& r) {
           return r.kind == OperationKind::embedding_grads_all_reduce && r.stage == 3;
         },
         "embedding-grads-all-reduce of stage 3"},
        {[](const TraceRow& r) {
           return r.kind == OperationKind::optimizer_clip_main_grad && r.stage == 1;
         },
         "optimizer-clip-main-grad of stage 1"},
    };
    for (const auto& it : cases) {
      Rows rows = test::made_trace({});
      std::erase_if(rows, it.is_gone);
      const auto model = model_of_rows(std::move(rows));
      REQUIRE_MESSAGE(model.ok(), model.status().message());
      CHECK_MESSAGE(model->doubt.ends_with("the missing " + it.doubt), model->doubt);
    }
  }

  TEST_CASE("ranks between those of the trace are told") {
    Rows rows = test::made_trace({});
    for (TraceRow& row : rows) row.rank *= 2;
    const auto model = model_of_rows(std::move(rows));
    REQUIRE(model.ok());
    REQUIRE(model->gaps.size() == 1);
    CHECK_MESSAGE(model->gaps[0].starts_with("the trace has 8 ranks of at least 15:"),
                  model->gaps[0]);
  }

  TEST_CASE("clocks that disagree by 10 ms or more are told") {
    const struct {
      const char* what;
      std::function<bool(const TraceRow&)> is_shifted;
      double by;
      std::string words;
    } cases[] = {
        {"between ranks", [](const TraceRow& r) { return r.rank == 3; }, 0.05,
         "end 10 ms or more before the start of the last operation that they wait for"},
        {"on one rank",
         [](const TraceRow& r) {
           return r.rank == 3 && r.step == 11 && r.kind == OperationKind::optimizer;
         },
         -0.05, "(optimizer 0 of rank 3 in step 11 by 0.050 s)"},
    };
    for (const auto& it : cases) {
      CAPTURE(it.what);
      Rows rows = test::made_trace({.dp_ranks = 2, .stages = 2});
      for (TraceRow& row : rows)
        if (it.is_shifted(row)) row.start_seconds += it.by;
      const auto model = model_of_rows(rows);
      REQUIRE(model.ok());
      REQUIRE(model->gaps.size() == 1);
      CHECK_MESSAGE(model->gaps[0].find(it.words) != std::string::npos, model->gaps[0]);
      CHECK(model->doubt.empty() == (it.by < 0));  // one operation is too few
    }
  }
}

}  // namespace
}  // namespace cox::diagnosis
