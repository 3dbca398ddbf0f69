// JournalReader: a journal as values again, record by record, for `cox replay` and tests. Tolerates
// a last record that was never written whole and says how many bytes it had. One thread at a time;
// owns the open file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>

#include "coordinator/core/status.h"
#include "coordinator/runtime/journal_records.h"
#include "coordinator/wire/control_codec.h"

namespace cox::runtime {

struct JournalEnd {
  std::uint64_t torn_bytes = 0;  // of a last record that is not whole; ignored
};

// Segments begin with a start (one per start of the job), then come its rounds.
using JournalEntry = std::variant<JournalEnd, wire::JournalStart, wire::JournalRound>;

class JournalReader {
 public:
  // not_found, data_loss (no journal), failed_precondition (another version).
  static Result<JournalReader> open(const std::filesystem::path& path);

  // The next entry; JournalEnd at the end, as often as asked. data_loss with the offset of the
  // record when it is damaged or its values cannot be.
  Result<JournalEntry> next();

 private:
  JournalReader(RecordReader records, std::string name);
  Result<JournalEntry> read(const JournalRecord& record);

  RecordReader records_;
  std::string name_;
  wire::ParseLimits limits_;
  std::optional<JobFacts> job_;  // of the segment; none before the first start
};

}  // namespace cox::runtime
