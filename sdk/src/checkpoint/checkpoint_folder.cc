#include "sdk/src/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coordinator/io/content_hash.h"
#include "coordinator/io/file.h"
#include "coordinator/io/limits.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/runtime/saved_state.h"
#include "coxswain/safetensors.h"
#include "sdk/src/checkpoint/tensor_file.h"

namespace cox::detail {
namespace {

namespace fs = std::filesystem;

// Names within the directory that are no saves. What begins with a dot is removed by the next job.
constexpr std::string_view kLock = "saves.lock";
constexpr std::string_view kWriting = ".writing-";
constexpr std::string_view kRemoving = ".removing-";
constexpr const char* kDamaged = ".damaged";
// The files of a save that hold tensors. The first one also tells the place in the run.
struct TensorFile {
  const char* name;
  std::vector<NamedTensor> Checkpoint::*tensors;
  bool is_optional;  // only there where it has something in it
};
constexpr TensorFile kFiles[] = {{"model.safetensors", &Checkpoint::model, false},
                                 {"optimizer.safetensors", &Checkpoint::optimizer, false},
                                 {"reducer.safetensors", &Checkpoint::reducer, true},
                                 {"numbers.safetensors", &Checkpoint::numbers, true},
                                 {"parts.safetensors", &Checkpoint::parts, true}};
constexpr const char* kControl = "control.state";

// Writes the files and tells in `manifest` what was written.
Status write_files(const fs::path& folder, const Checkpoint& checkpoint, std::string_view control,
                   io::SaveManifest& manifest) {
  for (const TensorFile& file : kFiles) {
    const std::vector<NamedTensor>& tensors = checkpoint.*file.tensors;
    if (file.is_optional && tensors.empty()) continue;
    const io::Metadata metadata = &file == kFiles ? io::describe(checkpoint.position)
                                                  : io::describe_step(checkpoint.position.step);
    auto written = write_tensor_file(folder / file.name, tensors, metadata);
    if (!written.ok()) return written.status();
    manifest.files.push_back(std::move(written->file));
    std::ranges::move(written->pieces, std::back_inserter(manifest.pieces));
  }
  if (control.empty()) return ok_status();
  if (Status s = io::replace_file(folder / kControl, control); !s.ok()) return s;
  const auto content = io::content_of(folder / kControl);
  if (content.ok()) manifest.files.push_back({kControl, content->bytes, content->hash});
  return content.status();
}

bool has_file(const io::SaveManifest& manifest, std::string_view name) {
  return std::ranges::find(manifest.files, name, &io::SaveFile::name) != manifest.files.end();
}

int rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
}

// NFS, for one, knows neither kind of rename.
bool is_unknown_flag(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

Status not_own(const fs::path& save) {
  return failed_precondition(
      "expected no save of that step, or one of this job, found one that "
      "another job wrote; nothing was changed: save to another folder, or move " +
      save.string() + " away");
}

}  // namespace

Result<CheckpointFolder> CheckpointFolder::open(fs::path directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  // All ranks probe the folder at once, so each under a name of its own.
  std::string probe = (directory / ".writing-probe-XXXXXX").string();
  if (!error && ::mkdtemp(probe.data()) == nullptr) error.assign(errno, std::generic_category());
  if (error) {
    return failed_precondition(
        "checkpoint directory " + directory.string() + ": expected a folder to write to, found: " +
        io::errno_text(error.value()) + "; set checkpoint.directory to another one");
  }
  fs::remove(probe, error);
  return CheckpointFolder(std::move(directory));
}

Status CheckpointFolder::claim(SaveWriter writer) {
  writer_ = std::move(writer);
  auto lock = io::FolderLock::take(directory_, kLock, writer_.name, draw_id(),
                                   io::system_lock_calls(), writer_.lock_patience);
  if (!lock.ok()) return lock.status().with_context("checkpoint.directory");
  lock_.emplace(std::move(*lock));
  remove_leftovers();
  return ok_status();
}

void CheckpointFolder::join(SaveWriter writer) {
  writer_ = std::move(writer);
  lock_.emplace(io::FolderLock::of_job(directory_, kLock, draw_id()));
}

std::string CheckpointFolder::draw_id() {
  const std::uint64_t high = writer_.random();
  return io::save_id(high, writer_.random());
}

void CheckpointFolder::leave_to_other() {
  own_.insert(draw_id());
}

std::optional<fs::path> CheckpointFolder::newest() const {
  const auto all = io::saves_in(directory_);
  if (all.empty()) return std::nullopt;
  return all.back();
}

fs::path CheckpointFolder::save_of(std::uint64_t step) const {
  return directory_ / io::save_name(step);
}

fs::path CheckpointFolder::working_name(std::string_view purpose, std::uint64_t step) const {
  return directory_ / concat(purpose, lock_->token().substr(0, 8), "-", io::save_name(step));
}

void CheckpointFolder::remove_leftovers() const {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (const auto& entry : fs::directory_iterator(directory_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kWriting) || name.starts_with(kRemoving))
      leftovers.push_back(entry.path());
  }
  for (const fs::path& path : leftovers) fs::remove_all(path, error);
}

