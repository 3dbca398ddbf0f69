// `cox report` and `cox analyze --html`, run as users run them.
#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/runtime/journal.h"
#include "tests/metrics/command/outcome.h"
#include "tests/metrics/text_search.h"
#include "tests/metrics/well_formed.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

namespace fs = std::filesystem;
using metrics::contains;
using metrics::count;
using metrics::first_fault;
using test::Outcome;
using test::TempFolder;

const std::string kRuns = std::string(COX_TEST_DATA) + "/training-runs/runs/";
constexpr std::size_t kMostBytes = 4 << 20;

void write_run(const fs::path& run, int ranks, int steps) {
  for (int rank = 0; rank < ranks; ++rank) {
    const fs::path folder = run / ("rank" + std::to_string(rank));
    fs::create_directories(folder);
    std::string lines;
    for (int step = 0; step < steps; ++step) {
      const std::string n = std::to_string(step);
      const std::string loss = step == 17 ? "87654.5" : std::to_string(3 + std::sin(step));
      const std::string work = rank == 1 ? "0.04" : "0.02";
      lines += R"({"step":)" + n + R"(,"timestamp":)" + n + R"(,"phases":{"forward":)" + work +
               R"(,"comm":0.01},"scalars":{"loss":)" + loss + R"(},"memory":{},"plan":)" +
               std::to_string(step / 10) + "}\n";
    }
    test::write_file(folder / "steps.jsonl", lines);
    test::write_file(folder / "run.json", R"({"name":"n","rank":)" + std::to_string(rank) +
                                              R"(,"world_size":)" + std::to_string(ranks) + "}");
  }
}

std::string page_of(const fs::path& run) {
  TempFolder folder;
  const fs::path page = folder / "page.html";
  const Outcome outcome = test::run_cox("report '" + run.string() + "' --out " + page.string());
  REQUIRE_MESSAGE(outcome.exit_code == 0, outcome.output);
  CHECK(outcome.lines() == 1);
  return test::read_file(page);
}

// Checks that a page requests nothing from elsewhere. The tab's icon is inline.
void check_self_contained(const std::string& page) {
  CHECK(first_fault(page) == "");
  CHECK(page.size() < kMostBytes);
  CHECK(count(page, "<script") == 1);
  CHECK(count(page, "<link") == 1);
  CHECK(count(page, "href=") == 1);
  CHECK(contains(page, "href=\"data:image/svg+xml,"));
  for (const char* part : {"src=", "url(", "@import", "fetch(", "https:", "<img", "<iframe", "<a "})
    CHECK_FALSE_MESSAGE(contains(page, part), part);
  CHECK(contains(page, "default-src 'none'"));
}

