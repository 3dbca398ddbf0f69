// JournalReader: reads a journal, for `cox replay`, for a writer that continues it, and for tests.
// A journal is a file header, then records of kind, length, checksums and payload, only ever
// appended (docs/journal.md). A file may end within its last record, because the process died while
// writing. Earlier damage is an error with its offset. Journals are untrusted, so every value that
// decisions rely on is checked against the job of its segment. A reader owns its open file; one
// thread at a time.
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
  RecordKind kind = RecordKind::end;  // end: no further record
  std::uint64_t offset = 0;           // of the record's first byte in the file
  std::string payload;
};

// Returns the header of a journal file.
std::string journal_header();
// Returns the version of any journal, 0 for an empty one. Errors as of JournalReader::open().
Result<std::uint32_t> journal_version(const std::filesystem::path& path);
// Return the bytes before the payload of a record, and the whole record. REQUIRES: payload.size()
// <= kMaxRecordBytes.
std::string record_header(RecordKind kind, std::string_view payload);
std::string framed(RecordKind kind, std::string_view payload);

struct JournalEnd {
  std::uint64_t torn_bytes = 0;  // of an incomplete last record; ignored
};

// A segment is a start (one per start of the job), followed by its rounds.
using JournalEntry = std::variant<JournalEnd, wire::JournalStart, wire::JournalRound>;

class JournalReader {
 public:
  // Opens a journal. Errors: not_found if there is no such file; data_loss if the file is no
  // journal; failed_precondition if its version is another, or the file is not regular. A file of 0
  // bytes, or one that ends within its header, is an empty journal.
  static Result<JournalReader> open(const std::filesystem::path& path,
                                    io::Links links = io::Links::followed);

  // Returns the next entry; JournalEnd at the end, however often called. Returns data_loss with the
  // record's offset if bytes before the last record are damaged, or if plans, reports or evidence
  // do not fit the job.
  Result<JournalEntry> next();

  // Returns the next record without parsing its payload.
  Result<JournalRecord> next_record();
  // Returns the offset of the next record; after the end, the offset at which a writer may
  // continue.
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

// Callbacks for the entries of a whole journal, called in their order.
struct JournalTake {
  std::function<void(wire::JournalStart start)> start;
  std::function<void(const wire::JournalRound& round)> round;
};

// Reads a journal to its end. Returns the error of open() or next(); earlier entries were passed to
// `take`.
Status read_journal(const std::filesystem::path& path, io::Links links, const JournalTake& take);

}  // namespace cox::runtime
