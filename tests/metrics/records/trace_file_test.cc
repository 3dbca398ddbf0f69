// Traces as files, well-formed and hostile.
#include "metrics/records/trace_file.h"

#include <string>

#include "coordinator/io/gzip.h"
#include "tests/metrics/analysis/made_trace.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

const std::string kHeader = "step,dp_rank,stage,rank,op,seq,chunk,global_chunk,start_s,dur_s\n";
const std::string kRow = "7,1,0,3,forward-compute,2,0,4,0.5,1.25e-2\n";

// Returns the line of kRow with one field replaced.
std::string with(const std::string& what, const std::string& instead) {
  std::string row = kRow;
  row.replace(row.find(what), what.size(), instead);
  return kHeader + row;
}

TEST_SUITE("records.trace_file") {
  TEST_CASE("a row has what its line says") {
    const auto rows = io::parse_trace(kHeader + kRow);
    REQUIRE_MESSAGE(rows.ok(), rows.status().message());
    REQUIRE(rows->size() == 1);
    const diagnosis::TraceRow& row = rows->front();
    CHECK(row.step == 7);
    CHECK(row.dp_rank == 1);
    CHECK(row.stage == 0);
    CHECK(row.rank == 3);
    CHECK(row.kind == diagnosis::OperationKind::forward_compute);
    CHECK(row.sequence == 2);
    CHECK(row.chunk == 0);
    CHECK(row.global_chunk == 4);
    CHECK(row.start_seconds == 0.5);
    CHECK(row.seconds == 0.0125);
    CHECK(row.line == 2);
  }

  TEST_CASE("columns are found by name, whatever their order and whatever is beside them") {
    const auto rows = io::parse_trace(
        "\xEF\xBB\xBF"
        "dur_s,note,start_s,seq,op,rank,stage,dp_rank,step,global_chunk,chunk\r\n"
        "2,a b,1,0,gc,5,4,3,9,-1,-1\r\n\r\n3,,1,0,gc,5,4,3,10,-1,-1");
    REQUIRE_MESSAGE(rows.ok(), rows.status().message());
    REQUIRE(rows->size() == 2);
    CHECK(rows->at(0).rank == 5);
    CHECK(rows->at(0).seconds == 2);
    CHECK(rows->at(1).step == 10);
    CHECK(rows->at(1).line == 4);
  }

  TEST_CASE("what was made and written reads back as it was") {
    const auto made = test::made_trace({});
    const auto rows = io::parse_trace(test::csv_of(made));
    REQUIRE_MESSAGE(rows.ok(), rows.status().message());
    REQUIRE(rows->size() == made.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      CHECK(rows->at(i).start_seconds == made[i].start_seconds);
      CHECK(rows->at(i).kind == made[i].kind);
      CHECK(rows->at(i).line == made[i].line);
    }
  }

  TEST_CASE("a line that is wrong is named with its column") {
    const struct {
      std::string text;
      std::string words;
    } cases[] = {
        {"", "line 1: expected the column step once, found it 0 times"},
        {"a,b\n1,2\n", "line 1: expected the column step once"},
        {"step," + kHeader + kRow, "line 1: expected the column step once, found it 2 times"},
        {with("forward-compute", "forward-computed"), "op: expected one of 14 kinds of operations"},
        {with("forward-compute", "forward-computed"), "(the nearest is forward-compute), found"},
        {with("0.5", "nan"),
         "line 2: start_s: expected seconds, finite and from 0 on, found 'nan'"},
        {with("0.5", "inf"), "start_s: expected seconds"},
        {with("0.5", "-0.5"), "start_s: expected seconds"},
        {with("0.5", ""), "start_s: expected seconds"},
        {with("0.5", "0.5s"), "start_s: expected seconds"},
        {with("0.5", " 0.5"), "start_s: expected seconds"},
        {with("1.25e-2", "-1"), "dur_s: expected seconds"},
        {with("1.25e-2", "1e10"), "dur_s: expected seconds"},
        {with("1.25e-2", "1e999"), "dur_s: expected seconds"},
        {with("7,", "-7,"), "step: expected a whole number from 0"},
        {with("7,", "7.5,"), "step: expected a whole number"},
        {with("7,", "99999999999999999999,"), "step: expected a whole number"},
        {with(",3,", ",2000000,"), "rank: expected a whole number from 0 to 1048576"},
        {with(",0,3,", ",1024,3,"), "stage: expected a whole number from 0 to 1023"},
        {with(",4,", ",-2,"), "global_chunk: expected a whole number from -1"},
        {kHeader + "7,1,0,3\n", "line 2: expected 10 fields, found 4; is the file cut off?"},
        {kHeader + kRow.substr(0, kRow.size() - 1) + ",9\n",
         "line 2: expected 10 fields, found 11"},
        {kHeader + kRow + "\x01\x02", "line 3: expected 10 fields, found 1; is the file cut off?"},
    };
    for (const auto& it : cases) {
      const auto rows = io::parse_trace(it.text);
      REQUIRE_FALSE(rows.ok());
      CHECK(rows.status().code() == StatusCode::invalid_argument);
      CHECK_MESSAGE(rows.status().message().find(it.words) != std::string::npos,
                    rows.status().message());
      CHECK(rows.status().message().find('\x01') == std::string::npos);
    }
  }
}

// printf 'hello\nhello\n' | gzip -n
const std::string kPacked(
    "\037\213\010\000\000\000\000\000\002\003\313\110\315\311\311\347\312\000\223\000"
    "\167\014\307\057\014\000\000\000",
    28);

TEST_SUITE("records.gzip") {
  TEST_CASE("a packed file is what was packed, also in several members") {
    CHECK(io::is_gzip(kPacked));
    CHECK_FALSE(io::is_gzip("hello"));
    CHECK(io::gunzip(kPacked, 100).value() == "hello\nhello\n");
    CHECK(io::gunzip(kPacked + kPacked, 100).value() == "hello\nhello\nhello\nhello\n");
    CHECK(io::gunzip(kPacked, 12).ok());
  }

  TEST_CASE("a packed file that is cut off, damaged or too large is an error") {
    for (std::size_t bytes = 0; bytes < kPacked.size(); ++bytes)
      CHECK(io::gunzip(kPacked.substr(0, bytes), 100).status().code() == StatusCode::data_loss);
    for (const std::size_t at : {0u, 2u, 12u, 20u}) {
      std::string damaged = kPacked;
      damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
      CHECK_FALSE(io::gunzip(damaged, 100).ok());
    }
    CHECK(io::gunzip(kPacked + "tail", 100).status().code() == StatusCode::data_loss);
    CHECK(io::gunzip(kPacked, 11).status().code() == StatusCode::resource_exhausted);
  }
}

}  // namespace
}  // namespace cox
