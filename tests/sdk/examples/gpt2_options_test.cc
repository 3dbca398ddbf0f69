#include <string>
#include <vector>

#include "sdk/examples/gpt2/options.h"

#include <doctest/doctest.h>

namespace {

std::string help() {
  const auto options = gpt2::parse_options({"--help"});
  return options.ok() ? options->help : "";
}

std::string complaint(std::vector<std::string> arguments) {
  const auto options = gpt2::parse_options(std::move(arguments));
  return options.ok() ? "" : options.status().message();
}

}  // namespace

TEST_SUITE("gpt2 options") {
  TEST_CASE("the option may be given several times") {
    const auto options = gpt2::parse_options({"--slow", "0:2", "--slow=1:4:3-9"});
    REQUIRE(options.ok());
    REQUIRE(options->slow.size() == 2);
    CHECK(options->slow[1].factor == 4);
    CHECK_FALSE(gpt2::parse_options({"--slow", "fast"}).ok());
    CHECK_FALSE(gpt2::parse_options({"--slow"}).ok());
    CHECK(help().find("--slow R:F[:A-B]") != std::string::npos);
  }

  TEST_CASE("what is to go wrong is said in numbers, and a range of steps") {
    const auto options = gpt2::parse_options(
        {"--slow-data", "0.5", "--slow-save=2", "--leak", "16", "--overflow", "30-49"});
    REQUIRE(options.ok());
    CHECK(options->faults.slow_data_seconds == 0.5);
    CHECK(options->faults.slow_save_seconds == 2);
    CHECK(options->faults.leak_mib == 16);
    CHECK_FALSE(options->faults.overflows(29));
    CHECK(options->faults.overflows(30));
    CHECK(options->faults.overflows(49));
    CHECK_FALSE(options->faults.overflows(50));
    CHECK_FALSE(gpt2::parse_options({})->faults.overflows(0));
    for (const char* text : {"5", "5-", "-5", "9-5", "1-2-3", "x-2", "1-2x", "1:2"}) {
      CAPTURE(text);
      CHECK(complaint({std::string("--overflow=") + text}).find("--overflow: expected FROM-TO") !=
            std::string::npos);
    }
  }

  TEST_CASE("options that are settings under a shorter name become those") {
    std::vector<std::string> arguments = {
        "--cox.run.log",     "quiet", "--saves", "runs/a", "--resume", "--precision=bf16",
        "--cox.http.port=0", "--hold"};
    const std::vector<std::string> given = {"--cox.run.log", "quiet", "--cox.http.port=0"};
    CHECK(gpt2::take_settings(arguments) == given);
    const auto options = gpt2::parse_options(arguments);
    REQUIRE(options.ok());
    const std::vector<std::string> expected = {"--cox.precision.format=bf16",
                                               "--cox.checkpoint.directory=runs/a",
                                               "--cox.checkpoint.resume=on"};
    CHECK(options->settings == expected);
    CHECK(options->hold);
    CHECK_FALSE(gpt2::parse_options({"--resume=off"}).ok());
  }

  TEST_CASE("a micro-batch is a number of sequences, by default the whole share") {
    CHECK(gpt2::parse_options({})->micro_batch == 0);
    CHECK(gpt2::parse_options({"--micro-batch", "4"})->micro_batch == 4);
    for (const char* text : {"-1", "x", "1.5", "", "65537"}) {
      CAPTURE(text);
      const auto parsed = gpt2::parse_options({"--micro-batch", text});
      REQUIRE_FALSE(parsed.ok());
      CHECK(parsed.status().message().find("--micro-batch: expected a number from 0") == 0);
    }
    CHECK(help().find("--micro-batch N") != std::string::npos);
  }

  TEST_CASE("what is no option, or lacks its value, is refused in one line that names it") {
    struct Case {
      std::vector<std::string> arguments;
      std::string named;
    };
    const Case cases[] = {{{"--stories"}, "--stories"},
                          {{"--text"}, "--text"},
                          {{"--lr", "nan"}, "--lr: expected a number from 0 to 10, found 'nan'"},
                          {{"--layers", "0"}, "--layers: expected a number from 1 to 512"},
                          {{"extra"}, "extra"},
                          {{"--resume=off"}, "resume"}};
    for (const Case& wrong : cases) {
      CAPTURE(wrong.named);
      const std::string text = complaint(wrong.arguments);
      CHECK(text.find(wrong.named) != std::string::npos);
      CHECK(text.find('\n') == std::string::npos);
    }
  }

  TEST_CASE("the help says what every number and setting is where nobody sets it") {
    const std::string text = help();
    std::size_t without = 0;
    for (std::size_t at = text.find("\n  --"); at != std::string::npos;
         at = text.find("\n  --", at + 1)) {
      const std::string line = text.substr(at + 1, text.find('\n', at + 1) - at - 1);
      CAPTURE(line);
      const bool is_number = line.find(" N") < 20;
      const bool is_setting = line.find("; is --cox.") != std::string::npos;
      const bool is_flag = line.find("--resume") < 4;
      if (!is_number && (!is_setting || is_flag)) continue;
      CHECK(line.find('=') < 28);
      ++without;
    }
    CHECK(without == 17);
    CHECK(text.find("--steps N=600 ") != std::string::npos);
    CHECK(text.find("--precision FORMAT=fp32 ") != std::string::npos);
    CHECK(text.find("--memory-budget 40MiB") != std::string::npos);  // requested by --story
  }

  TEST_CASE("who asks for help gets nothing else to read") {
    const auto asked = gpt2::parse_options({"--help", "--story"});
    REQUIRE(asked.ok());
    CHECK(gpt2::default_config(*asked).run.log == cox::LogLevel::quiet);
  }

  TEST_CASE("the story asks for shares, formats and a budget, and slows the last rank") {
    const auto told = gpt2::parse_options({"--story", "--steps", "300"});
    REQUIRE(told.ok());
    const cox::Config config = gpt2::default_config(*told);
    CHECK(config.shares.mode == cox::PolicyMode::on);
    CHECK_FALSE(config.precision.format.has_value());
    CHECK(config.memory.budget.kind == cox::BudgetKind::bytes);
    CHECK(gpt2::slowdowns_of(*told, 4) ==
          std::vector<gpt2::Slowdown>{{.rank = 3, .factor = 2, .from_step = 100, .to_step = 199}});
    CHECK(gpt2::slowdowns_of(*told, 1).empty());

    const auto own = gpt2::parse_options({"--story", "--slow", "0:3"});
    CHECK(gpt2::slowdowns_of(*own, 4) == own->slow);
  }

  TEST_CASE("without the story everything is as the user's settings have it") {
    const auto options = gpt2::parse_options({});
    CHECK(gpt2::default_config(*options).shares.mode == cox::Config{}.shares.mode);
    CHECK(gpt2::default_config(*options).precision.format == cox::Config{}.precision.format);
    CHECK(gpt2::slowdowns_of(*options, 4).empty());
  }
}