bool CheckpointFolder::is_own(const fs::path& save) const {
  return own_.contains(io::id_of_save(save));
}

Status CheckpointFolder::write(const Checkpoint& checkpoint, std::string_view control,
                               std::uint32_t keep) {
  const std::string id = draw_id();
  const std::uint64_t step = checkpoint.position.step;
  const fs::path final_path = save_of(step);
  const fs::path temporary = working_name(kWriting, step);
  const std::string context = "checkpoint " + final_path.string();
  if (Status held = lock_->check_held(); !held.ok()) return held.with_context(context);
  std::error_code error;
  fs::remove_all(temporary, error);
  if (!fs::create_directory(temporary, error))
    return resource_exhausted(context +
                              ": cannot create a folder for it: " + io::errno_text(error.value()));
  io::SaveManifest manifest{.id = id,
                            .step = step,
                            .incarnation = checkpoint.incarnation,
                            .world_size = checkpoint.world_size,
                            .writer = writer_.name,
                            .written = writer_.now()};
  Status written = write_files(temporary, checkpoint, control, manifest);
  if (written.ok()) written = io::write_manifest(temporary, manifest);
  if (written.ok()) written = io::sync_folder(temporary);
  if (written.ok()) written = put_in_place(temporary, final_path);
  if (!written.ok()) {
    fs::remove_all(temporary, error);
    return written.with_context(context);
  }
  own_.insert(manifest.id);
  remove_others(final_path, keep);
  return io::sync_folder(directory_).with_context(context + ": written, but");
}

Status CheckpointFolder::put_in_place(const fs::path& fresh, const fs::path& target) const {
  if (Status held = lock_->check_held(); !held.ok()) return held;
  int error = rename_with(fresh, target, RENAME_NOREPLACE);
  if (error == 0) return ok_status();
  std::error_code ignored;
  if (is_unknown_flag(error) && !fs::exists(target, ignored)) {
    error = rename_with(fresh, target, 0);
    if (error == 0) return ok_status();
  }
  if (fs::exists(target, ignored)) return replace(fresh, target);
  return io::errno_status(error, "cannot rename it into place", StatusCode::resource_exhausted);
}

// In one act where the file system can: a crash leaves one of the two. What was in the way is
// looked at again afterwards: another job may have put it there in the meantime.
Status CheckpointFolder::replace(const fs::path& fresh, const fs::path& target) const {
  if (!is_own(target)) return not_own(target);
  std::error_code error;
  if (rename_with(fresh, target, RENAME_EXCHANGE) == 0) {
    if (!is_own(fresh)) {
      static_cast<void>(rename_with(fresh, target, RENAME_EXCHANGE));
      return not_own(target);
    }
    fs::remove_all(fresh, error);
    return ok_status();
  }
  remove_own(target);
  fs::rename(fresh, target, error);
  if (error)
    return resource_exhausted("cannot rename it into place: ", io::errno_text(error.value()));
  return ok_status();
}

// It gets another name first, so that a save is never seen without some of its files.
void CheckpointFolder::remove_own(const fs::path& save) const {
  if (!is_own(save) || !lock_->check_held().ok()) return;
  const fs::path going = working_name(kRemoving, io::step_of_save(save).value_or(0));
  if (rename_with(save, going, 0) != 0) return;
  std::error_code error;
  if (is_own(going)) {
    fs::remove_all(going, error);
  } else {
    static_cast<void>(rename_with(going, save, RENAME_NOREPLACE));
  }
}

