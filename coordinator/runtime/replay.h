// Replay: takes a journal through Decide again, round by round, and compares what comes out with
// what was recorded, as values. Equal inputs must give equal plans and reasons; with settings
// overridden it shows what they would have changed. Pure but for reading the journal; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/decide/policy.h"
#include "coordinator/runtime/journal_reader.h"

namespace cox::runtime {

struct ReplayOptions {
  std::string file_text;             // of a configuration file, put over the recorded configuration
  std::string file_name;             // for messages about it
  std::vector<std::string> flags;    // "--cox.key=value", put over both
  std::size_t max_differences = 20;  // lines kept in the report
  // Called with one line per segment, plan and reason, for people who watch. May be empty.
  std::function<void(const std::string& line)> tell;
};

struct ReplayReport {
  std::uint64_t segments = 0;  // starts of the job
  std::uint64_t rounds = 0;
  std::uint64_t plans = 0;    // recorded ones
  std::uint64_t reasons = 0;  // recorded ones
  std::uint64_t different_rounds = 0;
  std::uint64_t different_starts = 0;  // of which the first plan or its reasons differ
  std::uint64_t torn_bytes = 0;        // at the end, ignored
  std::vector<std::string> differences;

  bool equal() const { return different_rounds == 0 && different_starts == 0; }
};

// Errors are those of reading the journal, of the settings (invalid_argument), and
// failed_precondition when the journal was made with other policies than `policies`.
Result<ReplayReport> replay(JournalReader& journal, const PolicySet& policies,
                            const ReplayOptions& options);

}  // namespace cox::runtime
