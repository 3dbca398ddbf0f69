// `cox whatif`, run as users run it.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/io/json.h"
#include "tests/metrics/analysis/made_trace.h"
#include "tests/metrics/command/outcome.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;

using diagnosis::OperationKind;
using diagnosis::TraceRow;
using test::Outcome;

const std::string kTrace = std::string(COX_TEST_DATA) + "/straggler-traces/trace-ST.csv.gz";

Outcome whatif(const std::string& arguments) {
  return test::run_cox("whatif " + arguments);
}

// Returns a trace in which rank 5 is slow by half.
std::vector<TraceRow> slow_trace() {
  return test::made_trace({.dp_ranks = 4, .stages = 2, .microbatches = 4},
                          [](const test::MadeOperation& o) {
                            const bool is_slow = o.stage == 1 && o.dp_rank == 1;
                            return test::usual_seconds(o) * (is_slow ? 1.5 : 1);
                          });
}

// Checks the keys of an object, and of nested objects with fixed keys.
void check_keys(const io::Json& expected, const io::Json& found, const std::string& where) {
  for (const io::JsonMember& member : expected.members) {
    const io::Json* value = found.find(member.name);
    REQUIRE_MESSAGE(value != nullptr, where << ": lacks " << member.name);
    CHECK_MESSAGE(value->kind == member.value.kind, where << ": " << member.name);
    if (value->kind == io::JsonKind::object) check_keys(member.value, *value, member.name);
  }
}

