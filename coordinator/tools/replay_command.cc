#include <cstdio>

#include "coordinator/policies/registry.h"
#include "coordinator/runtime/replay.h"
#include "coordinator/tools/commands.h"

namespace cox::tools {
namespace {

struct ReplayArguments {
  std::string journal;
  runtime::ReplayOptions options;
};

void print_line(const std::string& line) {
  std::puts(line.c_str());
}

bool takes_value(const std::string& flag) {
  return flag.starts_with("--cox.") && flag.find('=') == std::string::npos;
}

Result<ReplayArguments> understand(Arguments arguments) {
  ReplayArguments read;
  bool value_follows = false;
  for (const std::string& argument : arguments) {
    if (value_follows || argument.starts_with("--cox.")) {
      read.options.flags.push_back(argument);
      value_follows = !value_follows && takes_value(argument);
    } else if (argument == "--verbose") {
      read.options.tell = print_line;
    } else if (argument.starts_with("-")) {
      return invalid_argument("replay: unknown option '" + argument + "'; see cox help");
    } else if (read.journal.empty()) {
      read.journal = argument;
    } else {
      return invalid_argument("replay: expected one journal, found also '" + argument + "'");
    }
  }
  if (read.journal.empty())
    return invalid_argument("replay: expected the path of a journal; see cox help");
  return read;
}

void print(const runtime::ReplayReport& report) {
  if (report.torn_bytes > 0)
    std::printf("the last record is not whole: %llu bytes are ignored\n",
                static_cast<unsigned long long>(report.torn_bytes));
  for (const std::string& line : report.differences) std::puts(line.c_str());
  std::printf("%llu starts, %llu rounds, %llu plans, %llu reasons: ",
              static_cast<unsigned long long>(report.segments),
              static_cast<unsigned long long>(report.rounds),
              static_cast<unsigned long long>(report.plans),
              static_cast<unsigned long long>(report.reasons));
  if (report.equal()) {
    std::puts("all equal");
  } else {
    std::printf("%llu starts and %llu rounds differ\n",
                static_cast<unsigned long long>(report.different_starts),
                static_cast<unsigned long long>(report.different_rounds));
  }
}

}  // namespace

int replay_command(Arguments arguments) {
  const auto read = understand(arguments);
  if (!read.ok()) return complain(read.status().message());
  auto journal = runtime::JournalReader::open(read->journal);
  if (!journal.ok()) return complain(journal.status().message());
  const auto report = runtime::replay(*journal, default_policies(), read->options);
  if (!report.ok()) return complain(report.status().message());
  if (report->segments == 0) {
    return complain(read->journal +
                    ": expected a journal with the start of a run, found none in it; there is "
                    "nothing to replay");
  }
  print(*report);
  return report->equal() ? kDone : kDifferent;
}

}  // namespace cox::tools
