// RunStoreWriter keeps the record of every step of one rank, in DIR/rank<k>/run.json and
// steps.jsonl, and its table of operators in operators.json. Every rank has one. The training
// thread pushes rows, and a thread of the writer's own writes them out a few times a second. A full
// ring, a full disk and a lack of memory cost rows, which are counted, never the training. Where no
// thread can be started, flush() and close() write what the ring holds.
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

// The functions down to AppendFile open the files of one rank safely beside what is already there,
// and repair a torn end. They block on the disk.

// Makes a run directory or a rank's folder in it, with its parents; one that is there is fine.
// failed_precondition when it cannot be made: the message says what to do.
Status make_run_folder(const std::filesystem::path& folder);

// The run that a rank's folder holds already.
struct ExistingRun : WrittenRun {
  std::uint64_t steps = 0;  // whole lines in steps.jsonl
};

// nullopt when the folder holds no run. failed_precondition when one of its files is a link or no
// regular file, data_loss when steps.jsonl has no lines.
Result<std::optional<ExistingRun>> look_at_run(const std::filesystem::path& folder);

// Cuts a torn last line, then the newest rows whose step is >= `resume_step`. Returns the rows
// left.
Result<std::uint64_t> trim_steps(const std::filesystem::path& steps_file,
                                 std::optional<StepId> resume_step);

// AppendFile appends to one file and keeps no buffer of its own.
class AppendFile {
 public:
  static Result<AppendFile> open(const std::filesystem::path& file);

  // Appends all of `text`, or returns an error and leaves nothing but whole lines in the file:
  // failed_precondition when the file was removed.
  Status append(std::string_view text);

 private:
  AppendFile(io::OutputFile file, std::string name)
      : file_(std::move(file)), name_(std::move(name)) {}
  io::OutputFile file_;
  std::string name_;  // for messages
};

// RowRing passes rows from one writing to one reading thread, without locks, system calls or
// allocation after construction; a full ring refuses instead of waiting.
template <class Row>
class RowRing {
 public:
  // REQUIRES: capacity >= 1. It is rounded up to a power of two.
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

// OnExisting says how to treat a folder that holds a run already.
enum class OnExisting { refuse, append, replace };

struct RunStoreOptions {
  OnExisting on_existing = OnExisting::refuse;
  // With append: rows from this step on belong to work that was lost, and are cut.
  std::optional<StepId> resume_step;
  std::size_t ring_rows = 2048;  // about 1.1 MB, with the buckets beside them
  double flush_seconds = 0.2;
  // Called at most once a run, on the writing thread, with the first trouble.
  std::function<void(const Status&)> on_trouble;
};

class RunStoreWriter {
 public:
  // Creates the folder and run.json; blocks on the disk. Returns failed_precondition when the
  // directory may not be written to, or holds a run and `on_existing` says refuse, or a run of
  // another name.
  static Result<std::unique_ptr<RunStoreWriter>> open(const std::filesystem::path& directory,
                                                      RunInfo info, RunStoreOptions options = {});
  ~RunStoreWriter();  // close()
  RunStoreWriter(const RunStoreWriter&) = delete;
  RunStoreWriter& operator=(const RunStoreWriter&) = delete;

  // Copies the row, without allocation, system call or waiting. `buckets` of the same round, or
  // null; where there is no room for them the row goes without. Only one thread may call it.
  void push(const StepRow& row, const StepBuckets* buckets = nullptr) {
    if (buckets != nullptr) static_cast<void>(buckets_.push(*buckets));
    if (!ring_.push(row)) dropped_.fetch_add(1, std::memory_order_relaxed);
  }

  // Hands over the newest table of operators, which replaces the one in the file. Waits for no
  // disk. Only the thread that pushes may call it.
  void keep(std::shared_ptr<const OperatorTable> operators);

  // Returns the number of rows that were not kept so far. Any thread may call it.
  std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  // Returns when every row pushed before is in the file (or counted as dropped); waits for the
  // disk, a millisecond as a rule. Called on the thread that pushes.
  void flush();

  // Writes the remaining rows and the final run.json. Blocks on the disk; later calls do nothing.
  // Returns the first error of the whole run, else ok.
  Status close();

  const std::filesystem::path& folder() const { return folder_; }

 private:
  // Parts are the open folder and file of the rank, and the run that the folder held before.
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
  RunProgress progress_;            // of the writing thread; wall_time without this start
  std::uint64_t rows_in_hand_ = 0;  // popped, and not yet in the file
  std::chrono::steady_clock::time_point opened_;
  RowRing<StepRow> ring_;
  RowRing<StepBuckets> buckets_;             // each before its row
  std::optional<StepBuckets> next_buckets_;  // of buckets_, of the newest row or a later one
  std::atomic<std::uint64_t> dropped_{0};
  Status trouble_;

  std::mutex mutex_;              // guards what follows
  std::condition_variable wake_;  // of the writer
  std::condition_variable flushed_;
  std::uint64_t flushes_asked_ = 0;
  std::uint64_t flushes_done_ = 0;
  bool closing_ = true;                             // also before it is open
  std::shared_ptr<const OperatorTable> operators_;  // null = nothing new to write
  std::thread writer_;
};

}  // namespace cox::metrics
