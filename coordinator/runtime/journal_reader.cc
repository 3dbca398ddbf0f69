#include "coordinator/runtime/journal_reader.h"

namespace cox::runtime {

JournalReader::JournalReader(RecordReader records, std::string name)
    : records_(std::move(records)), name_(std::move(name)) {}

Result<JournalReader> JournalReader::open(const std::filesystem::path& path) {
  auto records = RecordReader::open(path);
  if (!records.ok()) return records.status();
  return JournalReader(std::move(*records), path.string());
}

Result<JournalEntry> JournalReader::next() {
  const auto record = records_.next();
  if (!record.ok()) return record.status();
  auto entry = read(*record);
  if (entry.ok()) return entry;
  return entry.status().with_context("journal " + name_ + ": record at byte " +
                                     std::to_string(record->offset));
}

Result<JournalEntry> JournalReader::read(const JournalRecord& record) {
  if (record.kind == RecordKind::end) return JournalEntry(JournalEnd{records_.torn_bytes()});
  if (record.kind == RecordKind::start) {
    auto start = wire::parse_journal_start(record.payload);
    if (!start.ok()) return start.status();
    limits_ = wire::limits_of(start->job);
    in_segment_ = true;
    return JournalEntry(std::move(*start));
  }
  if (!in_segment_) return data_loss("expected the start of a job, found a round");
  auto round = wire::parse_journal_round(record.payload, limits_);
  if (!round.ok()) return round.status();
  return JournalEntry(std::move(*round));
}

}  // namespace cox::runtime
