#include "metrics/run_store.h"

#include <chrono>
#include <utility>

#include "coordinator/io/file.h"
#include "coordinator/io/json.h"

namespace cox::metrics {
namespace {

namespace fs = std::filesystem;

constexpr double kRunJsonSeconds = 10;  // so that a killed run leaves fresh totals
constexpr std::size_t kBatchBytes = 64 * 1024;

Status refusal(const fs::path& folder, const ExistingRun& run) {
  return failed_precondition(
      "run directory: " + folder.string() + " already holds run \"" + run.name + "\" with " +
      std::to_string(run.steps) +
      " steps; choose another directory (COX_RUN_DIRECTORY=...), or resume it");
}

Status other_run(const fs::path& folder, const ExistingRun& run, const RunInfo& info) {
  return failed_precondition("run directory: " + folder.string() + " belongs to run \"" + run.name +
                             "\", expected \"" + info.name + "\"; choose another directory");
}

Status make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return ok_status();
  return failed_precondition("run directory: cannot create " + folder.string() + ": " +
                             error.message() +
                             "; choose a directory that you may write to (COX_RUN_DIRECTORY=...)");
}

// As it stands between quotes in run.json.
std::string written_name(const RunInfo& info) {
  const std::string quoted = io::json_string(info.name);
  return quoted.substr(1, quoted.size() - 2);
}

// Makes the folder ready for rows, and says where they start.
Result<RunProgress> prepare(const fs::path& folder, RunInfo& info, const RunStoreOptions& options) {
  if (Status made = make_folder(folder); !made.ok()) return made;
  const auto found = look_at_run(folder);
  if (!found.ok()) return found.status();
  RunProgress progress;
  if (!found->has_value()) return progress;
  const ExistingRun& run = **found;
  if (options.on_existing == OnExisting::refuse && run.steps > 0) return refusal(folder, run);
  if (options.on_existing != OnExisting::append) {
    std::error_code error;
    fs::remove(folder / "steps.jsonl", error);
    if (!error) return progress;
    return failed_precondition("run directory: cannot remove " + (folder / "steps.jsonl").string() +
                               ": " + error.message());
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

Result<std::unique_ptr<RunStoreWriter>> RunStoreWriter::open(const fs::path& directory,
                                                             RunInfo info,
                                                             RunStoreOptions options) {
  const fs::path folder = directory / ("rank" + std::to_string(info.rank.value()));
  const auto progress = prepare(folder, info, options);
  if (!progress.ok()) return progress.status();
  auto file = AppendFile::open(folder / "steps.jsonl");
  if (!file.ok()) return file.status();
  std::unique_ptr<RunStoreWriter> store(
      new RunStoreWriter(folder, std::move(info), std::move(options), std::move(*file), *progress));
  if (Status written = store->write_run_json(); !written.ok()) return written;
  store->writer_ = std::thread([raw = store.get()] { raw->work(); });
  return store;
}

RunStoreWriter::RunStoreWriter(fs::path folder, RunInfo info, RunStoreOptions options,
                               AppendFile file, RunProgress progress)
    : folder_(std::move(folder)),
      info_(std::move(info)),
      options_(std::move(options)),
      file_(std::move(file)),
      progress_(progress),
      opened_(std::chrono::steady_clock::now()),
      ring_(options_.ring_rows) {}

RunStoreWriter::~RunStoreWriter() {
  (void)close();
}

void RunStoreWriter::flush() {
  std::unique_lock lock(mutex_);
  if (closing_) return;
  const std::uint64_t mine = ++flushes_asked_;
  wake_.notify_one();
  flushed_.wait(lock, [&] { return flushes_done_ >= mine; });
}

Status RunStoreWriter::close() {
  if (!writer_.joinable()) return trouble_;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  writer_.join();
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
    drain();
    {
      const std::lock_guard lock(mutex_);
      flushes_done_ = asked;
    }
    flushed_.notify_all();
    const auto now = std::chrono::steady_clock::now();
    if (last || now - written > std::chrono::duration<double>(kRunJsonSeconds)) {
      note(write_run_json());
      written = now;
    }
  }
}

void RunStoreWriter::drain() {
  std::string text;
  std::uint64_t rows = 0;
  const auto flush = [&] {
    const Status status = text.empty() ? ok_status() : file_.append(text);
    if (status.ok())
      progress_.n_steps += rows;
    else
      dropped_.fetch_add(rows, std::memory_order_relaxed);
    note(status);
    text.clear();
    rows = 0;
  };
  while (const std::optional<StepRow> row = ring_.pop()) {
    text += step_line(*row);
    ++rows;
    if (text.size() >= kBatchBytes) flush();
  }
  flush();
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
