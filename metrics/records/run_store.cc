#include "metrics/records/run_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "coordinator/io/limits.h"
#include "coordinator/io/thread.h"
#include "metrics/records/host_lines.h"
#include "metrics/records/operator_table_file.h"

namespace cox::metrics {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPartBytes = 1 << 16;
constexpr std::uint64_t kMostRunJsonBytes = 16 << 20;
constexpr std::uint64_t kMostLineBytes = 16 << 20;  // thousands of times the length of a row

// Adds advice to the error of a file or folder that the job cannot write to.
Status with_advice(const Status& status) {
  if (status.code() != StatusCode::failed_precondition) return status;
  return failed_precondition(fmt::format(
      "{}; choose a directory that you may write to (COX_RUN_DIRECTORY=...)", status.message()));
}

Status file_error(std::string_view what, const fs::path& file, int error) {
  return with_advice(
      io::errno_status(error, fmt::format("run directory: cannot {} {}", what, file.string())));
}

// Opens one of our own files. Refuses a link or a pipe in its place.
Result<io::InputFile> open_own(const fs::path& file) {
  auto opened = io::InputFile::open(file, io::Links::refused);
  if (!opened.ok()) return opened.status().with_context("run directory");
  return opened;
}

// Counts lines in parts, because the record of a job of days is larger than memory. Refuses endless
// bytes without a line feed, which are no record.
Result<std::uint64_t> count_lines(const fs::path& file) {
  const auto in = open_own(file);
  if (!in.ok()) return in.status();
  std::uint64_t lines = 0;
  std::uint64_t since_line = 0;
  const Status read = in->each_piece(kPartBytes, [&](std::string_view part) {
    const auto found = static_cast<std::uint64_t>(std::ranges::count(part, '\n'));
    since_line = found > 0 ? 0 : since_line + part.size();
    lines += found;
    if (since_line <= kMostLineBytes) return ok_status();
    return data_loss("expected one line for each step, found ", since_line,
                     " bytes without a line end; move the file away");
  });
  if (!read.ok()) return read.with_context(fmt::format("run directory: {}", file.string()));
  return lines;
}

// Returns the last `bytes` of the file.
Result<std::string> read_end(const io::InputFile& in, std::size_t bytes) {
  std::string text(bytes, '\0');
  const Status read = in.read_at(in.size_bytes() - bytes, text.data(), bytes);
  if (!read.ok()) return read.with_context("run directory: steps.jsonl");
  return text;
}

// Returns kept_bytes() of the whole file, but reads only as much of the end as needed.
Result<std::uint64_t> kept_of_file(const io::InputFile& in, std::optional<StepId> resume_step) {
  const std::uint64_t size = in.size_bytes();
  for (std::uint64_t end = kPartBytes;; end *= 2) {
    const std::uint64_t bytes = std::min(end, size);
    const auto text = read_end(in, static_cast<std::size_t>(bytes));
    if (!text.ok()) return text.status();
    const bool is_whole = bytes == size;
    const std::size_t whole_lines = is_whole ? 0 : text->find('\n') + 1;  // first whole line
    const std::size_t kept = kept_bytes(std::string_view(*text).substr(whole_lines), resume_step);
    if (is_whole || kept > 0) return size - bytes + whole_lines + kept;
  }
}

constexpr double kRunJsonSeconds = 10;  // keeps the totals of a killed run fresh
constexpr std::size_t kBatchBytes = 64 * 1024;

Status refusal(const fs::path& folder, const ExistingRun& run) {
  return failed_precondition(
      fmt::format("run directory: {} already holds run \"{}\" with {} steps; choose another "
                  "directory (COX_RUN_DIRECTORY=...), or resume that run",
                  folder.string(), run.name, run.steps));
}

Status other_run(const fs::path& folder, const ExistingRun& run, const RunInfo& info) {
  return failed_precondition(fmt::format(
      "run directory: {} belongs to run \"{}\", expected \"{}\"; choose another directory",
      folder.string(), run.name, info.name));
}

// Returns the name as written between quotes in run.json.
std::string written_name(const RunInfo& info) {
  const std::string quoted = io::json_string(info.name);
  return quoted.substr(1, quoted.size() - 2);
}

// Prepares the folder for rows. Returns the progress from which rows go on.
Result<RunProgress> prepare(const fs::path& folder, RunInfo& info, const RunStoreOptions& options) {
  if (Status made = make_run_folder(folder); !made.ok()) return made;
  const auto found = look_at_run(folder);
  if (!found.ok()) return found.status();
  RunProgress progress;
  if (!found->has_value()) return progress;
  const ExistingRun& run = **found;
  if (options.on_existing == OnExisting::refuse && run.steps > 0) return refusal(folder, run);
  if (options.on_existing != OnExisting::append) {
    std::error_code error;
    fs::remove(folder / io::kOperatorTableName, error);
    fs::remove(folder / io::kHostFileName, error);
    fs::remove(folder / "steps.jsonl", error);
    if (!error) return progress;
    return failed_precondition(fmt::format("run directory: cannot remove {}: {}",
                                           (folder / "steps.jsonl").string(),
                                           io::errno_text(error.value())));
  }
  if (!run.name.empty() && run.name != written_name(info)) return other_run(folder, run, info);
  const auto left = trim_steps(folder / "steps.jsonl", options.resume_step);
  if (!left.ok()) return left.status();
  progress.n_steps = *left;
  progress.wall_time = run.wall_time;
  if (run.started > 0) info.started = run.started;
  return progress;
}

}  // namespace

