// Replay: runs Decide again on the inputs in a journal, round by round, and compares the results
// with the recorded ones, as values. Equal inputs must give equal plans and reasons. If settings
// are overridden, the differences show the effect of the new settings. Pure except for reading the
// journal; any thread.
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
  std::string file_text;             // of a configuration file, over the recorded configuration
  std::string file_name;             // for messages about the file
  std::vector<std::string> flags;    // "--cox.key=value", over both
  std::size_t max_differences = 20;  // lines kept in the report
  // Called with one line per segment, plan and reason. May be empty.
  std::function<void(const std::string& line)> tell;
};

struct ReplayReport {
  std::uint64_t segments = 0;  // starts of the job
  std::uint64_t rounds = 0;
  std::uint64_t plans = 0;    // recorded ones
  std::uint64_t reasons = 0;  // recorded ones
  std::uint64_t different_rounds = 0;
  std::uint64_t different_starts = 0;  // starts with another first plan or other reasons
  std::uint64_t torn_bytes = 0;        // at the end, ignored
  std::vector<std::string> differences;

  bool equal() const { return different_rounds == 0 && different_starts == 0; }
};

// Replays a whole journal. Returns errors of reading the journal, errors of the settings
// (invalid_argument), and failed_precondition if the journal was made with other policies than
// `policies`.
Result<ReplayReport> replay(JournalReader& journal, const PolicySet& policies,
                            const ReplayOptions& options);

}  // namespace cox::runtime
