// The real `cox` program, run as users run it.
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "coordinator/core/config.h"
#include "coordinator/runtime/journal.h"
#include "tests/metrics/command/outcome.h"
#include "tests/runtime/driven_job.h"

#include <doctest/doctest.h>

namespace cox {
namespace {

using test::Outcome;

Outcome cox(const std::string& arguments) {
  return test::run_cox(arguments);
}

TEST_SUITE("command.cox") {
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

  TEST_CASE("a configuration file is put over the recorded settings, and flags over it") {
    test::TempFolder folder;
    test::write_journal(folder / "j", 2, 1000, 60);
    test::write_file(folder / "other.cfg", "guard.hold_rounds = 7\n");
    const std::string replay =
        "replay " + (folder / "j").string() + " --cox.config=" + (folder / "other.cfg").string();
    const Outcome by_file = cox(replay);
    CHECK_MESSAGE(by_file.exit_code == 1, by_file.output);
    CHECK(by_file.says("rounds differ"));
    CHECK(cox(replay + " --cox.guard.hold_rounds=50").exit_code == 0);
    const Outcome gone = cox("replay " + (folder / "j").string() + " --cox.config /no/such");
    CHECK(gone.exit_code == 2);
    CHECK(gone.says("cox: config: /no/such: cannot open"));
  }

  TEST_CASE("replay takes a run directory, and says what it misses in one") {
    test::TempFolder folder;
    const std::string run = (folder / "").string();
    const Outcome without = cox("replay " + run);
    CHECK(without.exit_code == 2);
    CHECK(without.says("expected a run directory with journal.cox, found none in it"));
    test::write_journal(folder / "journal.cox", 2, 30, 60);
    const Outcome outcome = cox("replay " + run);
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.says("30 rounds"));
  }

  TEST_CASE("what is no regular file is refused in one line, a link where a run keeps its own") {
    test::TempFolder folder;
    test::write_journal(folder / "j", 2, 5, 1);
    REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
    std::filesystem::create_directory(folder / "run");
    std::filesystem::create_symlink(folder / "j", folder / "run/journal.cox");
    std::filesystem::create_symlink("/dev/zero", folder / "run/memory_profile.json");
    const std::string pipe = (folder / "pipe").string();
    const std::string journal = (folder / "j").string();
    for (const std::string& command :
         {"replay " + pipe, std::string("replay /dev/zero"), "replay " + (folder / "run").string(),
          "replay " + journal + " --cox.config=" + pipe, "plan " + pipe + " --budget 1GiB",
          "plan " + (folder / "run").string() + " --budget 1GiB", "plan --instances " + pipe}) {
      const Outcome outcome = cox(command);
      CHECK_MESSAGE(outcome.exit_code == 2, command << ": " << outcome.output);
      CHECK_MESSAGE(outcome.lines() == 1, outcome.output);
      CHECK_MESSAGE(outcome.says("expected a regular file, found a "), outcome.output);
    }
  }

  TEST_CASE("names in a journal cannot write to the reader's terminal") {
    test::TempFolder folder;
    JobFacts job = test::driven_job(2);
    job.name = "a\x1b[2Jb\nc";
    auto journal = runtime::JournalWriter::open(folder / "j", {job, {}, initial_state(job), {}});
    REQUIRE(journal.ok());
    REQUIRE((*journal)->close().ok());
    const Outcome outcome = cox("replay --verbose " + (folder / "j").string());
    CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
    CHECK(outcome.says("job 'a?[2Jb?c'"));
    CHECK_FALSE(outcome.says("\x1b"));
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

  TEST_CASE("an unknown command or option names the nearest") {
    CHECK(cox("replai").says("no command is called 'replai'; the nearest is 'replay'"));
    CHECK(cox("pan x").says("the nearest is 'plan'"));
    CHECK(cox("replay --verbos x")
              .says("cox replay has no option '--verbos'; the nearest is '--verbose'; see cox "
                    "replay --help"));
    CHECK(cox("plan x --budgets=1GiB").says("the nearest is '--budget'"));
    CHECK(cox("--versoin").says("cox has no option '--versoin'; the nearest is '--version'"));
  }

  TEST_CASE("every command tells what it takes, with an example") {
    for (const std::string command : {"replay", "config", "plan", "ops", "version", "help",
                                      "checkpoint ls", "checkpoint verify", "checkpoint seal"}) {
      const Outcome outcome = cox(command + " --help");
      CHECK_MESSAGE(outcome.exit_code == 0, outcome.output);
      CHECK_MESSAGE(outcome.says("Usage: cox " + command), outcome.output);
      CHECK_MESSAGE(outcome.says("Example"), outcome.output);
      const bool shows_another = command == "help";
      CHECK_MESSAGE(outcome.says(shows_another ? "  cox " : "  cox " + command), outcome.output);
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
