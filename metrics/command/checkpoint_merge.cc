#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/io/large_file.h"
#include "coordinator/io/limits.h"
#include "coordinator/io/safetensors_header.h"
#include "metrics/command/commands.h"
#include "metrics/command/tensor_places.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTensors = ".safetensors";
constexpr std::uint64_t kBytesAtOnce = std::uint64_t{1} << 20;
constexpr std::uint32_t kMostFiles = 99'999;  // the most that five digits can number

using Metadata = std::map<std::string, std::string>;
using Places = std::vector<TensorPlace>;

std::uint64_t element_bytes(const TensorPlace& place) {
  return std::ranges::find(io::kSafetensorsDtypes, place.entry.dtype, &io::SafetensorsDtype::name)
      ->bytes;
}

// Decreasing element size keeps every tensor aligned.
void sort_for_file(Places& places) {
  std::ranges::sort(places, [](const TensorPlace& a, const TensorPlace& b) {
    return std::tuple(element_bytes(b), a.entry.name) < std::tuple(element_bytes(a), b.entry.name);
  });
}

Status copy_bytes(const TensorPlace& place, io::LargeFile& to) {
  const auto from = io::InputFile::open(place.file);
  if (!from.ok()) return from.status();
  std::vector<std::byte> bytes;
  for (std::uint64_t at = 0; at < place.bytes(); at += kBytesAtOnce) {
    bytes.resize(std::min(kBytesAtOnce, place.bytes() - at));
    Status done = from->read_at(place.offset + at, bytes.data(), bytes.size());
    if (done.ok()) done = to.write(bytes);
    if (!done.ok()) return done;
  }
  return ok_status();
}

// Writes a file of tensors from other files. Adds a "format", without which Transformers refuses a
// file.
Status write_file(const fs::path& path, Places places, Metadata metadata) {
  sort_for_file(places);
  metadata.emplace("format", "pt");
  io::SafetensorsHeader header{.entries = {}, .metadata = std::move(metadata)};
  std::uint64_t end = 0;
  for (const TensorPlace& place : places) {
    header.entries.push_back(place.entry);
    header.entries.back().begin = end;
    header.entries.back().end = end += place.bytes();
  }
  const std::string json = io::format_safetensors_header(header);
  const std::uint64_t length = json.size();
  if (length > io::kMaxSafetensorsHeaderBytes || places.size() > io::kMaxSafetensorsTensors)
    return invalid_argument(path.string(), ": expected fewer tensors in a file, found ",
                            places.size(), "; leave them in several files");
  auto file = io::LargeFile::create(path);
  if (!file.ok()) return file.status();
  Status written = file->write(std::as_bytes(std::span(&length, 1)));
  if (written.ok()) written = file->write(std::as_bytes(std::span(json)));
  for (const TensorPlace& place : places) {
    if (written.ok()) written = copy_bytes(place, *file);
  }
  if (written.ok()) written = file->commit();
  if (written.ok())
    fmt::print("{}: {} tensors, {}\n", printable(path.string()), places.size(),
               bytes_text(8 + length + end));
  return written;
}

Places places_of(const TensorGroup& group) {
  Places places;
  for (const auto& [name, place] : group.tensors) places.push_back(place);
  return places;
}

// Refuses a path that exists, so that no file is overwritten.
Status check_fresh(const fs::path& path) {
  if (!io::is_there(path)) return ok_status();
  return failed_precondition(path.string(), ": expected a new name, found an existing file");
}

Status make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return ok_status();
  return failed_precondition(folder.string(),
                             ": cannot be created: ", io::errno_text(error.value()));
}

// Divides tensors in their order into `files` runs, each of about the same number of bytes.
std::vector<Places> divide(const Places& places, std::uint32_t files) {
  std::uint64_t total = 0;
  for (const TensorPlace& place : places) total += place.bytes();
  std::vector<Places> runs(files);
  std::uint64_t before = 0;
  for (const TensorPlace& place : places) {
    const std::uint64_t middle = before + place.bytes() / 2;
    const std::uint64_t run = total == 0 ? 0 : middle / (total / files + 1);
    runs[std::min<std::uint64_t>(run, files - 1)].push_back(place);
    before += place.bytes();
  }
  return runs;
}

}  // namespace

Status merge_saves(const std::string& from, const std::string& to) {
  const auto groups = tensors_in(from);
  if (!groups.ok()) return groups.status();
  if (Status fresh = check_fresh(to); !fresh.ok()) return fresh;
  if (to.ends_with(kTensors)) {
    const auto model = groups->size() == 1 ? groups->begin() : groups->find("model.safetensors");
    if (model == groups->end())
      return not_found(from, ": expected model.safetensors among its files, found ", groups->size(),
                       " others; merge into a folder");
    return write_file(to, places_of(model->second), model->second.metadata);
  }
  if (Status made = make_folder(to); !made.ok()) return made;
  for (const auto& [name, group] : *groups) {
    const Status written = write_file(fs::path(to) / name, places_of(group), group.metadata);
    if (!written.ok()) return written;
  }
  return ok_status();
}

Status split_file(const std::string& from, const std::string& to, std::uint32_t files) {
  if (files == 0 || files > kMostFiles)
    return invalid_argument("expected 1 to ", kMostFiles, " files, found ", files);
  const auto groups = tensors_in(from);
  if (!groups.ok()) return groups.status();
  if (Status made = make_folder(to); !made.ok()) return made;
  for (const auto& [name, group] : *groups) {
    const std::string stem = fs::path(name).stem().string();
    std::map<std::string, std::string> file_of;
    std::uint64_t bytes = 0;
    std::uint32_t number = 0;
    for (const Places& run : divide(places_of(group), files)) {
      const std::string file = fmt::format("{}-{:05}-of-{:05}{}", stem, ++number, files, kTensors);
      for (const TensorPlace& place : run) {
        file_of[place.entry.name] = file;
        bytes += place.bytes();
      }
      Status written = check_fresh(fs::path(to) / file);
      if (written.ok()) written = write_file(fs::path(to) / file, run, group.metadata);
      if (!written.ok()) return written;
    }
    const fs::path index = fs::path(to) / (name + ".index.json");
    const Status indexed = io::replace_file(index, io::format_safetensors_index(file_of, bytes));
    if (!indexed.ok()) return indexed;
  }
  return ok_status();
}

}  // namespace cox::tools
