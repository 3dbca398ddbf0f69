#include <fmt/core.h>

#include <chrono>
#include <filesystem>
#include <random>
#include <set>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/io/folder_lock.h"
#include "coordinator/io/save_folder.h"
#include "metrics/command/commands.h"
#include "metrics/format.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;

std::uint64_t bytes_of(const io::SaveManifest& manifest) {
  std::uint64_t bytes = 0;
  for (const io::SaveFile& file : manifest.files) bytes += file.bytes;
  return bytes;
}

bool is_save(const std::string& path) {
  return io::step_of_save(fs::path(path).lexically_normal()).has_value();
}

Result<std::vector<fs::path>> saves_of(const std::string& path) {
  if (is_save(path)) return std::vector<fs::path>{path};
  auto saves = io::saves_in(path);
  if (!saves.empty()) return saves;
  return not_found(path, ": expected a folder of saves (step-000000000100, ...), found none in it");
}

// Verifies a save and prints the result. Returns not_found if a job removed the save meanwhile.
Result<Verdict> verify(const fs::path& save) {
  const std::string name = save.filename().string();
  const auto manifest = io::verify_listed_save(save, io::VerifyDepth::pieces);
  if (manifest.status().code() == StatusCode::not_found) return manifest.status();
  if (!manifest.ok()) {
    fmt::print("{}: damaged: {}\n", name, printable(manifest.status().message()));
    return Verdict::no;
  }
  fmt::print("{}: whole, {} files of {}, {} tensors\n", name, manifest->files.size(),
             bytes_text(bytes_of(*manifest)), manifest->pieces.size());
  return Verdict::yes;
}

std::uint64_t random_bits() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

}  // namespace

Result<Verdict> list_saves(const std::string& directory) {
  const auto saves = saves_of(directory);
  if (!saves.ok()) return saves.status();
  Verdict all = Verdict::yes;
  for (const fs::path& save : *saves) {
    const std::string name = save.filename().string();
    const auto manifest = io::read_manifest(save);
    if (!manifest.ok() && !io::is_there(save)) continue;  // a job removed the save meanwhile
    if (!manifest.ok()) {
      fmt::print("{}  {}\n", name, printable(manifest.status().message()));
      all = Verdict::no;
      continue;
    }
    fmt::print("{}  {:>10}  {}  {} ranks, start {}, {}\n", name, bytes_text(bytes_of(*manifest)),
               metrics::utc_text(manifest->written), manifest->world_size, manifest->incarnation,
               printable(manifest->writer));
  }
  return all;
}

// Lists again after a listed save has disappeared, because a running job may have removed that save
// and written newer ones.
Result<Verdict> verify_saves(const std::string& path) {
  std::set<fs::path> looked_at;
  Verdict all = Verdict::yes;
  for (bool is_pruned = true; is_pruned;) {
    is_pruned = false;
    const auto saves = saves_of(path);
    if (!saves.ok()) return saves.status();
    for (const fs::path& save : *saves) {
      if (!looked_at.insert(save).second) continue;
      const auto verdict = verify(save);
      if (!verdict.ok() && is_save(path)) return verdict.status();
      is_pruned = is_pruned || !verdict.ok();
      if (verdict.ok() && *verdict == Verdict::no) all = Verdict::no;
    }
  }
  return all;
}

Status seal_save(const std::string& path) {
  const fs::path save(path);
  io::SaveManifest manifest;
  manifest.id = io::save_id(random_bits(), random_bits());
  manifest.writer = "cox checkpoint seal on " + io::this_process_text();
  manifest.written = UnixTime{
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count()};
  Status described = io::describe_files(save, manifest);
  if (described.ok()) described = io::write_manifest(save, manifest);
  if (!described.ok()) return described;
  fmt::print("{}: sealed with {} files, {} tensors\n", save.filename().string(),
             manifest.files.size(), manifest.pieces.size());
  return ok_status();
}

}  // namespace cox::tools
