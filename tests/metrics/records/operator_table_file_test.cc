// A rank's table of operators as a file, well-formed and hostile.
#include "metrics/records/operator_table_file.h"

#include <string>

#include <doctest/doctest.h>

namespace cox {
namespace {

const std::string kGood =
    R"({"format": "coxswain-operators", "version": 1, "steps": 3, "newest_step": 130,
"blocks": [{"name": "h.0", "forward_seconds": 0.5, "backward_seconds": 1}],
"operators": [
{"name": "aten::gelu", "block": "h.0", "calls": 3, "forward_ns": 7, "result_bytes": 64},
{"name": "aten::mm", "block": "h.0", "calls": 6, "forward_ns": 90, "result_bytes": 128,
 "forward_flops": 1000, "backward_flops": 2000}]})";

std::string with(const std::string& what, const std::string& instead) {
  std::string text = kGood;
  text.replace(text.find(what), what.size(), instead);
  return text;
}

TEST_SUITE("records.operator_table_file") {
  TEST_CASE("a table reads back as it was written") {
    const auto table = io::read_operator_table(kGood);
    REQUIRE_MESSAGE(table.ok(), table.status().message());
    CHECK(table->steps == 3);
    CHECK(table->newest == StepId(130));
    CHECK(table->blocks[0] == BlockTime{"h.0", 0.5, 1});
    CHECK(table->rows[0] == OperatorRow{"aten::gelu", "h.0", 3, 7, 64});
    CHECK(table->rows[1] == OperatorRow{"aten::mm", "h.0", 6, 90, 128, OperatorFlops{1000, 2000}});
    const auto again = io::read_operator_table(io::to_json(*table));
    REQUIRE(again.ok());
    CHECK(*again == *table);
  }

  TEST_CASE("fields of later releases are passed over") {
    CHECK(io::read_operator_table(with("\"steps\": 3", "\"steps\": 3, \"more\": {}")).ok());
  }

  TEST_CASE("of more rows than a file may have the dearest are written, in order") {
    OperatorTable table;
    table.steps = 1;
    for (std::size_t i = 0; i < io::kMaxOperatorRows + 10; ++i)
      table.rows.push_back({"op" + std::to_string(100000 + i), "h.0", 1, i, 0});
    const auto read = io::read_operator_table(io::to_json(table));
    REQUIRE_MESSAGE(read.ok(), read.status().message());
    REQUIRE(read->rows.size() == io::kMaxOperatorRows);
    CHECK(read->rows.front() == table.rows[10]);
    CHECK(read->rows.back() == table.rows.back());
  }

  TEST_CASE("a table that was cut off anywhere is refused") {
    for (std::size_t size = 0; size + 1 < kGood.size(); ++size)
      CHECK_FALSE(io::read_operator_table(std::string_view(kGood).substr(0, size)).ok());
  }

  TEST_CASE("what is not as the page says is refused, by row and field") {
    const struct {
      std::string text;
      std::string words;
    } cases[] = {
        {with("coxswain-operators", "other"), "expected the format"},
        {with("\"version\": 1", "\"version\": 2"), "another release"},
        {with("\"steps\": 3", "\"steps\": 0"), "expected 1 or more"},
        {with("\"steps\": 3", "\"steps\": -3"), "steps"},
        {with("\"newest_step\": 130", "\"newest_step\": 1e300"), "newest_step"},
        {with("\"forward_seconds\": 0.5", "\"forward_seconds\": -1"), "block 0: forward_seconds"},
        {with("\"calls\": 3", "\"calls\": 0.5"), "operator 0: calls"},
        {with("\"calls\": 3, ", ""), "operator 0: calls"},
        {with("\"forward_ns\": 7", "\"forward_ns\": \"7\""), "operator 0: forward_ns"},
        {with("\"name\": \"aten::mm\", ", ""), "operator 1: name"},
        {with("1000", "-1"), "operator 1: forward_flops"},
        {with(",\n \"forward_flops\": 1000", ""), "operator 1: forward_flops"},
        {with("aten::gelu", "aten::nn"), "in the order of their names"},
        {with("aten::gelu", "aten::mm"), "each once"},
    };
    for (const auto& it : cases) {
      CAPTURE(it.text);
      const auto table = io::read_operator_table(it.text);
      REQUIRE_FALSE(table.ok());
      CHECK_MESSAGE(table.status().message().find(it.words) != std::string::npos,
                    table.status().message());
    }
  }
}

}  // namespace
}  // namespace cox
