// Reads steps.jsonl line by line, in the memory of one line:
//
//   read_step_file() -> bytes -> StepLineReader -> StepLine, for each line that is a step
//
// Files may be hostile: lines have a limit, and links are refused. One thread per object.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <string_view>

#include "coordinator/core/status.h"
#include "metrics/records/run_record.h"

namespace cox::io {

inline constexpr std::size_t kMaxStepLineBytes = std::size_t{1} << 20;

// Parses the bytes of a file. Skips and counts lines that are no step, and a last line that is cut
// off. Numbers may be the bare words NaN, Infinity and -Infinity.
class StepLineReader {
 public:
  using Take = std::function<void(const diagnosis::StepLine&)>;
  explicit StepLineReader(Take take);
  StepLineReader(StepLineReader&&) noexcept;
  ~StepLineReader();

  void take(std::string_view bytes);
  // Ends the file. A last line without a line feed counts if it is whole.
  void finish();

  std::size_t damaged() const;  // lines skipped
  bool is_torn() const;         // the last line was cut off

 private:
  class Parser;
  std::unique_ptr<Parser> parser_;
};

// Passes the bytes of a file piece by piece. Stops at the first error of `take`. Blocks on the
// disk. Errors: those of InputFile and of `take`.
Status read_step_file(const std::filesystem::path& path,
                      const std::function<Status(std::string_view bytes)>& take);

// Passes a whole file to the reader, then finishes the reader. Errors: those of InputFile.
Status read_step_lines(const std::filesystem::path& path, StepLineReader& lines);

}  // namespace cox::io
