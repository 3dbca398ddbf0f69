// `cox journal`: prints one record of a journal, as the message for other programs.
#include <unistd.h>

#include <cstdio>
#include <string>

#include "coordinator/runtime/journal_reader.h"
#include "metrics/command/commands.h"
#include "metrics/command/run_file.h"

namespace cox::tools {
namespace {

// Returns the last matching record. A round occurs twice if the job was restarted from an older
// save.
Result<std::string> payload_of(runtime::JournalReader& journal, const JournalRequest& request) {
  std::string found;
  for (;;) {
    auto record = journal.next_record();
    if (!record.ok()) return record.status();
    if (record->kind == runtime::RecordKind::end) return found;
    const bool is_start = record->kind == runtime::RecordKind::start;
    if (is_start != !request.round) continue;
    if (!is_start) {
      const auto round = wire::parse_journal_round(record->payload, {});
      if (!round.ok()) return round.status();
      if (round->signals.round.value() != *request.round) continue;
    }
    found = std::move(record->payload);
  }
}

}  // namespace

Status journal_command(const JournalRequest& request) {
  if (::isatty(STDOUT_FILENO) == 1)
    return failed_precondition(
        "a message is bytes, not text; pass it on: cox journal RUN --round 5 | protoc --decode "
        "coxswain.v1.JournalRound coordinator/wire/control.proto");
  const auto file = file_of_run(request.journal, "journal.cox");
  if (!file.ok()) return file.status();
  auto journal = runtime::JournalReader::open(file->path, file->links);
  if (!journal.ok()) return journal.status();
  const auto payload = payload_of(*journal, request);
  if (!payload.ok()) return payload.status().with_context(file->path.string());
  if (payload->empty())
    return not_found(file->path.string(), ": expected ",
                     request.round ? "round " + std::to_string(*request.round) : "a start",
                     " in the journal, found none");
  if (std::fwrite(payload->data(), 1, payload->size(), stdout) != payload->size())
    return resource_exhausted("standard output cannot be written");
  return ok_status();
}

}  // namespace cox::tools
