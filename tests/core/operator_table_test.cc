#include "coordinator/core/operator_table.h"

#include <algorithm>
#include <random>
#include <vector>

#include <doctest/doctest.h>

using namespace cox;

namespace {

OperatorTable sample() {
  OperatorTable table;
  table.steps = 1;
  table.newest = StepId(2);
  table.blocks = {{"embed", 0.1, 0.2}, {"h.0", 0.3, 0.4}, {"h.1", 0.5, 0.6}, {"rest"}};
  table.rows = {{"aten::add", "embed", 1, 10, 100},
                {"aten::add", "h.0", 2, 20, 200},
                {"aten::mm", "h.0", 3, 300, 30, OperatorFlops{1000, 2000}},
                {"aten::mm", "h.1", 4, 400, 40, OperatorFlops{1000, 1000}}};
  return table;
}

}  // namespace

TEST_SUITE("core.operators") {
  TEST_CASE("rows of one operator and block are added up, in whatever order they come") {
    std::vector<OperatorRow> rows = sample().rows;
    rows.push_back({"aten::add", "h.0", 1, 1, 1});  // another overload
    rows.push_back({"aten::relu", "h.1", 1, 1, 1});
    rows.push_back({"aten::mm", "h.0", 3, 300, 30, OperatorFlops{1000, 2000}});
    OperatorTable expected = sample();
    expected.rows[1] = {"aten::add", "h.0", 3, 21, 201};
    expected.rows[2] = {"aten::mm", "h.0", 6, 600, 60, OperatorFlops{2000, 4000}};
    expected.rows.push_back({"aten::relu", "h.1", 1, 1, 1});
    std::mt19937 random(5);
    for (int i = 0; i < 50; ++i) {
      std::ranges::shuffle(rows, random);
      OperatorTable table = sample();
      table.rows.clear();
      for (const OperatorRow& row : rows) add_row(table, row.name, row.block, row);
      CHECK(table == expected);
    }
  }

  TEST_CASE("operators are added up over the blocks that fit a pattern") {
    const auto all = by_operator(sample(), "*");
    REQUIRE(all.size() == 2);
    CHECK(all[0] == OperatorRow{"aten::add", "", 3, 30, 300});
    CHECK(all[1] == OperatorRow{"aten::mm", "", 7, 700, 70, OperatorFlops{2000, 3000}});
    const auto one = by_operator(sample(), "h.0");
    REQUIRE(one.size() == 2);
    CHECK(one[1].calls == 3);
    CHECK(by_operator(sample(), "g.*").empty());
  }

  TEST_CASE("blocks are in the order of the job, and what has no operators is left out") {
    OperatorTable table = sample();
    std::ranges::reverse(table.blocks);
    const auto blocks = by_block(table);
    REQUIRE(blocks.size() == 3);
    CHECK(blocks[0].block == "h.1");
    CHECK(blocks[1].block == "h.0");
    CHECK(blocks[1].flops == OperatorFlops{1000, 2000});
    CHECK(blocks[2].block == "embed");
    CHECK_FALSE(blocks[2].flops);
  }

  TEST_CASE("sums keep what is not counted apart from what is") {
    const auto rows = sample().rows;
    CHECK(sum_of(rows).calls == 10);
    CHECK(sum_of(rows).flops == OperatorFlops{2000, 3000});
    CHECK(uncounted_of(rows).forward_ns == 30);
    CHECK_FALSE(uncounted_of(rows).flops);
    CHECK(sum_of({}) == OperatorRow{});
  }

  TEST_CASE("rows are sorted by time, bytes or FLOPs, the largest first") {
    auto rows = sample().rows;
    sort_rows(rows, OperatorOrder::time);
    CHECK(rows[0].block == "h.1");
    CHECK(rows[3].block == "embed");
    sort_rows(rows, OperatorOrder::bytes);
    CHECK(rows[0].result_bytes == 200);
    sort_rows(rows, OperatorOrder::flops);
    CHECK(rows[0].flops == OperatorFlops{1000, 2000});
    CHECK_FALSE(rows[3].flops);
    CHECK(rows[2].block == "embed");  // ties sort by name and block
  }
}
