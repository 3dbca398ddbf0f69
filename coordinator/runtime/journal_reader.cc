#include "coordinator/runtime/journal_reader.h"

#include <algorithm>
#include <array>
#include <span>

#include "coordinator/core/bytes.h"
#include "coordinator/core/hash.h"

namespace cox::runtime {
namespace {

constexpr std::string_view kJournalMagic = "COXJRNL\n";

ByteReader reader_of(std::string_view bytes) {
  return ByteReader(std::as_bytes(std::span(bytes)));
}

std::uint32_t checksum(std::string_view bytes) {
  return crc32(std::as_bytes(std::span(bytes)));
}

// The checksum covers the first bytes of a record's header.
std::uint16_t short_checksum(std::string_view bytes) {
  return static_cast<std::uint16_t>(checksum(bytes));
}

struct RecordHeader {
  std::uint32_t length = 0;
  std::uint16_t kind = 0;
  std::uint32_t payload_checksum = 0;
  bool is_whole = false;  // the header's own checksum fits
};

RecordHeader read_header(std::string_view bytes) {
  ByteReader in = reader_of(bytes);
  RecordHeader header;
  header.length = in.u32();
  header.kind = in.u16();
  header.is_whole = in.u16() == short_checksum(bytes.substr(0, 6));
  header.payload_checksum = in.u32();
  return header;
}

// Returns the version in the header of a journal; 0 where the file ends within it.
Result<std::uint32_t> version_in(io::InputFile& file, const std::filesystem::path& path) {
  std::array<char, kJournalHeaderBytes> found{};
  const std::size_t there = std::min<std::uint64_t>(file.size_bytes(), found.size());
  const Status read = file.read_at(0, found.data(), there);
  const std::string_view bytes(found.data(), there);
  if (!read.ok() || bytes.substr(0, kJournalMagic.size()) != kJournalMagic.substr(0, there))
    return data_loss("journal ", path.string(),
                     ": expected a journal of Coxswain, found other bytes");
  if (there < found.size()) return std::uint32_t{0};
  ByteReader in = reader_of(bytes.substr(kJournalMagic.size()));
  const std::uint32_t version = in.u32();
  if (version == 0 || in.u32() != checksum(bytes.substr(0, 12)))
    return data_loss("journal ", path.string(),
                     ": its header is damaged; keep a copy and move it away");
  return version;
}

Status check(const std::optional<Plan>& plan, const JobFacts& job) {
  const Status status = plan ? validate(*plan, job) : ok_status();
  return status.ok() ? status : data_loss("expected a plan of this job, found ", status.message());
}

// Decisions rely on plans that fit the job.
Status check(const wire::JournalStart& start) {
  const Status status = validate(start.state.plan, start.job);
  if (!status.ok()) return data_loss("expected a start of a job, found ", status.message());
  return start.first ? check(start.first->plan, start.job) : ok_status();
}

Status check_reports(const StepSignals& signals, const JobFacts& job) {
  std::int32_t least = 0;
  for (const RankSignal& report : signals.reports) {
    if (report.rank.value() < least || report.rank.value() >= job.world_size) {
      return data_loss("expected reports of ranks ", least, " to ", job.world_size - 1,
                       " next, found one of rank ", report.rank);
    }
    least = report.rank.value() + 1;
  }
  return ok_status();
}

// Faults may name any rank, but missing ranks belong to this world, each once.
Status check_faults(const StepSignals& signals, const JobFacts& job) {
  std::int32_t least = 0;
  for (const FaultyReport& fault : signals.faults) {
    if (fault.fault > ReportFault::foreign || fault.rank.value() < -1)
      return data_loss("expected faults of reports, found kind ", static_cast<int>(fault.fault),
                       " of rank ", fault.rank);
    if (fault.fault != ReportFault::missing) continue;
    if (fault.rank.value() < least || fault.rank.value() >= job.world_size)
      return data_loss("expected missing ranks from ", least, " to ", job.world_size - 1,
                       " next, found rank ", fault.rank);
    least = fault.rank.value() + 1;
  }
  return ok_status();
}

Status check_evidence(const StepSignals& signals, const JobFacts& job) {
  if (signals.evidence.empty() || signals.evidence.size() == job.blocks.size()) return ok_status();
  return data_loss("expected evidence of ", job.blocks.size(), " blocks, found evidence of ",
                   signals.evidence.size());
}

// Policies rely on one report a rank at most, in ascending order, and on evidence of all blocks or
// of none.
Status check(const StepSignals& signals, const JobFacts& job) {
  Status status = check_reports(signals, job);
  if (status.ok()) status = check_faults(signals, job);
  return status.ok() ? check_evidence(signals, job) : status;
}

}  // namespace

std::string journal_header() {
  ByteWriter out;
  out.append(kJournalMagic);
  out.u32(kJournalVersion);
  out.u32(checksum(out.text()));
  return std::string(out.text());
}

std::string record_header(RecordKind kind, std::string_view payload) {
  ByteWriter out;
  out.u32(static_cast<std::uint32_t>(payload.size()));
  out.u16(static_cast<std::uint16_t>(kind));
  out.u16(short_checksum(out.text()));
  out.u32(checksum(payload));
  return std::string(out.text());
}

std::string framed(RecordKind kind, std::string_view payload) {
  return record_header(kind, payload).append(payload);
}

JournalReader::JournalReader(io::InputFile file, std::filesystem::path path)
    : file_(std::move(file)), path_(std::move(path)), size_(file_.size_bytes()) {}

Result<std::uint32_t> journal_version(const std::filesystem::path& path) {
  auto file = io::InputFile::open(path, io::Links::refused);
  if (!file.ok()) return file.status().with_context("journal");
  return version_in(*file, path);
}

Result<JournalReader> JournalReader::open(const std::filesystem::path& path, io::Links links) {
  auto file = io::InputFile::open(path, links);
  if (!file.ok()) return file.status().with_context("journal");
  const auto version = version_in(*file, path);
  if (!version.ok()) return version.status();
  JournalReader reader(*std::move(file), path);
  if (Status status = reader.check_version(*version); !status.ok()) return status;
  return reader;
}

Status JournalReader::check_version(std::uint32_t version) {
  if (version == 0) {
    torn_bytes_ = size_;
    size_ = 0;
    return ok_status();
  }
  if (version != kJournalVersion)
    return failed_precondition(
        "journal ", path_.string(), ": expected version ", kJournalVersion, ", found ", version,
        "; replay the journal with the Coxswain that wrote it, and give this job another file");
  position_ = kJournalHeaderBytes;
  return ok_status();
}

Result<JournalRecord> JournalReader::next_record() {
  const std::uint64_t left = size_ - position_;
  if (left < kRecordHeaderBytes) return torn();
  std::array<char, kRecordHeaderBytes> bytes{};
  if (!file_.read_at(position_, bytes.data(), bytes.size()).ok())
    return damaged("a record that cannot be read");
  const RecordHeader header = read_header({bytes.data(), bytes.size()});
  if (!header.is_whole) return rest_is_zero() ? torn() : damaged("the header of a record");
  if (header.length > kMaxRecordBytes) return damaged("the length of a record");
  if (header.length > left - kRecordHeaderBytes) return torn();
  JournalRecord record;
  record.kind = static_cast<RecordKind>(header.kind);
  record.offset = position_;
  record.payload.resize(header.length);
  if (!file_.read_at(position_ + kRecordHeaderBytes, record.payload.data(), header.length).ok())
    return damaged("a record that cannot be read");
  const std::uint64_t end = kRecordHeaderBytes + header.length;
  if (checksum(record.payload) != header.payload_checksum)
    return end == left ? torn() : damaged("the bytes of a record");
  if (record.kind != RecordKind::start && record.kind != RecordKind::round)
    return damaged("the kind of a record");
  position_ += end;
  return record;
}

Result<JournalRecord> JournalReader::torn() {
  if (torn_bytes_ == 0) torn_bytes_ = size_ - position_;
  size_ = position_;
  return JournalRecord{RecordKind::end, position_, {}};
}

// A file system may have grown the file before the bytes of its last record were written. More
// zeros than a record has cannot come from such a crash, and are not worth reading.
bool JournalReader::rest_is_zero() {
  if (size_ - position_ > kRecordHeaderBytes + kMaxRecordBytes) return false;
  std::array<char, 4096> bytes{};
  for (std::uint64_t at = position_; at < size_; at += bytes.size()) {
    const std::size_t count = std::min<std::uint64_t>(size_ - at, bytes.size());
    if (!file_.read_at(at, bytes.data(), count).ok()) return false;
    const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(count);
    if (std::any_of(bytes.begin(), end, [](char c) { return c != 0; })) return false;
  }
  return true;
}

Status JournalReader::damaged(const std::string& what) const {
  return data_loss("journal ", path_.string(), ": ", what, " is damaged at byte ", position_,
                   "; records before that byte can be used: keep a copy and move the file away");
}

Result<JournalEntry> JournalReader::next() {
  const auto record = next_record();
  if (!record.ok()) return record.status();
  auto entry = read(*record);
  if (entry.ok()) return entry;
  return entry.status().with_context(
      concat("journal ", path_.string(), ": record at byte ", record->offset));
}

Result<JournalEntry> JournalReader::read(const JournalRecord& record) {
  if (record.kind == RecordKind::end) return JournalEntry(JournalEnd{torn_bytes_});
  if (record.kind == RecordKind::start) {
    auto start = wire::parse_journal_start(record.payload);
    if (!start.ok()) return start.status();
    if (Status fits = check(*start); !fits.ok()) return fits;
    job_size_ = wire::size_of(start->job);
    job_ = start->job;
    return JournalEntry(std::move(*start));
  }
  if (!job_) return data_loss("expected the start of a job, found a round");
  auto round = wire::parse_journal_round(record.payload, job_size_);
  if (!round.ok()) return round.status();
  if (Status fits = check(round->signals, *job_); !fits.ok()) return fits;
  if (Status fits = check(round->decision.plan, *job_); !fits.ok()) return fits;
  return JournalEntry(std::move(*round));
}

Status read_journal(const std::filesystem::path& path, io::Links links, const JournalTake& take) {
  auto reader = JournalReader::open(path, links);
  if (!reader.ok()) return reader.status();
  for (;;) {
    auto entry = reader->next();
    if (!entry.ok()) return entry.status();
    if (std::holds_alternative<JournalEnd>(*entry)) return ok_status();
    if (auto* start = std::get_if<wire::JournalStart>(&*entry)) take.start(std::move(*start));
    if (const auto* round = std::get_if<wire::JournalRound>(&*entry)) take.round(*round);
  }
}

}  // namespace cox::runtime
