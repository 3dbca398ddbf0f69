// `cox`: what people do with a job's files from a shell.
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "coordinator/tools/commands.h"
#include "coordinator/wire/frame.h"

namespace cox::tools {
namespace {

constexpr std::size_t kMostBudgets = 16;

std::string version() {
  return fmt::format("cox {}, mask version {}", COX_VERSION, unsigned{wire::kMaskVersion});
}

// What the command line asks for. `exit_code` is that of the subcommand, which runs last.
struct CommandLine {
  CLI::App app{"Reads what a job of Coxswain leaves behind.", "cox"};
  ReplayRequest replay;
  PlanRequest plan;
  bool is_verbose = false;
  bool is_markdown = false;
  int exit_code = kDone;

  CommandLine() {
    app.set_version_flag("--version", version());
    app.require_subcommand(1);
    add_replay();
    add_config();
    add_plan();
    app.add_subcommand("version", "prints the version")->callback([] {
      fmt::print("{}\n", version());
    });
    app.add_subcommand("help", "prints this")->callback([this] {
      // help() would describe the subcommand that was given, which is this one.
      constexpr auto kMode = CLI::AppFormatMode::Normal;
      fmt::print("{}", app.get_formatter()->make_help(&app, app.get_name(), kMode));
    });
  }

 private:
  void add_replay() {
    CLI::App* command = app.add_subcommand(
        "replay", "decides a job's rounds again and compares; exit code 1 on a difference");
    command->footer("  --cox.KEY=VALUE        settings that differ from the recorded ones");
    command->add_option("JOURNAL", replay.journal, "journal.cox of a run")->required();
    command->add_flag("--verbose", is_verbose, "tell every round");
    command->callback([this] {
      if (is_verbose) replay.verbosity = Verbosity::every_round;
      exit_code = replay_command(replay);
    });
  }

  void add_config() {
    CLI::App* command =
        app.add_subcommand("config", "lists every setting with its range and default");
    command->add_flag("--markdown", is_markdown, "as the table of docs/configuration.md");
    command->callback([this] {
      exit_code = config_command(is_markdown ? ListFormat::markdown : ListFormat::text);
    });
  }

  void add_plan() {
    CLI::App* command = app.add_subcommand("plan", "says what a memory budget costs");
    auto* profile = command->add_option("PROFILE", plan.profile, "memory_profile.json of a run");
    auto* budgets = command->add_option("--budget", plan.budgets, "bytes of a rank, such as 6GiB");
    budgets->type_name("SIZE")->allow_extra_args(false);
    auto* instances = command->add_option("--instances", plan.instances,
                                          "a JSON line for each instance and budget in FILE");
    instances->type_name("FILE")->excludes(profile)->excludes(budgets);
    command->callback([this] {
      const bool has_profile = !plan.profile.empty() && !plan.budgets.empty();
      if (!has_profile && plan.instances.empty())
        throw CLI::RequiredError("PROFILE and --budget SIZE, or --instances FILE");
      if (plan.budgets.size() > kMostBudgets)
        throw CLI::ValidationError("--budget", fmt::format("at most {} in one call; call it again "
                                                           "for the others",
                                                           kMostBudgets));
      exit_code = plan_command(plan);
    });
  }
};

// Takes --cox.key=value and --cox.key value out of the arguments: they are settings of the job.
std::vector<std::string> take_settings(std::vector<std::string>& arguments) {
  std::vector<std::string> settings;
  std::vector<std::string> rest;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!arguments[i].starts_with("--cox.")) {
      rest.push_back(arguments[i]);
      continue;
    }
    settings.push_back(arguments[i]);
    const bool has_value = arguments[i].find('=') != std::string::npos;
    if (!has_value && i + 1 < arguments.size()) settings.push_back(arguments[++i]);
  }
  arguments = std::move(rest);
  return settings;
}

int run(std::vector<std::string> arguments) {
  CommandLine line;
  line.replay.flags = take_settings(arguments);
  const std::string command = arguments.empty() ? "" : arguments.front();
  if (!line.replay.flags.empty() && command != "replay")
    return complain("expected settings (--cox.*) behind 'replay' only; see cox --help");
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 takes them
  try {
    line.app.parse(std::move(arguments));
  } catch (const CLI::Success& help) {
    return line.app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::string message = error.what();
    std::replace(message.begin(), message.end(), '\n', ' ');
    const auto subcommands = line.app.get_subcommands();
    const std::string name = subcommands.empty() ? "" : subcommands.front()->get_name() + " ";
    return complain(message + "; see cox " + name + "--help");
  }
  return line.exit_code;
}

}  // namespace

int complain(std::string_view message) {
  fmt::print(stderr, "cox: {}\n", message);
  return kBadInput;
}

}  // namespace cox::tools

int main(int argc, char** argv) try {
  return cox::tools::run({argv + 1, argv + argc});
} catch (const std::exception& error) {
  return cox::tools::complain(error.what());
}
