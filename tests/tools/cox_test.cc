// The real `cox` program, run as people run it.
#include <string>

#include "coordinator/core/config.h"
#include "tests/runtime/driven_job.h"
#include "tests/tools/outcome.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using test::Outcome;

Outcome cox(const std::string& arguments) {
  return test::run_cox(arguments);
}

TEST_SUITE("tools.cox") {
  TEST_CASE("replay of an untouched journal exits with 0 and says so") {
    test::TempFolder folder;
    test::write_journal(folder / "j", 2, 400, 60);
    const std::string journal = (folder / "j").string();
    const Outcome quiet = cox("replay " + journal);
    CHECK_MESSAGE(quiet.exit_code == 0, quiet.output);
    CHECK(quiet.says("400 rounds"));
    CHECK(quiet.says("all equal"));
    const Outcome verbose = cox("replay --verbose " + journal);
    CHECK(verbose.exit_code == 0);
    CHECK(verbose.says("2 ranks"));
    CHECK(verbose.lines() > quiet.lines());
  }

  TEST_CASE("a changed threshold shows the differences and exits with 1") {
    test::TempFolder folder;
    test::write_journal(folder / "j", 2, 1000, 60);
    const std::string journal = (folder / "j").string();
    for (const char* flag : {"--cox.guard.hold_rounds=7", "--cox.guard.hold_rounds 7"}) {
      const Outcome outcome = cox("replay " + journal + " " + flag);
      CHECK_MESSAGE(outcome.exit_code == 1, outcome.output);
      CHECK(outcome.says("rounds differ"));
      CHECK(outcome.says("round "));
    }
  }

  TEST_CASE("a torn last record is reported and does not matter") {
    test::TempFolder folder;
    test::write_journal(folder / "j", 2, 50, 60);
    const std::string bytes = test::read_file(folder / "j");
    test::write_file(folder / "j", bytes.substr(0, bytes.size() - 7));
    const Outcome outcome = cox("replay " + (folder / "j").string());
    CHECK(outcome.exit_code == 0);
    CHECK(outcome.says("bytes are ignored"));
    CHECK(outcome.says("49 rounds"));
  }

  TEST_CASE("bad input is one clear line and exit code 2") {
    test::TempFolder folder;
    test::write_file(folder / "text", "no journal");
    test::write_journal(folder / "j", 2, 5, 1);
    const std::string journal = (folder / "j").string();
    const std::string commands[] = {"",
                                    "replai",
                                    "replay",
                                    "replay " + (folder / "none").string(),
                                    "replay " + (folder / "text").string(),
                                    "replay " + journal + " " + journal,
                                    "replay --verbos " + journal,
                                    "replay " + journal + " --cox.guard.hold_round=3",
                                    "replay " + journal + " --cox.guard.hold_rounds=soon",
                                    "config --html"};
    for (const std::string& command : commands) {
      const Outcome outcome = cox(command);
      CHECK_MESSAGE(outcome.exit_code == 2, command << ": " << outcome.output);
      CHECK_MESSAGE(outcome.lines() == 1, command << ": " << outcome.output);
      CHECK(outcome.output.starts_with("cox: "));
    }
  }

  TEST_CASE("config lists every setting, as a table for people and for pages") {
    const Outcome table = cox("config");
    const Outcome page = cox("config --markdown");
    CHECK(table.exit_code == 0);
    CHECK(page.exit_code == 0);
    for (const ConfigOption& option : config_options()) {
      CHECK(table.says(option.key));
      CHECK(page.says("`" + option.key + "`"));
    }
    CHECK(page.lines() == static_cast<std::ptrdiff_t>(config_options().size()) + 2);
  }

  TEST_CASE("version and help are there under both spellings") {
    CHECK(cox("version").output == cox("--version").output);
    CHECK(cox("version").says("cox "));
    CHECK(cox("help").output == cox("--help").output);
    CHECK(cox("help").says("replay"));
    CHECK(cox("help").exit_code == 0);
  }
}

}  // namespace
}  // namespace cox
