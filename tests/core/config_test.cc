#include "coordinator/core/config.h"

#include <cmath>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

namespace {

using cox::Config;
using cox::PolicyMode;
using cox::StatusCode;

struct Ends {
  std::string min, max;
};

// The range column of the table, "a .. b".
Ends ends_of(const std::string& range) {
  const std::size_t dots = range.find(" .. ");
  const std::size_t start = range.starts_with("each ") ? 5 : 0;
  return {range.substr(start, dots - start), range.substr(dots + 4)};
}

std::string beyond(const std::string& bound, double sign) {
  char text[64];
  const double value = std::strtod(bound.c_str(), nullptr);
  std::snprintf(text, sizeof text, "%.17g",
                value + sign * std::fmax(1e-3 * std::fabs(value), 1e-15));
  return text;
}

// A value other than the default, by kind.
std::string another_value(const cox::ConfigOption& option) {
  if (option.kind == "text") return "a # \"b\\c\" =\nd ";
  if (option.kind == "switch") return option.fallback == "on" ? "off" : "on";
  if (option.kind == "list") return "3,0,5";
  if (option.kind == "bytes") return "1536KiB";
  if (option.kind == "budget") return "0.5";
  if (option.kind == "budgets") return "0:6GiB,3:balanced";
  if (option.kind == "rules") return "layer.*=recompute,head=tile";
  if (option.kind == "ranks") return "0=7,3=1";
  if (option.kind == "formats") return "layer.*=bf16,head=fp8";
  if (option.kind == "integer" || option.kind == "number") {
    const Ends ends = ends_of(option.range);
    return ends.max == option.fallback ? ends.min : ends.max;
  }
  const std::string first = option.range.substr(0, option.range.find('|'));
  return first == option.fallback ? option.range.substr(option.range.rfind('|') + 1) : first;
}

}  // namespace

