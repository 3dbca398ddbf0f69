// JournalWriter: records every input and result of Decide, so that `cox replay` can decide again.
// The control loop writes on the coordinator's thread. Bytes are buffered, and handed to the system
// every few rounds, with every plan and at the end. Never throws; a full disk ends the journal, not
// the job. Reader: journal_reader.h. Format: docs/journal.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/core/status.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/decide/decide.h"
#include "coordinator/decide/policy.h"
#include "coordinator/io/output_file.h"
#include "coordinator/wire/control_codec.h"

namespace cox::runtime {

// JournalHead holds every input of Decide except signals, and the policies' result before the first
// step.
struct JournalHead {
  JobFacts job;
  Config config;
  ControlState state;  // before `first`
  PolicySet policies;
  std::optional<Decision> first{};  // empty: the policies were not asked
};

// JournalledStart is the result of begin_job() and the head for a journal.
struct JournalledStart {
  JournalHead head;
  Begun begun;
};
// Calls begin_job() and records its inputs and result.
JournalledStart begin_journalled(const JobFacts& job, const Config& config,
                                 const PolicySet& policies, ControlState state);

class JournalWriter {
 public:
  // Creates the file, or continues an existing journal after a restart of the job: cuts off a torn
  // last record and begins a new segment. Renames a journal of an older version. Errors: not_found
  // or resource_exhausted if the file cannot be made or written; data_loss if the file is no
  // journal or damaged, and the file then stays unchanged; failed_precondition if another job
  // writes to the file, or the path is a link. Blocks while reading an existing file.
  static Result<std::unique_ptr<JournalWriter>> open(const std::filesystem::path& path,
                                                     const JournalHead& head);
  ~JournalWriter();  // closes; errors are lost
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;

  // Begins a new segment, because the job starts from other inputs than before. REQUIRES: no round
  // was appended yet.
  Status begin(const JournalHead& head);

  // Appends one round. Returns resource_exhausted once, if the disk is full or the round too large.
  // Later rounds count as lost, and the result is ok.
  Status append(const StepSignals& signals, const Decision& decision);

  // Hands buffered bytes to the system. Such bytes survive the end of the process.
  Status flush();
  // Flushes, and asks the system to write to the device. Further appends are errors.
  Status close();

  // Returns the new path of the older journal that was in the place of this one; empty = none was.
  const std::filesystem::path& moved_aside() const { return moved_aside_; }
  std::uint64_t bytes() const { return bytes_; }  // of this start, handed to the system
  std::uint64_t lost_rounds() const { return lost_rounds_; }

 private:
  JournalWriter(io::OutputFile file, std::filesystem::path path, std::uint64_t end,
                wire::JobSize job_size);
  Status give_up(const std::string& why);

  io::OutputFile file_;
  std::filesystem::path path_;
  std::filesystem::path moved_aside_;
  wire::JobSize job_size_;
  std::string buffer_;
  std::uint64_t written_end_ = 0;  // end of the last whole record in the file
  std::uint64_t bytes_ = 0;
  std::uint64_t lost_rounds_ = 0;
  std::size_t buffered_rounds_ = 0;
  bool gave_up_ = false;
};

}  // namespace cox::runtime
