#include <fmt/core.h>

#include "coordinator/policies/registry.h"
#include "coordinator/runtime/replay.h"
#include "coordinator/tools/commands.h"

namespace cox::tools {
namespace {

void print_line(const std::string& line) {
  fmt::print("{}\n", line);
}

void print(const runtime::ReplayReport& report) {
  if (report.torn_bytes > 0)
    fmt::print("the last record is not whole: {} bytes are ignored\n", report.torn_bytes);
  for (const std::string& line : report.differences) print_line(line);
  fmt::print("{} starts, {} rounds, {} plans, {} reasons: ", report.segments, report.rounds,
             report.plans, report.reasons);
  if (report.equal()) {
    fmt::print("all equal\n");
  } else {
    fmt::print("{} starts and {} rounds differ\n", report.different_starts,
               report.different_rounds);
  }
}

}  // namespace

int replay_command(const ReplayRequest& request) {
  auto journal = runtime::JournalReader::open(request.journal);
  if (!journal.ok()) return complain(journal.status().message());
  runtime::ReplayOptions options;
  options.flags = request.flags;
  if (request.verbosity == Verbosity::every_round) options.tell = print_line;
  const auto report = runtime::replay(*journal, default_policies(), options);
  if (!report.ok()) return complain(report.status().message());
  if (report->segments == 0) {
    return complain(request.journal +
                    ": expected a journal with the start of a run, found none in it; there is "
                    "nothing to replay");
  }
  print(*report);
  return report->equal() ? kDone : kDifferent;
}

}  // namespace cox::tools
