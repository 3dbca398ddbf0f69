// Reads run directories (docs/run-directory.md), our own and those of other tools with the same
// layout, into a RunRecord. Streams steps.jsonl through one megabyte of memory (step_lines.h).
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

inline constexpr std::size_t kMaxStepColumns = 64;                 // in each section
inline constexpr std::size_t kMaxRunSteps = std::size_t{1} << 26;  // all ranks together

// StepLines parses the bytes of a steps.jsonl and fills the columns of a rank. Skips and counts
// lines that are no step, and a last line that is cut off. Numbers may be the bare words NaN,
// Infinity and -Infinity; null counts as absent.
class StepLines {
 public:
  explicit StepLines(diagnosis::RankRecord& rank);
  StepLines(const StepLines&) = delete;
  StepLines& operator=(const StepLines&) = delete;

  void take(std::string_view bytes) { lines_.take(bytes); }
  // Ends the file. Pads all columns to the number of steps.
  void finish();

  std::size_t damaged() const { return lines_.damaged(); }  // lines that were skipped
  bool is_torn() const { return lines_.is_torn(); }         // the last line was cut off
  std::size_t unnamed() const { return unnamed_; }      // values left out beyond kMaxStepColumns
  std::size_t went_back() const { return went_back_; }  // steps whose number is not above the last

 private:
  // Remembers the column of each place in a line, because the lines of a file are alike.
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

// Returns "my-run" for runs/my-run and for runs/my-run/.
std::string folder_name(const std::filesystem::path& path);

// Returns the numbers of the folders rank<k>, ascending.
std::set<std::int32_t> rank_folders(const std::filesystem::path& run);

// Fills `info` from the text of a run.json. Leaves `info` unchanged if the text does not parse.
void read_run_info(std::string_view json, diagnosis::RunInfo& info);

// A rank's folder in a run directory, with the contents of its run.json.
struct RankFolder {
  std::int32_t rank = 0;
  std::filesystem::path path;
  diagnosis::RunInfo info;
};

// Returns the folders of all ranks, ascending. Returns the directory itself if it is one rank's
// folder. Reads no steps. Errors: not_found (neither), invalid_argument (a file; ranks of different
// runs), failed_precondition (links, not readable).
Result<std::vector<RankFolder>> folders_of_run(const std::filesystem::path& run);

// Reads all rank<k> of a run, or the one rank in the directory itself. `gaps` reports what was left
// out. Errors: not_found (no steps.jsonl), data_loss (no line of any rank is a step),
// invalid_argument (ranks of different runs), failed_precondition (links, not readable),
// resource_exhausted (more than kMaxRunSteps).
Result<diagnosis::RunRecord> read_run(const std::filesystem::path& run);

// Reads a run as read_run() does, but also returns invalid_argument if a rank's folder is missing.
// Callers need every rank, because waiting for an unrecorded rank looks like communication. The
// numbers of the other ranks, or the world size in rank0/run.json, reveal a missing folder. The
// folder of a single rank by itself is whole.
Result<diagnosis::RunRecord> read_whole_run(const std::filesystem::path& run);

}  // namespace cox::io
