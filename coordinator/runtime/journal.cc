#include "coordinator/runtime/journal.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/io/file.h"
#include "coordinator/io/limits.h"
#include "coordinator/runtime/journal_reader.h"

namespace cox::runtime {
namespace {

constexpr std::size_t kFlushRounds = 16;
constexpr std::size_t kFlushBytes = std::size_t{1} << 18;

Status cannot(const std::filesystem::path& path, const std::string& what, int error) {
  return io::errno_status(error, concat("journal ", path.string(), ": ", what),
                          StatusCode::resource_exhausted);
}

// Returns the offset behind the last whole record. A writer continues there.
Result<std::uint64_t> end_of_journal(const std::filesystem::path& path) {
  auto reader = JournalReader::open(path, io::Links::refused);
  if (!reader.ok()) return reader.status();
  for (;;) {
    const auto record = reader->next_record();
    if (!record.ok()) return record.status();
    if (record->kind == RecordKind::end) return reader->position();
  }
}

Result<io::OutputFile> open_locked(const std::filesystem::path& path) {
  auto file = io::OutputFile::open(path, 0644);
  if (!file.ok()) return file.status().with_context("journal");
  const auto locking = file->lock();
  if (!locking.ok()) return locking.status().with_context(concat("journal ", path.string()));
  if (*locking == io::FileLocking::held_elsewhere)
    return failed_precondition("journal ", path.string(),
                               ": another job writes to it; give each job a file of its own");
  return file;
}

// Renames a journal of an older version. Returns its new path: the first free one of
// "journal.cox.version5", "journal.cox.version5.2" and so on. Returns an empty path for any other
// file.
Result<std::filesystem::path> move_older_aside(const std::filesystem::path& path) {
  const auto version = journal_version(path);
  if (!version.ok() || *version == 0 || *version >= kJournalVersion) return std::filesystem::path();
  const std::string name = concat(path.string(), ".version", *version);
  std::filesystem::path aside = name;
  for (int number = 2; io::is_there(aside); ++number) aside = concat(name, ".", number);
  std::error_code error;
  std::filesystem::rename(path, aside, error);
  if (error) return cannot(path, "cannot be moved aside", error.value());
  return aside;
}

Result<std::uint64_t> prepare(io::OutputFile& file, const std::filesystem::path& path) {
  if (file.size_bytes() == 0) return std::uint64_t{0};
  const auto end = end_of_journal(path);
  if (!end.ok()) return end.status();
  if (const int error = file.cut(*end); error != 0)
    return cannot(path, "cannot be continued", error);
  return *end;
}

std::vector<std::string> names_of(const PolicySet& policies) {
  std::vector<std::string> names;
  for (const auto& policy : policies) names.emplace_back(policy->name());
  return names;
}

// Returns the configuration as text with the mode of every policy, defaults included. Leaves out
// the token, because journals are passed on.
std::string complete_text(Config config, const std::vector<std::string>& policies) {
  if (!config.http.token.empty()) config.http.token = "(set)";
  for (const std::string& policy : policies) {
    if (!has_mode_setting(policy)) config.policy_modes.emplace(policy, mode_of(config, policy));
  }
  return text(config);
}

}  // namespace

JournalledStart begin_journalled(const JobFacts& job, const Config& config,
                                 const PolicySet& policies, ControlState state) {
  JournalHead head{job, config, state, policies, {}};
  Begun begun = begin_job(job, config, policies, std::move(state));
  head.first.emplace();
  head.first->plan = begun.state.plan;
  head.first->reasons = begun.reasons;
  return {std::move(head), std::move(begun)};
}

JournalWriter::JournalWriter(io::OutputFile file, std::filesystem::path path, std::uint64_t end,
                             wire::JobSize job_size)
    : file_(std::move(file)), path_(std::move(path)), job_size_(job_size), written_end_(end) {}

Result<std::unique_ptr<JournalWriter>> JournalWriter::open(const std::filesystem::path& path,
                                                           const JournalHead& head) {
  auto file = open_locked(path);
  if (!file.ok()) return file.status();
  auto aside = move_older_aside(path);
  if (!aside.ok()) return aside.status();
  if (!aside->empty()) file = open_locked(path);
  if (!file.ok()) return file.status();
  const auto end = prepare(*file, path);
  if (!end.ok()) return end.status();
  std::unique_ptr<JournalWriter> writer(
      new JournalWriter(std::move(*file), path, *end, wire::size_of(head.job)));
  writer->moved_aside_ = *std::move(aside);
  if (*end == 0) writer->buffer_ += journal_header();
  if (Status status = writer->begin(head); !status.ok()) return status;
  return writer;
}

Status JournalWriter::begin(const JournalHead& head) {
  job_size_ = wire::size_of(head.job);
  const std::vector<std::string> policies = names_of(head.policies);
  const wire::JournalStart start{head.job, complete_text(head.config, policies), head.state,
                                 policies, head.first};
  buffer_ += framed(RecordKind::start, wire::serialize(start));
  return flush();
}

JournalWriter::~JournalWriter() {
  (void)close();
}

Status JournalWriter::append(const StepSignals& signals, const Decision& decision) {
  if (!file_.is_open() || gave_up_) {
    ++lost_rounds_;
    return gave_up_ ? ok_status()
                    : failed_precondition("journal ", path_.string(), ": it is closed");
  }
  ++buffered_rounds_;
  if (signals.faults.size() > job_size_.faults() || decision.reasons.size() > job_size_.reasons())
    return give_up("a round has more faults or reasons than a journal keeps");
  std::string payload = wire::serialize(signals, decision);
  if (payload.size() > kMaxRecordBytes) return give_up("a round is too large for a record");
  buffer_ += record_header(RecordKind::round, payload);
  buffer_ += payload;
  const bool is_due = buffered_rounds_ >= kFlushRounds || buffer_.size() >= kFlushBytes;
  return is_due || decision.plan ? flush() : ok_status();
}

Status JournalWriter::flush() {
  if (gave_up_ || !file_.is_open()) return ok_status();
  if (!file_.has_name()) return give_up("the file was removed while this job wrote to it");
  if (const int error = file_.append(buffer_); error != 0) return give_up(io::errno_text(error));
  written_end_ += buffer_.size();
  bytes_ += buffer_.size();
  buffer_.clear();
  buffered_rounds_ = 0;
  return ok_status();
}

// Leaves a journal that ends with a whole record.
Status JournalWriter::give_up(const std::string& why) {
  gave_up_ = true;
  lost_rounds_ += buffered_rounds_;
  buffer_.clear();
  const int cut = file_.cut(written_end_);
  return resource_exhausted("journal ", path_.string(), ": ", why,
                            "; the job goes on, but from here on it cannot be replayed",
                            cut == 0 ? "" : " (the file may end within a record)");
}

Status JournalWriter::close() {
  if (!file_.is_open()) return ok_status();
  Status status = flush();
  const bool is_kept = ::fdatasync(file_.descriptor()) == 0 || errno == EINVAL;  // no device
  if (!is_kept && status.ok()) status = cannot(path_, "cannot be kept", errno);
  const int error = file_.close();
  if (error != 0 && status.ok()) status = cannot(path_, "cannot be closed", error);
  return status;
}

}  // namespace cox::runtime
