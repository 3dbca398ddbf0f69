#include "coordinator/runtime/journal_reader.h"

namespace cox::runtime {
namespace {

// What decisions rely on: facts and a plan that fit the job.
Status check(const wire::JournalStart& start) {
  const JobFacts& job = start.job;
  Status status = validate(job.memory, static_cast<std::size_t>(job.world_size), job.blocks.size());
  if (status.ok()) status = validate(job.precision, job.blocks.size());
  if (status.ok()) status = validate(start.state.plan, job);
  return status.ok() ? status : data_loss("expected a start of a job, found " + status.message());
}

// What policies rely on: one report a rank at most, in ascending order, and evidence of all blocks
// or of none.
Status check(const StepSignals& signals, const JobFacts& job) {
  std::int32_t least = 0;
  for (const RankSignal& report : signals.reports) {
    if (report.rank.value() < least || report.rank.value() >= job.world_size) {
      return data_loss("expected reports of ranks " + std::to_string(least) + " to " +
                       std::to_string(job.world_size - 1) + " next, found one of rank " +
                       std::to_string(report.rank.value()));
    }
    least = report.rank.value() + 1;
  }
  if (signals.evidence.empty() || signals.evidence.size() == job.blocks.size()) return ok_status();
  return data_loss("expected evidence of " + std::to_string(job.blocks.size()) +
                   " blocks, found that of " + std::to_string(signals.evidence.size()));
}

}  // namespace

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
    if (Status fits = check(*start); !fits.ok()) return fits;
    limits_ = wire::limits_of(start->job);
    job_ = start->job;
    return JournalEntry(std::move(*start));
  }
  if (!job_) return data_loss("expected the start of a job, found a round");
  auto round = wire::parse_journal_round(record.payload, limits_);
  if (!round.ok()) return round.status();
  if (Status fits = check(round->signals, *job_); !fits.ok()) return fits;
  return JournalEntry(std::move(*round));
}

}  // namespace cox::runtime