TEST_SUITE("command.whatif") {
  TEST_CASE("a trace gets its slowdown and who costs it in sentences and tables") {
    const Outcome outcome = whatif(kTrace);
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.says("trace ST: 8 ranks (2 data-parallel x 4 stages), 32 steps\n"));
    CHECK(outcome.says("S = 1.179: without stragglers a step would take 1.84 s instead of 2.17 s"));
    CHECK(outcome.says("The last stage is too long"));
    CHECK(outcome.says("Ranks 6-7 cost it"));
    CHECK_MESSAGE(outcome.says("7             1      3    1.178\n"), outcome.output);
    CHECK(outcome.says("forward-compute                 1.087\n"));
    CHECK(outcome.says("last stage, M_S: 122 % of the loss"));
    CHECK(outcome.says("with free data-parallel communication  1.0393 times as fast"));
    CHECK_FALSE(outcome.says("gap:"));
    const std::string page = test::read_file(COX_PAGE);
    CHECK_MESSAGE(page.find("```text\n" + outcome.output + "```") != std::string::npos,
                  "expected docs/what-if.md to show:\n"
                      << outcome.output);
  }

  TEST_CASE("JSON has the keys of the published figures") {
    const Outcome outcome = whatif(kTrace + " --json");
    REQUIRE_MESSAGE(outcome.exit_code == 0, outcome.output);
    const auto found = io::parse_json(outcome.output);
    REQUIRE_MESSAGE(found.ok(), found.status().message());
    const auto expected = io::parse_json(
        test::read_file(std::string(COX_TEST_DATA) + "/straggler-traces/expected-ST.json"));
    REQUIRE(expected.ok());
    check_keys(*expected, *found, "figures");
    CHECK(found->find("trace")->string == "ST");
    CHECK(found->find("S")->number == doctest::Approx(1.1787021836556841).epsilon(1e-5));
    CHECK(found->find("layout")->find("pp_size")->number == 4);
    CHECK(found->find("layout")->find("world_size")->number == 8);
    CHECK(found->find("S_worker")->members.size() == 8);
    CHECK(found->find("culprits")->items.size() == 2);
    CHECK(found->find("gaps")->items.empty());
  }

  TEST_CASE("a page is one file with a heat map, and asks for nothing else") {
    const test::TempFolder folder;
    const std::string page = (folder / "page.html").string();
    const Outcome outcome = whatif(kTrace + " --html " + page);
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.says("S = 1.179"));
    const std::string html = test::read_file(page);
    CHECK(html.starts_with("<!DOCTYPE html>"));
    CHECK(html.find("<title>rank 7: dp rank 1, stage 3, S_w 1.178</title>") != std::string::npos);
    CHECK(html.find("<polyline") != std::string::npos);
    for (const char* foreign : {"<script", "src=", "href=\"http", "url(", "@import"})
      CHECK_MESSAGE(html.find(foreign) == std::string::npos, foreign);
    CHECK(whatif(kTrace + " --html " + (folder / "none/page.html").string()).exit_code == 2);
  }

  TEST_CASE("a run directory gets ranks and phases") {
    const test::TempFolder folder;
    for (int rank = 0; rank < 4; ++rank) {
      const bool is_slow = rank == 2;
      std::string lines;
      for (int step = 0; step < 20; ++step)
        lines += R"({"step":)" + std::to_string(step) + R"(,"phases":{"data":)" +
                 (is_slow ? "0.02" : "0.005") + R"(,"forward":0.01,"backward":0.02,"comm":)" +
                 (is_slow ? "0.004" : "0.019") + "}}\n";
      const fs::path at = fs::path(folder / "") / ("rank" + std::to_string(rank));
      fs::create_directory(at);
      test::write_file(at / "steps.jsonl", lines);
    }
    const Outcome outcome = whatif((folder / "").string());
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.says(": 4 ranks, 20 steps\nS = 1.263"));
    CHECK(outcome.says("Rank 2 costs it: if it worked like the others, 100 % of the loss"));
    CHECK(outcome.says("The loss arises in data (S_t = 1.263)."));
    CHECK_MESSAGE(outcome.says("2         1.263    20.0 ms"), outcome.output);
    const auto json = io::parse_json(whatif((folder / "").string() + " --json").output);
    REQUIRE(json.ok());
    CHECK(json->find("S_type")->members[0].name == "data");
    CHECK(json->find("culprits")->items[0].number == 2);
  }

  TEST_CASE("a damaged trace is one clear line or a stated gap, never a wrong name") {
    const struct {
      const char* what;
      std::function<bool(const TraceRow&)> is_gone;
      int exit_code;
      std::string words;
    } cases[] = {
        {"nothing is wrong", [](const TraceRow&) { return false; }, 0, "Rank 5 costs it"},
        {"an operation is missing",
         [](const TraceRow& r) { return r.step == 11 && r.rank == 3 && r.sequence == 2; }, 0,
         "gap: step 11 is left out: dp rank 3 lacks backward-compute 2 of stage 0"},
        {"the slow rank is missing", [](const TraceRow& r) { return r.rank == 5; }, 2,
         "expected rows of dp rank 1 in stage 1, found none"},
        {"only the receiving side is there",
         [](const TraceRow& r) { return r.kind == OperationKind::forward_send; }, 0,
         "No rank is named: the trace does not show how long ranks waited for the missing "
         "forward-send."},
        {"a stage is missing", [](const TraceRow& r) { return r.stage == 1; }, 2,
         "the rows of a stage are missing"},
        {"all sends are one too few",
         [](const TraceRow& r) {
           return r.kind == OperationKind::backward_send && r.sequence == 3;
         },
         2, "operations are missing"},
    };
    const test::TempFolder folder;
    for (const auto& it : cases) {
      CAPTURE(it.what);
      auto rows = slow_trace();
      std::erase_if(rows, it.is_gone);
      test::write_file(folder / "trace.csv", test::csv_of(rows));
      const Outcome outcome = whatif((folder / "trace.csv").string());
      CHECK_MESSAGE(outcome.exit_code == it.exit_code, outcome.output);
      CHECK_MESSAGE(outcome.says(it.words), outcome.output);
      if (outcome.says(" it: if ")) CHECK(outcome.says("Rank 5 costs it"));
      if (it.exit_code == 2) CHECK(outcome.lines() == 1);
    }
  }

  TEST_CASE("what is neither a trace nor a run is one clear line and exit code 2") {
    const test::TempFolder folder;
    test::write_file(folder / "text", "no trace\x1b[2J\n");
    test::write_file(folder / "packed", "\x1f\x8b nothing");
    const struct {
      std::string arguments;
      std::string words;
    } cases[] = {
        {(folder / "text").string(), "text: line 1: expected the column step once"},
        {(folder / "packed").string(), "packed: gzip: expected a whole packed file"},
        {(folder / "none").string(), "cannot open"},
        {(folder / "").string(), "expected a run directory with rank0/steps.jsonl"},
        {"", "PATH"},
        {kTrace + " --jsn", "the nearest is '--json'"},
    };
    for (const auto& it : cases) {
      const Outcome outcome = whatif(it.arguments);
      CHECK_MESSAGE(outcome.exit_code == 2, it.arguments << ": " << outcome.output);
      CHECK_MESSAGE(outcome.lines() == 1, outcome.output);
      CHECK_MESSAGE(outcome.says(it.words), outcome.output);
      CHECK_FALSE(outcome.says("\x1b"));
    }
  }
}

}  // namespace
}  // namespace cox
