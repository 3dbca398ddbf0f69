#include "metrics/records/trace.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "tests/metrics/analysis/made_trace.h"

#include <doctest/doctest.h>

namespace cox::diagnosis {
namespace {

using Rows = std::vector<TraceRow>;

Rows whole() {
  return test::made_trace({.dp_ranks = 2, .stages = 2, .microbatches = 2, .steps = 3});
}

bool is_at(const TraceRow& row, int step, int dp_rank, OperationKind kind, int sequence) {
  return row.step == step && row.dp_rank == dp_rank && row.stage == 0 && row.kind == kind &&
         row.sequence == sequence;
}

TraceRow& find(Rows& rows, int step, int dp_rank, OperationKind kind, int sequence = 0) {
  return *std::ranges::find_if(
      rows, [=](const TraceRow& row) { return is_at(row, step, dp_rank, kind, sequence); });
}

constexpr auto kForward = OperationKind::forward_compute;

TEST_SUITE("records.trace") {
  TEST_CASE("every kind of operation has the name that it is found by") {
    CHECK(std::ranges::is_sorted(kOperationKindNames));
    for (const std::string_view name : kOperationKindNames)
      CHECK(to_string(operation_kind_of(name).value()) == name);
    CHECK_FALSE(operation_kind_of("forward"));
    CHECK_FALSE(operation_kind_of("zzz"));
  }

  TEST_CASE("a whole trace has a place for each operation of each step and rank") {
    const auto trace = arrange(whole());
    REQUIRE_MESSAGE(trace.ok(), trace.status().message());
    CHECK(trace->dp_ranks == 2);
    CHECK(trace->stages == 2);
    CHECK(trace->steps == std::vector<std::int64_t>{10, 11, 12});
    CHECK(trace->ranks == std::vector<std::int32_t>{0, 2, 1, 3});
    CHECK(trace->keys.size() * 6 == whole().size());
    CHECK(trace->start.size() == whole().size());
    CHECK(trace->gaps.empty());
  }

  TEST_CASE("the order of the rows changes nothing") {
    Rows rows = whole();
    const auto before = arrange(rows);
    std::ranges::reverse(rows);
    std::rotate(rows.begin(), rows.begin() + 17, rows.end());
    const auto after = arrange(rows);
    REQUIRE(before.ok());
    REQUIRE(after.ok());
    CHECK(before->start == after->start);
    CHECK(before->seconds == after->seconds);
    CHECK(before->ranks == after->ranks);
  }

  TEST_CASE("a step that is damaged is left out and named with the reason") {
    const struct {
      const char* what;
      std::function<void(Rows&)> damage;
      std::string words;
    } cases[] = {
        {"an operation is missing",
         [](Rows& rows) {
           std::erase_if(rows, [](const TraceRow& r) { return is_at(r, 11, 1, kForward, 1); });
         },
         "step 11 is left out: dp rank 1 lacks forward-compute 1 of stage 0"},
        {"an operation too many",
         [](Rows& rows) {
           rows.push_back(find(rows, 11, 0, kForward, 1));
           rows.back().sequence = 2;
         },
         "step 11 is left out: dp rank 0 has forward-compute 2 of stage 0, which others lack"},
        {"a rank is missing",
         [](Rows& rows) {
           std::erase_if(rows, [](const TraceRow& r) { return r.step == 11 && r.rank == 3; });
         },
         "step 11 is left out: dp rank 1 lacks backward-compute 0 of stage 1 (and"},
        {"a data-parallel rank is missing",
         [](Rows& rows) {
           std::erase_if(rows, [](const TraceRow& r) { return r.step == 11 && r.dp_rank == 0; });
         },
         "step 11 is left out: dp rank 0 has no operations"},
        {"a clock ran backwards",
         [](Rows& rows) {
           find(rows, 11, 0, OperationKind::backward_compute, 1).start_seconds = 0;
         },
         "step 11 is left out: dp rank 0 has a clock that ran backwards: backward-compute 1"},
        {"a pass took no time", [](Rows& rows) { find(rows, 11, 1, kForward, 1).seconds = 0; },
         "step 11 is left out: dp rank 1 took no time for forward-compute 1 of stage 0 (line "},
    };
    for (const auto& it : cases) {
      CAPTURE(it.what);
      Rows rows = whole();
      it.damage(rows);
      const auto trace = arrange(std::move(rows));
      REQUIRE_MESSAGE(trace.ok(), trace.status().message());
      CHECK(trace->steps == std::vector<std::int64_t>{10, 12});
      REQUIRE(trace->gaps.size() == 1);
      CHECK_MESSAGE(trace->gaps[0].starts_with(it.words), trace->gaps[0]);
    }
  }

  TEST_CASE("what leaves nothing to compare is an error that says what is missing") {
    const struct {
      const char* what;
      std::function<void(Rows&)> damage;
      std::string words;
    } cases[] = {
        {"no rows", [](Rows& rows) { rows.clear(); }, "expected rows of operations, found none"},
        {"a row twice", [](Rows& rows) { rows.push_back(find(rows, 11, 1, kForward)); },
         "once in step 11 of dp rank 1, found it twice"},
        {"no rank 3 at all",
         [](Rows& rows) { std::erase_if(rows, [](const TraceRow& r) { return r.rank == 3; }); },
         "expected rows of dp rank 1 in stage 1, found none"},
        {"no stage 0",
         [](Rows& rows) { std::erase_if(rows, [](const TraceRow& r) { return r.stage == 0; }); },
         "expected rows of stage 0, found none, but stage 1"},
        {"no dp rank 0",
         [](Rows& rows) { std::erase_if(rows, [](const TraceRow& r) { return r.dp_rank == 0; }); },
         "expected rows of dp rank 0, found none"},
        {"two ranks in one place", [](Rows& rows) { find(rows, 11, 0, kForward).rank = 9; },
         "found rank 0 and rank 9"},
        {"one rank in two places",
         [](Rows& rows) {
           for (TraceRow& row : rows) row.rank = row.rank == 3 ? 2 : row.rank;
         },
         "found rank 2 in another place too"},
        {"an operation of one rank missing in every step",
         [](Rows& rows) {
           std::erase_if(rows, [](const TraceRow& r) {
             return r.dp_rank == 1 && r.stage == 0 && r.kind == kForward && r.sequence == 1;
           });
         },
         "expected a step with the operations of all ranks, found none; step 10 is left out: dp "
         "rank 1 lacks forward-compute 1"},
        {"no pass took time",
         [](Rows& rows) {
           for (TraceRow& row : rows) row.seconds = 0;
         },
         "took no time for backward-compute 0"},
    };
    for (const auto& it : cases) {
      CAPTURE(it.what);
      Rows rows = whole();
      it.damage(rows);
      const auto trace = arrange(std::move(rows));
      REQUIRE_FALSE(trace.ok());
      CHECK(trace.status().code() == StatusCode::invalid_argument);
      CHECK_MESSAGE(trace.status().message().find(it.words) != std::string::npos,
                    trace.status().message());
    }
  }

  TEST_CASE("many damaged steps are told one by one up to eight") {
    Rows rows = test::made_trace({.dp_ranks = 1, .stages = 1, .microbatches = 1, .steps = 30});
    for (TraceRow& row : rows) {
      if (row.step > 10 && row.kind == kForward) row.seconds = 0;
    }
    const auto trace = arrange(std::move(rows));
    REQUIRE(trace.ok());
    CHECK(trace->steps.size() == 1);
    REQUIRE(trace->gaps.size() == 9);
    CHECK(trace->gaps[8] == "21 more steps are left out for reasons of the same kinds");
  }
}

}  // namespace
}  // namespace cox::diagnosis
