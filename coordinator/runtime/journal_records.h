// The framing of a journal: a file header, then records of kind, length, checksums and payload,
// only ever appended. Knows nothing of what the payloads mean. A file that ends within its last
// record is in order (the process died while writing); damage before that is an error with its
// offset. Format in docs/journal.md. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "coordinator/core/status.h"

namespace cox::runtime {

inline constexpr std::uint32_t kJournalVersion = 1;
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
// Requires: payload.size() <= kMaxRecordBytes.
std::string framed(RecordKind kind, std::string_view payload);

class RecordReader {
 public:
  // not_found when there is no such file, data_loss when it is no journal, failed_precondition when
  // it is one of another version. A file of 0 bytes, or one that ends within its header, is an
  // empty journal.
  static Result<RecordReader> open(const std::filesystem::path& path);

  // data_loss, with the offset, when bytes before the last record are damaged.
  Result<JournalRecord> next();

  // Where the next record starts; after `end`, where a writer may continue.
  std::uint64_t position() const { return position_; }
  // After `end`: bytes of a last record that was never written whole; 0 = none.
  std::uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  RecordReader(std::ifstream file, std::filesystem::path path, std::uint64_t size);
  Status read_file_header();
  Result<JournalRecord> torn();
  Status damaged(const std::string& what) const;
  bool rest_is_zero();

  std::ifstream file_;
  std::filesystem::path path_;
  std::uint64_t size_ = 0;
  std::uint64_t position_ = 0;
  std::uint64_t torn_bytes_ = 0;
};

}  // namespace cox::runtime