void CheckpointFolder::remove_others(const fs::path& newest, std::uint32_t keep) const {
  auto all = io::saves_in(directory_);
  while (!all.empty() && io::step_of_save(all.back()) > io::step_of_save(newest)) {
    remove_own(all.back());
    all.pop_back();
  }
  for (std::size_t i = 0; i + keep < all.size(); ++i) remove_own(all[i]);
}

Status CheckpointFolder::set_aside(const fs::path& save) const {
  if (Status held = lock_->check_held(); !held.ok()) return held;
  fs::path aside = save;
  aside += kDamaged;
  std::error_code ignored;
  for (int i = 2; fs::exists(aside, ignored); ++i) {
    aside = save;
    aside += concat(kDamaged, "-", i);
  }
  const int error = rename_with(save, aside, 0);
  return error == 0 ? ok_status()
                    : io::errno_status(error, save.string() + ": damaged, and cannot be renamed");
}

Result<fs::path> CheckpointFolder::newest_whole(
    OnDamage on_damage, const std::function<void(const std::string&)>& tell) {
  auto saves = io::saves_in(directory_);
  if (saves.empty()) return not_found(directory_.string());
  std::vector<Status> damage;  // of the newest ones, newest first
  for (; !saves.empty(); saves.pop_back()) {
    const Status whole = io::verify_save(saves.back(), io::VerifyDepth::files).status();
    if (whole.ok()) break;
    damage.push_back(whole);
    if (whole.code() != StatusCode::data_loss || on_damage == OnDamage::refuse) break;
  }
  const bool is_found = !saves.empty() && (damage.empty() || on_damage == OnDamage::set_aside) &&
                        (damage.empty() || damage.back().code() == StatusCode::data_loss);
  if (!is_found) return damage.front();
  for (const Status& each : damage) {
    const fs::path damaged = *newest();
    tell("save " + damaged.filename().string() + " is damaged and is kept as " +
         damaged.filename().string() + kDamaged + "; the one before is tried: " + each.message());
    if (Status aside = set_aside(damaged); !aside.ok()) return aside;
  }
  return saves.back();
}

void CheckpointFolder::go_on_from(const fs::path& save) {
  for (const fs::path& each : io::saves_in(directory_)) {
    const std::string id =
        io::step_of_save(each) <= io::step_of_save(save) ? io::id_of_save(each) : "";
    if (!id.empty()) own_.insert(id);
  }
}

Result<Checkpoint> CheckpointFolder::read(const fs::path& save) {
  std::error_code ignored;
  if (!fs::is_directory(save, ignored))
    return failed_precondition(
        save.string() +
        ": expected the save that rank 0 sees, found no such folder; it must be "
        "shared by all nodes");
  const auto manifest = io::verify_save(save, io::VerifyDepth::files);
  if (!manifest.ok()) return manifest.status();
  Checkpoint checkpoint;
  for (const TensorFile& file : kFiles) {
    const fs::path path = save / file.name;
    if (file.is_optional && !has_file(*manifest, file.name)) continue;
    auto read = read_safetensors(path);
    if (!read.ok()) return read.status();
    checkpoint.*file.tensors = std::move(read->tensors);
    if (&file != kFiles) continue;
    auto position = io::read_position(read->metadata);
    if (!position.ok()) return position.status().with_context(path.string());
    checkpoint.position = *position;
  }
  return checkpoint;
}

Result<ControlState> CheckpointFolder::read_control(const fs::path& save) {
  return runtime::load_control_state(save / kControl);
}

std::uint64_t fingerprint(const std::vector<NamedTensor>& tensors) {
  Fnv1a64 hash;
  for (const NamedTensor& named : tensors) {
    hash.add(named.name + ":" + c10::toString(named.tensor.scalar_type()));
    for (const std::int64_t size : named.tensor.sizes()) hash.add("," + std::to_string(size));
    hash.add(";");
  }
  return hash.value();
}

}  // namespace cox::detail
