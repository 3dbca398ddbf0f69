// JournalReader: reads a journal back, for `cox replay`, for a writer that continues it, and for
// tests. A journal is a file header, then records of kind, length, checksums and payload, only ever
// appended. A file that ends within its last record is in order (the process died while writing);
// damage before that is an error with its offset. Format in docs/journal.md. A journal may come
// from elsewhere, so every value that decisions rely on is checked against the job of its start. A
// reader owns its open file; one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "coordinator/core/status.h"
#include "coordinator/io/file.h"
#include "coordinator/wire/control_codec.h"

namespace cox::runtime {

inline constexpr std::uint32_t kJournalVersion = 6;
inline constexpr std::size_t kJournalHeaderBytes = 16;
inline constexpr std::size_t kRecordHeaderBytes = 12;
inline constexpr std::size_t kMaxRecordBytes = std::size_t{1} << 28;

// Values are written to journals: never renumber.
enum class RecordKind : std::uint16_t { end = 0, start = 1, round = 2 };

struct JournalRecord {
  RecordKind kind = RecordKind::end;  // end: there is no further record
  std::uint64_t offset = 0;           // of its first byte in the file
  std::string payload;
};

std::string journal_header();
// Returns the version of a journal, whichever it is; 0 for an empty one. Errors as of
// JournalReader::open().
Result<std::uint32_t> journal_version(const std::filesystem::path& path);
// Return the bytes that stand before the payload of a record, and both. REQUIRES: payload.size() <=
// kMaxRecordBytes.
std::string record_header(RecordKind kind, std::string_view payload);
std::string framed(RecordKind kind, std::string_view payload);

struct JournalEnd {
  std::uint64_t torn_bytes = 0;  // of a last record that is not whole; ignored
};

// Segments begin with a start (one per start of the job), then come its rounds.
using JournalEntry = std::variant<JournalEnd, wire::JournalStart, wire::JournalRound>;

class JournalReader {
 public:
  // not_found when there is no such file, data_loss when it is no journal, failed_precondition when
  // it is one of another version or no regular file. A file of 0 bytes, or one that ends within its
  // header, is an empty journal.
  static Result<JournalReader> open(const std::filesystem::path& path,
                                    io::Links links = io::Links::followed);

  // The next entry; JournalEnd at the end, as often as asked. data_loss with the offset of the
  // record when bytes before the last record are damaged or its values cannot be: plans, reports
  // and evidence that do not fit the job.
  Result<JournalEntry> next();

  // Returns the next record without looking at its values.
  Result<JournalRecord> next_record();
  // Returns the offset of the next record; after the end, the one at which a writer may continue.
  std::uint64_t position() const { return position_; }

 private:
  JournalReader(io::InputFile file, std::filesystem::path path);
  Status check_version(std::uint32_t version);
  Result<JournalRecord> torn();
  Status damaged(const std::string& what) const;
  bool rest_is_zero();
  Result<JournalEntry> read(const JournalRecord& record);

  io::InputFile file_;
  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
  std::uint64_t torn_bytes_ = 0;
  wire::JobSize job_size_;
  std::optional<JobFacts> job_;  // of the segment; none before the first start
};

// Takes the entries of a whole journal in their order.
struct JournalTake {
  std::function<void(wire::JournalStart start)> start;
  std::function<void(const wire::JournalRound& round)> round;
};

// Reads a journal to its end. Returns what open() and next() complain of; the entries before that
// were taken.
Status read_journal(const std::filesystem::path& path, io::Links links, const JournalTake& take);

}  // namespace cox::runtime
