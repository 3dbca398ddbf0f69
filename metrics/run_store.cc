#include "metrics/run_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <utility>

#include "coordinator/io/file.h"
#include "coordinator/io/json.h"

namespace cox::metrics {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPartBytes = 1 << 16;
constexpr std::uint64_t kMostRunJsonBytes = 16 << 20;

Status file_error(std::string_view what, const fs::path& file, int error) {
  Status status =
      io::errno_status(error, "run directory: cannot " + std::string(what) + " " + file.string());
  if (status.code() != StatusCode::failed_precondition) return status;
  return failed_precondition(status.message() +
                             "; choose a directory that you may write to (COX_RUN_DIRECTORY=...)");
}

// Returns the text after `"key":` in JSON that we wrote ourselves; empty when it is not there.
std::string_view after_key(std::string_view json, std::string_view key) {
  const std::string quoted = '"' + std::string(key) + "\":";
  const auto at = json.find(quoted);
  return at == std::string_view::npos ? std::string_view() : json.substr(at + quoted.size());
}

double number_of(std::string_view json, std::string_view key) {
  const std::string_view text = after_key(json, key);
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

std::string text_of(std::string_view json, std::string_view key) {
  std::string_view text = after_key(json, key);
  if (text.empty() || text.front() != '"') return {};
  text.remove_prefix(1);
  std::size_t end = 0;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  return std::string(text.substr(0, end));
}

// A record of days is larger than memory, so it is read in parts.
Result<std::uint64_t> count_lines(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return file_error("read", file, errno);
  std::string part(kPartBytes, '\0');
  std::uint64_t lines = 0;
  while (in.read(part.data(), static_cast<std::streamsize>(part.size())) || in.gcount() > 0) {
    lines += static_cast<std::uint64_t>(std::count(part.begin(), part.begin() + in.gcount(), '\n'));
  }
  return lines;
}

// Returns the last `bytes` of the file.
Result<std::string> read_end(const fs::path& file, std::uintmax_t size, std::size_t bytes) {
  std::ifstream in(file, std::ios::binary);
  std::string text(bytes, '\0');
  in.seekg(static_cast<std::streamoff>(size - bytes));
  if (!in.read(text.data(), static_cast<std::streamsize>(bytes)))
    return file_error("read", file, errno);
  return text;
}

// Returns how many bytes of `text` to keep: whole lines only, without the newest ones from
// `resume_step` on.
std::size_t kept_bytes(std::string_view text, std::optional<StepId> resume_step) {
  std::size_t keep = text.rfind('\n') + 1;  // npos + 1 = 0
  while (resume_step && keep > 0) {
    const auto before = keep >= 2 ? text.rfind('\n', keep - 2) : std::string_view::npos;
    const std::size_t start = before == std::string_view::npos ? 0 : before + 1;
    const double step = number_of(text.substr(start, keep - start), "step");
    if (step < static_cast<double>(resume_step->value())) break;
    keep = start;
  }
  return keep;
}

// Returns the same of a whole file, after reading as much of its end as that takes.
Result<std::uintmax_t> kept_bytes(const fs::path& file, std::uintmax_t size,
                                  std::optional<StepId> resume_step) {
  for (std::uintmax_t end = kPartBytes;; end *= 2) {
    const std::uintmax_t bytes = std::min(end, size);
    const auto text = read_end(file, size, static_cast<std::size_t>(bytes));
    if (!text.ok()) return text.status();
    const bool is_whole = bytes == size;
    const std::size_t whole_lines = is_whole ? 0 : text->find('\n') + 1;  // from there on
    const std::size_t kept = kept_bytes(std::string_view(*text).substr(whole_lines), resume_step);
    if (is_whole || kept > 0) return size - bytes + whole_lines + kept;
  }
}

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

// Returns the name as it stands between quotes in run.json.
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

Result<std::optional<ExistingRun>> look_at_run(const fs::path& folder) {
  std::error_code error;
  const bool has_run = fs::exists(folder / "run.json", error);
  const bool has_steps = fs::exists(folder / "steps.jsonl", error);
  if (!has_run && !has_steps) return std::optional<ExistingRun>();
  ExistingRun run;
  if (has_run) {
    const auto json = io::read_file(folder / "run.json", kMostRunJsonBytes);
    if (!json.ok()) return json.status();
    run.name = text_of(*json, "name");
    run.started = number_of(*json, "started");
    run.wall_time = number_of(*json, "wall_time");
  }
  if (has_steps) {
    const auto lines = count_lines(folder / "steps.jsonl");
    if (!lines.ok()) return lines.status();
    run.steps = *lines;
  }
  return std::optional<ExistingRun>(run);
}

Result<std::uint64_t> trim_steps(const fs::path& steps_file, std::optional<StepId> resume_step) {
  std::error_code error;
  if (!fs::exists(steps_file, error)) return std::uint64_t{0};
  const std::uintmax_t size = fs::file_size(steps_file, error);
  if (error) return file_error("read", steps_file, error.value());
  const bool keeps_none = resume_step == StepId(0);
  const auto keep = keeps_none ? Result<std::uintmax_t>(std::uintmax_t{0})
                               : kept_bytes(steps_file, size, resume_step);
  if (!keep.ok()) return keep.status();
  if (*keep != size) fs::resize_file(steps_file, *keep, error);
  if (error) return file_error("cut", steps_file, error.value());
  return count_lines(steps_file);
}

Result<AppendFile> AppendFile::open(const fs::path& file) {
  const int descriptor = ::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor < 0) return file_error("open", file, errno);
  return AppendFile(descriptor);
}

AppendFile::~AppendFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status AppendFile::append(std::string_view text) {
  struct stat before {};
  const bool known = ::fstat(descriptor_, &before) == 0 && S_ISREG(before.st_mode);
  const int error = io::write_all(descriptor_, text);
  if (error == 0) return ok_status();
  const Status status = file_error("write", "steps.jsonl", error);
  if (known && ::ftruncate(descriptor_, before.st_size) != 0)
    return status.with_context("and a torn line is left behind");
  return status;
}

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