TEST_SUITE("core") {
  TEST_CASE("every setting is documented, named once and has a default that it accepts") {
    std::set<std::string> keys;
    for (const cox::ConfigOption& option : cox::config_options()) {
      CAPTURE(option.key);
      CHECK(keys.insert(option.key).second);
      CHECK_FALSE(option.help.empty());
      CHECK_FALSE(option.range.empty());
      Config config;
      CHECK(cox::set_option(config, option.key, option.fallback).ok());
      CHECK(cox::text(config) == cox::text(Config{}));
    }
    CHECK(keys.contains("guard.hold_rounds"));
    CHECK(keys.contains("loss_scale.mode"));
  }

  TEST_CASE("both ends of every range are accepted and nothing beyond them") {
    for (const cox::ConfigOption& option : cox::config_options()) {
      if (option.kind != "integer" && option.kind != "number" && option.kind != "list") continue;
      CAPTURE(option.key);
      const Ends ends = ends_of(option.range);
      Config config;
      CHECK(cox::set_option(config, option.key, ends.min).ok());
      CHECK(cox::set_option(config, option.key, ends.max).ok());
      const bool whole = option.kind != "number";
      const std::string below = whole && ends.min == "0" ? "-1" : beyond(ends.min, -1);
      const std::string above = whole ? ends.max + "0" : beyond(ends.max, 1);
      CHECK(cox::set_option(config, option.key, below).code() == StatusCode::invalid_argument);
      CHECK(cox::set_option(config, option.key, above).code() == StatusCode::invalid_argument);
    }
  }

  TEST_CASE("whole numbers just below a range are refused") {
    for (const cox::ConfigOption& option : cox::config_options()) {
      if (option.kind != "integer") continue;
      const std::string min = ends_of(option.range).min;
      if (min == "0") continue;
      CAPTURE(option.key);
      Config config;
      const std::string below = std::to_string(std::stoull(min) - 1);
      CHECK(cox::set_option(config, option.key, below).code() == StatusCode::invalid_argument);
    }
  }

  TEST_CASE("a value of the wrong kind is refused and changes nothing") {
    for (const cox::ConfigOption& option : cox::config_options()) {
      if (option.kind == "text") continue;
      for (const char* wrong : {"maybe", "1x", "nan", "inf", " ", "-", "1,,2", "1,"}) {
        CAPTURE(option.key);
        CAPTURE(wrong);
        Config config;
        CHECK(cox::set_option(config, option.key, wrong).code() == StatusCode::invalid_argument);
        CHECK(cox::text(config) == cox::text(Config{}));
      }
    }
  }

  TEST_CASE("what is written out reads back the same, every setting away from its default") {
    Config config;
    for (const cox::ConfigOption& option : cox::config_options()) {
      REQUIRE(cox::set_option(config, option.key, another_value(option)).ok());
    }
    config.guard.spike_sigmas = 1.0 / 3 + 1;
    config.policy_modes["own_policy"] = PolicyMode::observe;
    Config read;
    read.policy_modes["own_policy"] = PolicyMode::off;
    REQUIRE(cox::apply_text(read, cox::text(config), "test") == cox::ok_status());
    CHECK(cox::text(read) == cox::text(config));
    CHECK(read.run.name == config.run.name);
    CHECK(read.guard.spike_sigmas == config.guard.spike_sigmas);
    CHECK(read.force.shares == std::vector<std::uint32_t>{3, 0, 5});
    CHECK(cox::fingerprint(read) == cox::fingerprint(config));
  }

  TEST_CASE("modules and scopes are lists of texts without empty ones") {
    Config config;
    REQUIRE(cox::set_option(config, "blocks.modules", "encoder.*, decoder.*").ok());
    CHECK(config.blocks.modules == std::vector<std::string>{"encoder.*", "decoder.*"});
    for (const char* wrong : {",", "a,", "a,,b"})
      CHECK(cox::set_option(config, "blocks.modules", wrong).code() ==
            StatusCode::invalid_argument);
    REQUIRE(cox::set_option(config, "blocks.modules", "").ok());
    CHECK(config.blocks.modules.empty());
  }

  TEST_CASE("a misspelt key is an error with its place and the nearest key") {
    Config config;
    const cox::Status status =
        cox::apply_text(config, "# guard\nrun.seed = 3\n\nguard.hold_round = 7\n", "job.cfg");
    CHECK(status.code() == StatusCode::invalid_argument);
    CHECK(status.message() ==
          "job.cfg:4: no setting is called 'guard.hold_round'; the nearest is 'guard.hold_rounds'");
    CHECK(config.run.seed == 3);
  }

  TEST_CASE("lines may have blanks, comments, quotes and carriage returns") {
    Config config;
    const char* text =
        "  run.name=a b # why\r\n\t# nothing\r\ncontrol.path = mailbox\r\n"
        "run.directory = \"x # y\" # z\r\ncheckpoint.directory =\r\nhttp.port = 0";
    REQUIRE(cox::apply_text(config, text, "f") == cox::ok_status());
    CHECK(config.run.name == "a b");
    CHECK(config.control.path == cox::ControlPath::mailbox);
    CHECK(config.run.directory == "x # y");
    CHECK(config.http.port == 0);
  }

  TEST_CASE("lines that are no settings are errors with their number") {
    for (const char* text : {"run.seed", "= 3", "run.name = \"open", "run.name = \"a\" b"}) {
      Config config;
      const cox::Status status = cox::apply_text(config, text, "f");
      CAPTURE(text);
      CHECK(status.code() == StatusCode::invalid_argument);
      CHECK(status.message().starts_with("f:1: "));
    }
  }

  TEST_CASE("variables of the environment set keys, by their full or short names") {
    Config config;
    const std::vector<std::string> environment = {
        "PATH=/bin",          "COX_HTTP_PORT=0",   "COX_GUARD_MODE=observe", "COX_CONTROL=mpi",
        "COX_LOG=quiet",      "COX_CACHE=/x",      "COX_CONFIG=f",           "COX_TEST_ANY=1",
        "COX_RUN_NAME=a=b#c", "COX_SHM_DIR=/dev/s"};
    REQUIRE(cox::apply_environment(config, environment) == cox::ok_status());
    CHECK(config.http.port == 0);
    CHECK(config.guard.mode == PolicyMode::observe);
    CHECK(config.control.path == cox::ControlPath::mpi);
    CHECK(config.run.log == cox::LogLevel::quiet);
    CHECK(config.run.name == "a=b#c");
  }

  TEST_CASE("what a file has in a setting's place is shown in one short line") {
    Config config;
    for (const std::string& line : std::vector<std::string>{
             std::string(1 << 20, 'x'), "guard\x1b[2J\r.mode = on", "guard.mode = \x1b[2J",
             "memory.budget = a\rb", "guard.mode = \"\x1b"}) {
      const std::string message = cox::apply_text(config, line, "job.cfg").message();
      CHECK(message.starts_with("job.cfg:1: "));
      CHECK(message.size() < 300);
      CHECK(message.find_first_of("\x1b\r\n") == std::string::npos);
    }
  }

  TEST_CASE("a variable that is no setting is an error that names the nearest") {
    Config config;
    const std::vector<std::string> environment = {"COX_HTTP_PROT=80"};
    const cox::Status status = cox::apply_environment(config, environment);
    CHECK(status.code() == StatusCode::invalid_argument);
    CHECK(status.message().find("COX_HTTP_PORT") != std::string::npos);
  }

  TEST_CASE("flags set keys and leave the program's own arguments in order") {
    Config config;
    const std::vector<std::string> arguments = {
        "gpt2", "--steps", "5",  "--cox.run.seed=9", "--cox.http.port",
        "0",    "text",    "--", "--cox.run.seed=1"};
    const cox::Result<cox::FlagsApplied> applied = cox::apply_flags(config, arguments);
    REQUIRE(applied.ok());
    CHECK(applied->rest ==
          std::vector<std::string>{"gpt2", "--steps", "5", "text", "--", "--cox.run.seed=1"});
    CHECK(config.run.seed == 9);
    CHECK(config.http.port == 0);
  }

  TEST_CASE("a flag without a value or with an unknown key is an error") {
    Config config;
    const std::vector<std::string> open = {"--cox.run.seed"};
    const std::vector<std::string> unknown = {"--cox.run.sed=1"};
    CHECK(cox::apply_flags(config, open).status().code() == StatusCode::invalid_argument);
    CHECK(cox::apply_flags(config, unknown).status().message().find("run.seed") !=
          std::string::npos);
  }

  TEST_CASE("settings that contradict each other are refused") {
    Config config;
    REQUIRE(cox::validate(config).ok());
    SUBCASE("saving nowhere") {
      config.checkpoint.every_steps = 10;
    }
    SUBCASE("resuming from nowhere") {
      config.checkpoint.resume = true;
    }
    SUBCASE("shares without work") {
      config.force.shares = {0, 0};
    }
    SUBCASE("an action forced and switched off") {
      config.memory.force = {{"head", cox::MemoryAction::tile}};
      config.memory.tile = false;
    }
    SUBCASE("an action forced and forbidden") {
      config.memory.force = {{"head", cox::MemoryAction::tile}};
      config.memory.forbid = config.memory.force;
    }
    SUBCASE("keep forbidden") {
      config.memory.forbid = {{"head", cox::MemoryAction::keep}};
    }
    SUBCASE("a format forced and forbidden") {
      config.precision.force = {{"head", cox::Precision::fp8}};
      config.precision.forbid = config.precision.force;
    }
    SUBCASE("fp32 forbidden") {
      config.precision.forbid = {{"head", cox::Precision::fp32}};
    }
    SUBCASE("a loss scale that starts beyond its largest") {
      config.loss_scale.rules.initial_scale = 2;
      config.loss_scale.rules.max_scale = 1;
    }
    SUBCASE("a scope of blocks twice") {
      config.blocks.scopes = {"loss", "head", "loss"};
    }
    SUBCASE("listening nowhere") {
      config.http.host = "";
    }
    CHECK(cox::validate(config).code() == StatusCode::invalid_argument);
  }

  TEST_CASE("the fingerprint tells jobs apart and not what a rank may have of its own") {
    const std::uint64_t plain = cox::fingerprint(Config{});
    const std::set<std::string> own = {"run.log",      "run.log_width", "control.journal",
                                       "http.enabled", "http.host",     "http.port",
                                       "http.token",   "http.open"};
    for (const cox::ConfigOption& option : cox::config_options()) {
      CAPTURE(option.key);
      Config config;
      REQUIRE(cox::set_option(config, option.key, another_value(option)).ok());
      CHECK((cox::fingerprint(config) == plain) == own.contains(option.key));
    }
  }

  TEST_CASE("a rank may have folders of its own, but not none where others have one") {
    for (const char* key : {"run.directory", "checkpoint.directory", "memory.tier_directory"}) {
      CAPTURE(key);
      Config here;
      Config there;
      REQUIRE(cox::set_option(here, key, "/scratch/a").ok());
      CHECK(cox::fingerprint(here) != cox::fingerprint(there));
      REQUIRE(cox::set_option(there, key, "/scratch/b").ok());
      CHECK(cox::fingerprint(here) == cox::fingerprint(there));
    }
  }

  TEST_CASE("precision is chosen where any block may run in another format than fp32") {
    Config config;
    CHECK(cox::mode_of(config, "precision") == PolicyMode::off);
    REQUIRE(cox::set_option(config, "precision.format", "auto").ok());
    CHECK_FALSE(config.precision.format.has_value());
    CHECK(cox::mode_of(config, "precision") == PolicyMode::on);
    REQUIRE(cox::set_option(config, "precision.mode", "observe").ok());
    CHECK(cox::mode_of(config, "precision") == PolicyMode::observe);
    config = {};
    REQUIRE(cox::set_option(config, "precision.force", "head = bf16, layer.*=fp16").ok());
    CHECK(config.precision.force ==
          std::vector<cox::FormatRule>{{"head", cox::Precision::bf16},
                                       {"layer.*", cox::Precision::fp16}});
    CHECK(cox::mode_of(config, "precision") == PolicyMode::on);
    CHECK(cox::mode_of(config, "loss_scale") == PolicyMode::on);
    for (const char* wrong : {"head", "=bf16", "head=bf17", "head=auto", "head=bf16,"}) {
      CAPTURE(wrong);
      CHECK(cox::set_option(config, "precision.force", wrong).code() ==
            StatusCode::invalid_argument);
    }
  }

  TEST_CASE("a policy has the mode of its key, and is on where nothing was said") {
    Config config;
    config.policy_modes["mine"] = PolicyMode::on;
    CHECK(cox::mode_of(config, "guard") == PolicyMode::on);
    CHECK(cox::mode_of(config, "nobody") == PolicyMode::on);
    CHECK_FALSE(cox::set_option(config, "nobody.mode", "off").ok());
    CHECK(cox::has_mode_setting("guard"));
    CHECK_FALSE(cox::has_mode_setting("mine"));
    CHECK_FALSE(cox::has_mode_setting("reduction"));
    for (const char* own : {"shares", "accumulation"}) {
      CHECK(cox::mode_of(config, own) == PolicyMode::off);
      REQUIRE(cox::set_option(config, std::string(own) + ".mode", "observe").ok());
      CHECK(cox::mode_of(config, own) == PolicyMode::observe);
      CHECK_FALSE(config.policy_modes.contains(own));
    }
    REQUIRE(cox::set_option(config, "mine.mode", "off").ok());
    CHECK(cox::mode_of(config, "mine") == PolicyMode::off);
    CHECK_FALSE(cox::set_option(config, "yours.mode", "on").ok());
  }
}