TEST_SUITE("command.report") {
  TEST_CASE("every published case has a page with its findings that asks nobody for anything") {
    for (const auto& entry : fs::directory_iterator(kRuns)) {
      CAPTURE(entry.path().string());
      check_self_contained(page_of(entry.path()));
    }
    const std::string page = page_of(kRuns + "two-stragglers");
    const auto finding = page.find("Ranks 1, 3 are slower than the others");
    CHECK(finding != std::string::npos);
    CHECK(finding < page.find("<h2>Where the time went</h2>"));
    for (const char* part : {"<h2>Ranks over steps</h2>", "<h2>Timeline</h2>", "DIST.STRAGGLER",
                             "waiting for the last rank", ">Step time</span>"})
      CHECK_MESSAGE(contains(page, part), part);
    CHECK(contains(page_of(kRuns + "no-progress"), "<span>Loss</span>"));
  }

  TEST_CASE("analyze writes the same page beside what it prints") {
    TempFolder folder;
    const std::string page = (folder / "page.html").string();
    const Outcome outcome = test::run_cox("analyze " + kRuns + "straggler --html " + page);
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.says("Rank 2 is slower than the others"));
    CHECK(test::read_file(page) == page_of(kRuns + "straggler"));
    CHECK(
        test::run_cox("analyze " + kRuns + "straggler --rules pytscope --html " + page).exit_code ==
        0);
    check_self_contained(test::read_file(page));
  }

  TEST_CASE("a run's own text cannot become markup") {
    TempFolder folder;
    const std::string bad = R"(<script>alert(1)<\/script>\"><img src=x onerror=alert(1)>)";
    const fs::path run = folder / "<img src=x onerror=alert(1)>";
    fs::create_directories(run / "rank0");
    std::string lines;
    for (int step = 0; step < 30; ++step)
      lines += R"({"step":)" + std::to_string(step) +
               R"(,"timestamp":1,"phases":{"forward":0.1,")" + bad +
               R"(":0.2,"comm":0.1},"scalars":{"loss":)" + (step == 20 ? "NaN" : "1") + R"(,")" +
               bad + R"(":)" + std::to_string(step) + R"(},"memory":{")" + bad + R"(":1}})" + "\n";
    test::write_file(run / "rank0/steps.jsonl", lines);
    test::write_file(run / "rank0/run.json",
                     R"({"name":")" + bad + R"(","rank":0,"world_size":1,"config":{")" + bad +
                         R"(":")" + bad + R"("},"environment":{"env":{")" + bad + R"(":")" + bad +
                         R"("},"gpu":")" + bad + R"("}})");
    const std::string page = page_of(run);
    CHECK(first_fault(page) == "");
    CHECK(count(page, "<script") == 1);
    CHECK_FALSE(contains(page, "<img"));
    CHECK_FALSE(contains(page,
                         "\"><"
                         "img"));
    CHECK(contains(page, "&lt;script&gt;alert(1)"));
    CHECK(contains(page, "The loss is not finite"));
  }

  TEST_CASE("a long run keeps its peaks, and a page of many ranks its size") {
    TempFolder folder;
    write_run(folder / "long", 2, 20'000);
    const std::string page = page_of(folder / "long");
    check_self_contained(page);
    CHECK(contains(page, "Drawn from stretches of 17 steps"));
    CHECK(contains(page, " 87654.5"));
    CHECK(page.size() < 300'000);
    write_run(folder / "wide", 150, 40);
    const std::string wide = page_of(folder / "wide");
    check_self_contained(wide);
    CHECK(contains(wide, "The 64 of 150 ranks that stand out most are shown."));
    CHECK(contains(wide, "<li>1</li>"));
    CHECK(wide.size() < 500'000);
  }

  TEST_CASE("plans are told with what changed and why, and damage to the journal is told") {
    TempFolder folder;
    const fs::path run = folder / "run";
    write_run(run, 2, 60);
    CHECK_FALSE(contains(page_of(run), "<h2>Plans</h2>"));
    test::write_journal(run / "journal.cox", 2, 1200, 60);
    const std::string page = page_of(run);
    CHECK(contains(page, "<h2>Plans</h2>"));
    CHECK(contains(page, "guard: "));
    CHECK(contains(page, "(changed)"));
    CHECK(first_fault(page) == "");
    test::write_file(run / "journal.cox", "no journal");
    CHECK(contains(page_of(run), "journal.cox: "));
  }

  TEST_CASE("what was decided before the job was described anew is not told") {
    TempFolder folder;
    const fs::path run = folder / "run";
    write_run(run, 2, 60);
    const JobFacts facts = test::driven_job(2);
    runtime::JournalHead head{facts, {}, initial_state(facts), {}};
    Reason reason;
    reason.policy = PolicyKind::precision;
    reason.code = ReasonCode::precision_no_evidence;
    reason.outcome = cox::Outcome::unchanged;
    reason.text = "what bf16 costs was not measured";
    head.first = Decision();
    head.first->reasons = {reason};
    auto journal = runtime::JournalWriter::open(run / "journal.cox", head);
    REQUIRE_MESSAGE(journal.ok(), journal.status().text());
    REQUIRE((*journal)->flush().ok());
    CHECK(contains(page_of(run), "bf16 costs was not measured"));
    reason.code = ReasonCode::precision_start;
    reason.outcome = cox::Outcome::changed;
    reason.text = "blocks start in bf16";
    head.first->reasons = {reason};
    REQUIRE((*journal)->begin(head).ok());
    REQUIRE((*journal)->close().ok());
    CHECK_FALSE(contains(page_of(run), "bf16 costs was not measured"));
  }

  TEST_CASE("bad use is one line and exit code 2") {
    TempFolder folder;
    const std::string page = (folder / "page.html").string();
    for (const std::string& command :
         {"report " + kRuns + "healthy", "report " + kRuns + "no-such-run --out " + page,
          "report " + kRuns + "healthy --out " + (folder / "none").string() + "/page.html"}) {
      const Outcome outcome = test::run_cox(command);
      CHECK_MESSAGE(outcome.exit_code == 2, outcome.output);
      CHECK_MESSAGE(outcome.lines() == 1, outcome.output);
    }
    CHECK_FALSE(fs::exists(page));
  }
}

}  // namespace
}  // namespace cox
