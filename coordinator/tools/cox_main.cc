// `cox`: what people do with a job's files from a shell.
#include <array>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "coordinator/tools/commands.h"
#include "coordinator/wire/frame.h"

namespace cox::tools {
namespace {

int version_command(Arguments) {
  std::printf("cox %s, mask version %u\n", COX_VERSION, unsigned{wire::kMaskVersion});
  return kDone;
}

int help_command(Arguments);

struct Command {
  std::string_view name;
  std::string_view usage;
  std::string_view help;
  int (*run)(Arguments);
};

constexpr std::array<Command, 5> kCommands = {{
    {"replay", "JOURNAL [--cox.key=value ...] [--verbose]",
     "decides a job's rounds again and compares; exit code 1 on a difference", replay_command},
    {"config", "[--markdown]", "lists every setting with its range and default", config_command},
    {"plan", "PROFILE --budget SIZE [--budget SIZE ...] | --instances FILE",
     "what a memory budget costs: from a saved profile, or a JSON line for each budget in FILE",
     plan_command},
    {"version", "", "prints the version", version_command},
    {"help", "", "prints this", help_command},
}};

int help_command(Arguments) {
  std::puts("usage: cox COMMAND ...\n");
  for (const Command& command : kCommands) {
    std::printf("  cox %s %s\n      %s\n", command.name.data(), command.usage.data(),
                command.help.data());
  }
  return kDone;
}

int dispatch(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return complain("expected a command; see cox help");
  std::string name = arguments.front();
  if (name == "--help" || name == "-h") name = "help";
  if (name == "--version") name = "version";
  for (const Command& command : kCommands) {
    if (command.name == name) return command.run(Arguments(arguments).subspan(1));
  }
  return complain("unknown command '" + name + "'; see cox help");
}

}  // namespace

int complain(std::string_view message) {
  std::fprintf(stderr, "cox: %.*s\n", static_cast<int>(message.size()), message.data());
  return kBadInput;
}

}  // namespace cox::tools

int main(int argc, char** argv) try {
  return cox::tools::dispatch({argv + 1, argv + argc});
} catch (const std::exception& error) {
  return cox::tools::complain(error.what());
}
