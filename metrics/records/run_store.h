// RunStoreWriter keeps the record of every step of one rank in DIR/rank<k>/: run.json, steps.jsonl
// and the table of operators, operators.json. The training thread pushes rows; a thread of the
// writer writes them a few times a second. A full ring, a full disk or a lack of memory costs rows,
// which are counted, but never stops training. If no thread can start, flush() and close() write
// the ring's rows.
#pragma once

#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "coordinator/core/operator_table.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/io/kept_folder.h"
#include "coordinator/io/output_file.h"
#include "metrics/records/run_format.h"
#include "metrics/records/step_row.h"

namespace cox::metrics {

// The functions down to AppendFile open the files of one rank safely beside an existing record, and
// repair a torn end. All of them block on the disk.

// Makes a run directory, or a rank's folder in a run directory, with its parents. An existing
// folder is fine. Error: failed_precondition, with advice in the message.
Status make_run_folder(const std::filesystem::path& folder);

// The run in a rank's existing folder.
struct ExistingRun : WrittenRun {
  std::uint64_t steps = 0;  // whole lines in steps.jsonl
};

// Reads the existing run; nullopt if the folder holds none. Errors: failed_precondition if a file
// is a link or no regular file, data_loss if steps.jsonl has no lines.
Result<std::optional<ExistingRun>> look_at_run(const std::filesystem::path& folder);

// Cuts a torn last line, then the newest rows whose step is >= `resume_step`. Returns the rows
// left.
Result<std::uint64_t> trim_steps(const std::filesystem::path& steps_file,
                                 std::optional<StepId> resume_step);

// AppendFile appends to one file and keeps no buffer of its own.
class AppendFile {
 public:
  static Result<AppendFile> open(const std::filesystem::path& file);

  // Appends all of `text`. On an error, leaves only whole lines in the file. failed_precondition if
  // the file was removed.
  Status append(std::string_view text);

 private:
  AppendFile(io::OutputFile file, std::string name)
      : file_(std::move(file)), name_(std::move(name)) {}
  io::OutputFile file_;
  std::string name_;  // for messages
};

// RowRing passes rows from one writing to one reading thread, without locks, system calls or
// allocation after construction. A full ring refuses rows instead of waiting.
template <class Row>
class RowRing {
 public:
  // Rounds the capacity up to a power of two. REQUIRES: capacity >= 1.
  explicit RowRing(std::size_t capacity) : rows_(std::bit_ceil(capacity)) {}

  std::size_t capacity() const { return rows_.size(); }

  // Called on the writing thread. Returns false when the ring is full.
  bool push(const Row& row) {
    const std::size_t at = written_.load(std::memory_order_relaxed);
    if (at - read_.load(std::memory_order_acquire) == rows_.size()) return false;
    rows_[at & (rows_.size() - 1)] = row;
    written_.store(at + 1, std::memory_order_release);
    return true;
  }

  // Called on the reading thread. Returns nothing when the ring is empty.
  std::optional<Row> pop() {
    const std::size_t at = read_.load(std::memory_order_relaxed);
    if (at == written_.load(std::memory_order_acquire)) return std::nullopt;
    const Row row = rows_[at & (rows_.size() - 1)];
    read_.store(at + 1, std::memory_order_release);
    return row;
  }

 private:
  std::vector<Row> rows_;
  alignas(64) std::atomic<std::size_t> written_{0};
  alignas(64) std::atomic<std::size_t> read_{0};
};

// OnExisting chooses what to do with a folder that already holds a run.
enum class OnExisting { refuse, append, replace };

struct RunStoreOptions {
  OnExisting on_existing = OnExisting::refuse;
  // With append: cuts rows from this step on, which belong to lost work.
  std::optional<StepId> resume_step;
  std::size_t ring_rows = 2048;  // about 1.1 MB, with the rows' buckets
  double flush_seconds = 0.2;
  // Called at most once a run, on the writing thread, with the first error.
  std::function<void(const Status&)> on_trouble;
};

class RunStoreWriter {
 public:
  // Creates the folder and run.json. Blocks on the disk. Errors: failed_precondition if the
  // directory is not writable, holds a run of another name, or holds a run and `on_existing` is
  // refuse.
  static Result<std::unique_ptr<RunStoreWriter>> open(const std::filesystem::path& directory,
                                                      RunInfo info, RunStoreOptions options = {});
  ~RunStoreWriter();  // close()
  RunStoreWriter(const RunStoreWriter&) = delete;
  RunStoreWriter& operator=(const RunStoreWriter&) = delete;

  // Copies the row, without allocation, system call or waiting. `buckets` are those of the same
  // round, or null. Drops the buckets, but not the row, if there is no room. Only one thread may
  // call push().
  void push(const StepRow& row, const StepBuckets* buckets = nullptr) {
    if (buckets != nullptr) static_cast<void>(buckets_.push(*buckets));
    if (!ring_.push(row)) dropped_.fetch_add(1, std::memory_order_relaxed);
  }

  // Hands over the newest table of operators, which replaces the one in the file. Does not wait for
  // the disk. Call it on the pushing thread only.
  void keep(std::shared_ptr<const OperatorTable> operators);

  // Returns the number of rows dropped so far. Any thread may call it.
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  // Waits until every row pushed before is in the file or counted as dropped. Blocks on the disk,
  // usually for a millisecond. Call it on the pushing thread.
  void flush();

  // Writes the remaining rows and the final run.json. Blocks on the disk; later calls do nothing.
  // Returns the first error of the whole run, else ok.
  Status close();

  const std::filesystem::path& folder() const { return folder_; }

 private:
  // The rank's open folder and file, and the progress of the folder's existing run.
  struct Parts {
    io::KeptFolder folder;
    AppendFile file;
    RunProgress progress;
  };
  RunStoreWriter(std::filesystem::path folder, RunInfo info, RunStoreOptions options, Parts parts);
  void work();
  bool is_in_place();
  void write_out();
  void drain();
  template <class Part>
  void run_part(const Part& part);
  const StepBuckets* buckets_of(RoundId round);
  void write_operators();
  Status write_run_json();
  void note(const Status& status);
  bool has_thread() const { return writer_.joinable(); }

  std::filesystem::path folder_;
  RunInfo info_;
  RunStoreOptions options_;
  io::KeptFolder kept_folder_;
  AppendFile file_;
  RunProgress progress_;            // used by the writing thread; wall_time without this start
  std::uint64_t rows_in_hand_ = 0;  // popped, but not yet written
  std::chrono::steady_clock::time_point opened_;
  RowRing<StepRow> ring_;
  RowRing<StepBuckets> buckets_;             // each before its row
  std::optional<StepBuckets> next_buckets_;  // popped, for the newest row or a later one
  std::atomic<std::uint64_t> dropped_{0};
  Status trouble_;

  std::mutex mutex_;              // guards the members below
  std::condition_variable wake_;  // wakes the writer
  std::condition_variable flushed_;
  std::uint64_t flushes_asked_ = 0;
  std::uint64_t flushes_done_ = 0;
  bool closing_ = true;                             // also true before the writer is open
  std::shared_ptr<const OperatorTable> operators_;  // null = nothing new to write
  std::thread writer_;
};

}  // namespace cox::metrics
