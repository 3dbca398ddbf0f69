// Reads run directories (docs/run-directory.md), our own and those of other tools for the same
// layout, into a RunRecord. steps.jsonl streams through one megabyte of memory (step_lines.h).
// Files may be hostile: names and numbers have limits, and links are refused. Blocks on the disk;
// one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/records/run_record.h"

namespace cox::io {

inline constexpr std::size_t kMaxStepColumns = 64;                 // of each kind
inline constexpr std::size_t kMaxRunSteps = std::size_t{1} << 26;  // of all ranks together

// Takes the bytes of a steps.jsonl as they come and fills the columns of a rank. Lines that are no
// step are skipped and counted; so is a last line that is cut off. Numbers may be the bare words
// NaN, Infinity and -Infinity; null counts as absent.
class StepLines {
 public:
  explicit StepLines(diagnosis::RankRecord& rank);
  StepLines(StepLines&&) noexcept;
  ~StepLines();

  void take(std::string_view bytes);
  // Ends the file: all columns get as many values as there are steps.
  void finish();

  std::size_t damaged() const;    // lines that were skipped
  bool is_torn() const;           // the last line was cut off
  std::size_t unnamed() const;    // values without a column, beyond kMaxStepColumns
  std::size_t went_back() const;  // steps whose number is not above the one before

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;
};

// The numbers of the folders rank<k>, ascending.
std::set<std::int32_t> rank_folders(const std::filesystem::path& run);

// Fills `info` from the text of a run.json; one that does not parse leaves it as it is.
void read_run_info(std::string_view json, diagnosis::RunInfo& info);

// A rank's folder in a run directory, with what its run.json says.
struct RankFolder {
  std::int32_t rank = 0;
  std::filesystem::path path;
  diagnosis::RunInfo info;
};

// Returns the folders of all ranks, ascending, or the directory itself where it is that of one
// rank; their steps are not looked at. Errors: not_found (neither), invalid_argument (a file; ranks
// of different runs), failed_precondition (links, not readable).
Result<std::vector<RankFolder>> folders_of_run(const std::filesystem::path& run);

// Reads all rank<k> of a run, or the one rank that the directory itself holds. What was left out is
// told in `gaps`. Errors: not_found (no steps.jsonl), data_loss (no line of any rank is a step),
// invalid_argument (ranks of different runs), failed_precondition (links, not readable),
// resource_exhausted (more than kMaxRunSteps).
Result<diagnosis::RunRecord> read_run(const std::filesystem::path& run);

}  // namespace cox::io
