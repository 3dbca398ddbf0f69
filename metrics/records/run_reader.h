// Reads run directories (docs/run-directory.md), our own and those of other tools for the same
// layout, into a RunRecord. steps.jsonl streams through one megabyte of memory (step_lines.h).
// Files may be hostile: names and numbers have limits, and links are refused. Blocks on the disk;
// one thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "metrics/records/run_record.h"
#include "metrics/records/step_lines.h"

namespace cox::io {

inline constexpr std::size_t kMaxStepColumns = 64;                 // of each kind
inline constexpr std::size_t kMaxRunSteps = std::size_t{1} << 26;  // of all ranks together

// Takes the bytes of a steps.jsonl as they come and fills the columns of a rank. Lines that are no
// step are skipped and counted; so is a last line that is cut off. Numbers may be the bare words
// NaN, Infinity and -Infinity; null counts as absent.
class StepLines {
 public:
  explicit StepLines(diagnosis::RankRecord& rank);
  StepLines(const StepLines&) = delete;
  StepLines& operator=(const StepLines&) = delete;

  void take(std::string_view bytes) { lines_.take(bytes); }
  // Ends the file: all columns get as many values as there are steps.
  void finish();

  std::size_t damaged() const { return lines_.damaged(); }  // lines that were skipped
  bool is_torn() const { return lines_.is_torn(); }         // the last line was cut off
  std::size_t unnamed() const { return unnamed_; }      // values without a column, beyond the most
  std::size_t went_back() const { return went_back_; }  // numbers that are not above the one before

 private:
  // Lines are alike: a place in a line remembers the column that its value went to the last time.
  struct Place {
    const diagnosis::Columns* columns = nullptr;
    std::string name;
    diagnosis::Column* column = nullptr;
  };
  void add(const diagnosis::StepLine& line);
  void put(const diagnosis::StepValue& value, std::size_t i, std::size_t row);

  diagnosis::RankRecord& rank_;
  StepLineReader lines_;
  std::vector<Place> places_;
  double newest_ = 0;
  std::size_t unnamed_ = 0;
  std::size_t went_back_ = 0;
};

// Returns "my-run" of runs/my-run and of runs/my-run/.
std::string folder_name(const std::filesystem::path& path);

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

// The same for those to whom waiting for a rank that left no folder would pass for communication.
// Errors: also invalid_argument where the folder of a rank is missing, by the numbers of the others
// or the world size in rank0/run.json. The folder of a single rank by itself is whole.
Result<diagnosis::RunRecord> read_whole_run(const std::filesystem::path& run);

}  // namespace cox::io