Status make_run_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return ok_status();
  return failed_precondition(
      fmt::format("run directory: cannot create {}: {}; choose a directory that you may write to "
                  "(COX_RUN_DIRECTORY=...)",
                  folder.string(), io::errno_text(error.value())));
}

Result<std::optional<ExistingRun>> look_at_run(const fs::path& folder) {
  const bool has_run = io::is_there(folder / "run.json");
  const bool has_steps = io::is_there(folder / "steps.jsonl");
  if (!has_run && !has_steps) return std::optional<ExistingRun>();
  ExistingRun run;
  if (has_run) {
    const auto json = io::read_file(folder / "run.json", kMostRunJsonBytes, io::Links::refused);
    if (!json.ok()) return json.status().with_context("run directory");
    static_cast<WrittenRun&>(run) = read_run_json(*json);
  }
  if (has_steps) {
    const auto lines = count_lines(folder / "steps.jsonl");
    if (!lines.ok()) return lines.status();
    run.steps = *lines;
  }
  return std::optional<ExistingRun>(run);
}

Result<std::uint64_t> trim_steps(const fs::path& steps_file, std::optional<StepId> resume_step) {
  if (!io::is_there(steps_file)) return std::uint64_t{0};
  const auto in = open_own(steps_file);
  if (!in.ok()) return in.status();
  const bool keeps_none = resume_step == StepId(0);
  const auto keep =
      keeps_none ? Result<std::uint64_t>(std::uint64_t{0}) : kept_of_file(*in, resume_step);
  if (!keep.ok()) return keep.status();
  if (*keep != in->size_bytes()) {
    auto file = io::OutputFile::open(steps_file);
    if (!file.ok()) return with_advice(file.status().with_context("run directory"));
    if (const int error = file->cut(*keep); error != 0) return file_error("cut", steps_file, error);
  }
  return count_lines(steps_file);
}

Result<AppendFile> AppendFile::open(const fs::path& file) {
  auto opened = io::OutputFile::open(file, 0644);
  if (!opened.ok()) return with_advice(opened.status().with_context("run directory"));
  return AppendFile(std::move(*opened), file.filename().string());
}

Status AppendFile::append(std::string_view text) {
  if (!file_.has_name())
    return failed_precondition("run directory: ", name_,
                               ": the file was removed while this job wrote to it");
  const std::uint64_t before = file_.size_bytes();
  const int error = file_.append(text);
  if (error == 0) return ok_status();
  const Status status = file_error("write", name_, error);
  if (file_.cut(before) != 0)
    return status.with_context("an incomplete line remains at the end of the file");
  return status;
}

Result<std::unique_ptr<RunStoreWriter>> RunStoreWriter::open(const fs::path& directory,
                                                             RunInfo info,
                                                             RunStoreOptions options) {
  const fs::path folder = directory / fmt::format("rank{}", info.rank.value());
  const auto progress = prepare(folder, info, options);
  if (!progress.ok()) return progress.status();
  io::remove_temporaries(folder);
  if (info.rank == kRoot) io::remove_temporaries(directory);  // rank 0 alone writes other files
  auto kept = io::KeptFolder::open(folder);
  if (!kept.ok()) return with_advice(kept.status().with_context("run directory"));
  auto file = AppendFile::open(folder / "steps.jsonl");
  if (!file.ok()) return file.status();
  std::unique_ptr<RunStoreWriter> store(
      new RunStoreWriter(folder, std::move(info), std::move(options),
                         {std::move(*kept), std::move(*file), *progress}));
  if (Status written = store->write_run_json(); !written.ok()) return written;
  store->closing_ = false;
  auto writer = io::start_thread("run directory", [raw = store.get()] { raw->work(); });
  if (writer.ok())
    store->writer_ = *std::move(writer);
  else
    store->note(writer.status());
  return store;
}

