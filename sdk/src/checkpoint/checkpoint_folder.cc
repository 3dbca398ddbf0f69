#include "sdk/src/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <system_error>

#include "coordinator/runtime/saved_state.h"
#include "coxswain/safetensors.h"
#include "sdk/src/checkpoint/checkpoint_metadata.h"

namespace cox::detail {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";  // then the step, in 12 digits or more
constexpr std::string_view kTemporary = ".writing-";
constexpr const char* kModel = "model.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kReducer = "reducer.safetensors";
constexpr const char* kNumbers = "numbers.safetensors";
constexpr const char* kControl = "control.state";

std::string folder_name(std::uint64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%012llu", static_cast<unsigned long long>(step));
  return name;
}

// Nothing for a folder that no save of ours is called: "step-best" is somebody's own.
std::optional<std::uint64_t> step_of(const fs::path& folder) {
  const std::string name = folder.filename().string();
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::uint64_t step = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  return folder_name(step) == name ? std::optional(step) : std::nullopt;
}

void sync_directory(const fs::path& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;
  ::fsync(descriptor);
  ::close(descriptor);
}

// Puts `fresh` where `target` is, in one act when the target exists: a crash leaves one of the two.
Status move_into_place(const fs::path& fresh, const fs::path& target) {
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) == 0) {
    std::error_code ignored;
    fs::remove_all(fresh, ignored);
    return ok_status();
  }
  std::error_code error;
  fs::remove_all(target, error);
  fs::rename(fresh, target, error);
  if (error) return resource_exhausted("cannot rename it into place: " + error.message());
  return ok_status();
}

// Files that a save has only where there is something in them.
Status write_any(const fs::path& file, const std::vector<NamedTensor>& tensors) {
  return tensors.empty() ? ok_status() : write_safetensors(file, tensors);
}

Result<std::vector<NamedTensor>> read_any(const fs::path& file) {
  if (!fs::exists(file)) return std::vector<NamedTensor>();
  auto read = read_safetensors(file);
  if (!read.ok()) return read.status();
  return std::move(read->tensors);
}

Status write_files(const fs::path& folder, const Checkpoint& checkpoint,
                   const ControlState* control) {
  const Metadata metadata = describe(checkpoint);
  if (Status s = write_safetensors(folder / kModel, checkpoint.model, metadata); !s.ok()) return s;
  if (Status s = write_safetensors(folder / kOptimizer, checkpoint.optimizer); !s.ok()) return s;
  if (Status s = write_any(folder / kReducer, checkpoint.reducer); !s.ok()) return s;
  if (Status s = write_any(folder / kNumbers, checkpoint.numbers); !s.ok()) return s;
  if (control == nullptr) return ok_status();
  return runtime::save_control_state(folder / kControl, *control);
}

}  // namespace

Result<CheckpointFolder> CheckpointFolder::open(fs::path directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  // All ranks probe the folder at once, so each under a name of its own.
  std::string probe = (directory / ".writing-probe-XXXXXX").string();
  if (!error && ::mkdtemp(probe.data()) == nullptr) error.assign(errno, std::generic_category());
  if (error) {
    return failed_precondition("checkpoint directory " + directory.string() +
                               ": expected a folder to write to, found: " + error.message() +
                               "; set checkpoint.directory to another one");
  }
  fs::remove(probe, error);
  return CheckpointFolder(std::move(directory));
}

std::vector<fs::path> CheckpointFolder::saves() const {
  std::vector<fs::path> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    if (step_of(entry.path())) found.push_back(entry.path());
  }
  std::ranges::sort(found, {}, step_of);
  return found;
}

std::optional<fs::path> CheckpointFolder::newest() const {
  const auto all = saves();
  if (all.empty()) return std::nullopt;
  return all.back();
}

void CheckpointFolder::remove_leftovers() const {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    if (entry.path().filename().string().starts_with(kTemporary)) {
      leftovers.push_back(entry.path());
    }
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

Status CheckpointFolder::write(const Checkpoint& checkpoint, const ControlState* control,
                               std::uint32_t keep) {
  remove_leftovers();
  const std::string name = folder_name(checkpoint.position.step);
  const fs::path final_path = directory_ / name;
  const fs::path temporary = directory_ / (std::string(kTemporary) + name);
  std::error_code error;
  if (!fs::create_directory(temporary, error)) {
    return resource_exhausted("checkpoint " + final_path.string() +
                              ": cannot create a folder for it: " + error.message());
  }
  Status written = write_files(temporary, checkpoint, control);
  if (written.ok()) {
    sync_directory(temporary);
    written = move_into_place(temporary, final_path);
  }
  if (!written.ok()) {
    fs::remove_all(temporary, error);
    return written.with_context("checkpoint " + final_path.string());
  }
  sync_directory(directory_);
  remove_others(final_path, keep);
  return ok_status();
}

void CheckpointFolder::remove_others(const fs::path& newest, std::uint32_t keep) const {
  std::error_code error;
  auto all = saves();
  while (!all.empty() && step_of(all.back()) > step_of(newest)) {
    fs::remove_all(all.back(), error);
    all.pop_back();
  }
  for (std::size_t i = 0; i + keep < all.size(); ++i) fs::remove_all(all[i], error);
}

Result<Checkpoint> CheckpointFolder::read(const fs::path& save) {
  auto model = read_safetensors(save / kModel);
  if (!model.ok()) return model.status();
  auto optimizer = read_safetensors(save / kOptimizer);
  if (!optimizer.ok()) return optimizer.status();
  Checkpoint checkpoint;
  if (Status s = read_description(model->metadata, checkpoint); !s.ok()) {
    return s.with_context((save / kModel).string());
  }
  checkpoint.model = std::move(model->tensors);
  checkpoint.optimizer = std::move(optimizer->tensors);
  auto reducer = read_any(save / kReducer);
  if (!reducer.ok()) return reducer.status();
  checkpoint.reducer = std::move(*reducer);
  auto numbers = read_any(save / kNumbers);
  if (!numbers.ok()) return numbers.status();
  checkpoint.numbers = std::move(*numbers);
  return checkpoint;
}

Result<ControlState> CheckpointFolder::read_control(const fs::path& save) {
  return runtime::load_control_state(save / kControl);
}

std::uint64_t fingerprint(const std::vector<NamedTensor>& tensors) {
  std::uint64_t hash = 1469598103934665603ull;  // FNV-1a
  const auto add = [&hash](const std::string& text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  };
  for (const NamedTensor& named : tensors) {
    add(named.name + ":" + c10::toString(named.tensor.scalar_type()));
    for (const std::int64_t size : named.tensor.sizes()) add("," + std::to_string(size));
    add(";");
  }
  return hash;
}

}  // namespace cox::detail
