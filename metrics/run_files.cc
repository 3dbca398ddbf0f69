#include "metrics/run_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>

#include "coordinator/io/file.h"

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

// The text after `"key":` in JSON that we wrote ourselves; empty when it is not there.
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

// The last `bytes` of the file.
Result<std::string> read_end(const fs::path& file, std::uintmax_t size, std::size_t bytes) {
  std::ifstream in(file, std::ios::binary);
  std::string text(bytes, '\0');
  in.seekg(static_cast<std::streamoff>(size - bytes));
  if (!in.read(text.data(), static_cast<std::streamsize>(bytes)))
    return file_error("read", file, errno);
  return text;
}

// Bytes of `text` to keep: whole lines only, without the newest ones from `resume_step` on.
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

// The same of a whole file, from an end of it that is large enough to say.
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

}  // namespace cox::metrics