RunStoreWriter::RunStoreWriter(fs::path folder, RunInfo info, RunStoreOptions options, Parts parts)
    : folder_(std::move(folder)),
      info_(std::move(info)),
      options_(std::move(options)),
      kept_folder_(std::move(parts.folder)),
      file_(std::move(parts.file)),
      progress_(parts.progress),
      opened_(std::chrono::steady_clock::now()),
      ring_(options_.ring_rows),
      buckets_(options_.ring_rows / StepBuckets::kEveryRounds + 1) {}

RunStoreWriter::~RunStoreWriter() {
  (void)close();
}

void RunStoreWriter::flush() {
  std::unique_lock lock(mutex_);
  if (closing_) return;
  if (!has_thread()) {
    lock.unlock();
    return write_out();
  }
  const std::uint64_t mine = ++flushes_asked_;
  wake_.notify_one();
  flushed_.wait(lock, [&] { return flushes_done_ >= mine; });
}

Status RunStoreWriter::close() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(closing_, true)) return trouble_;
  }
  wake_.notify_one();
  if (has_thread()) {
    writer_.join();
  } else {
    write_out();
    run_part([this] {
      if (is_in_place()) note(write_run_json());
    });
  }
  return trouble_;
}

void RunStoreWriter::work() {
  const auto pause = std::chrono::duration<double>(options_.flush_seconds);
  auto written = std::chrono::steady_clock::now();
  for (bool last = false; !last;) {
    std::uint64_t asked = 0;
    {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, pause, [this] { return closing_ || flushes_asked_ > flushes_done_; });
      last = closing_;
      asked = flushes_asked_;
    }
    write_out();
    {
      const std::lock_guard lock(mutex_);
      flushes_done_ = asked;
    }
    flushed_.notify_all();
    const auto now = std::chrono::steady_clock::now();
    if (last || now - written > std::chrono::duration<double>(kRunJsonSeconds)) {
      run_part([this] {
        if (is_in_place()) note(write_run_json());
      });
      written = now;
    }
  }
}

// Runs a part of the work. Out of memory costs the rows in hand.
template <class Part>
void RunStoreWriter::run_part(const Part& part) {
  try {
    try {
      part();
    } catch (const std::exception& error) {
      dropped_.fetch_add(std::exchange(rows_in_hand_, 0), std::memory_order_relaxed);
      note(io::failure_from(error).with_context("run directory"));
    }
  } catch (const std::exception&) {
    // The rows are counted even if there is no memory for a message.
  }
}

// Writes nothing into a folder that replaced this one: the folder may belong to another run.
bool RunStoreWriter::is_in_place() {
  const Status place = kept_folder_.check().with_context("run directory");
  note(place);
  return place.ok();
}

void RunStoreWriter::write_out() {
  bool is_here = false;  // checked first: a folder's error explains more than its rows' errors
  run_part([&] { is_here = is_in_place(); });
  run_part([this] { drain(); });
  if (is_here) run_part([this] { write_operators(); });
}

void RunStoreWriter::drain() {
  std::string text;
  const auto flush = [&] {
    const Status status = text.empty() ? ok_status() : file_.append(text);
    if (status.ok())
      progress_.n_steps += rows_in_hand_;
    else
      dropped_.fetch_add(rows_in_hand_, std::memory_order_relaxed);
    rows_in_hand_ = 0;
    note(status);
    text.clear();
  };
  while (const std::optional<StepRow> row = ring_.pop()) {
    ++rows_in_hand_;
    text += step_line(*row, buckets_of(row->round));
    if (text.size() >= kBatchBytes) flush();
  }
  flush();
}

// Skips the buckets of dropped rows. Rounds never repeat.
const StepBuckets* RunStoreWriter::buckets_of(RoundId round) {
  while (!next_buckets_ || next_buckets_->round < round) {
    next_buckets_ = buckets_.pop();
    if (!next_buckets_) return nullptr;
  }
  return next_buckets_->round == round ? &*next_buckets_ : nullptr;
}

void RunStoreWriter::keep(std::shared_ptr<const OperatorTable> operators) {
  const std::lock_guard lock(mutex_);
  operators_ = std::move(operators);
}

void RunStoreWriter::write_operators() {
  std::shared_ptr<const OperatorTable> newest;
  {
    const std::lock_guard lock(mutex_);
    newest.swap(operators_);
  }
  if (newest) note(io::replace_file(folder_ / io::kOperatorTableName, io::to_json(*newest)));
}

Status RunStoreWriter::write_run_json() {
  RunProgress progress = progress_;
  const std::chrono::duration<double> open_for = std::chrono::steady_clock::now() - opened_;
  progress.wall_time += open_for.count();
  progress.dropped_rows = dropped();
  return io::replace_file(folder_ / "run.json", run_json(info_, progress));
}

void RunStoreWriter::note(const Status& status) {
  if (status.ok() || !trouble_.ok()) return;
  trouble_ = status;
  if (options_.on_trouble) options_.on_trouble(status);
}

}  // namespace cox::metrics
