#include "sdk/src/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <system_error>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coordinator/io/content_hash.h"
#include "coordinator/io/file.h"
#include "coordinator/io/limits.h"
#include "coordinator/io/safetensors_header.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/runtime/saved_state.h"
#include "coxswain/safetensors.h"
#include "sdk/src/checkpoint/tensor_file.h"

namespace cox::detail {
namespace {

namespace fs = std::filesystem;

// Names within the directory that are no saves. The next job removes names that begin with a dot.
constexpr std::string_view kLock = "saves.lock";
constexpr std::string_view kWriting = ".writing-";
constexpr std::string_view kRemoving = ".removing-";
constexpr const char* kDamaged = ".damaged";
constexpr const char* kControl = "control.state";
constexpr std::string_view kIndex = ".safetensors.index.json";  // Hugging Face's name of an index

Status add_file(const fs::path& folder, const std::string& name, std::string_view bytes,
                io::SaveManifest& manifest) {
  if (Status s = io::replace_file(folder / name, bytes); !s.ok()) return s;
  manifest.files.push_back({name, bytes.size(), io::content_hash(bytes)});
  return ok_status();
}

// Writes the files and lists them in `manifest`.
Status write_files(const fs::path& folder, const SavePart& part, io::SaveManifest& manifest) {
  for (const PartFile& file : part.files) {
    auto written = write_tensor_file(folder / file.name, file.tensors, file.metadata);
    if (!written.ok()) return written.status();
    manifest.files.push_back(std::move(written->file));
    std::ranges::move(written->pieces, std::back_inserter(manifest.pieces));
  }
  if (part.control.empty()) return ok_status();
  return add_file(folder, kControl, part.control, manifest);
}

// Adds an index for each kind that has several files.
Status add_indexes(const fs::path& folder, io::SaveManifest& manifest) {
  for (std::size_t kind = 0; kind < kSaveKinds.size(); ++kind) {
    std::map<std::string, std::string> file_of;
    std::set<std::string_view> files;
    std::uint64_t bytes = 0;
    for (const io::SavePiece& piece : manifest.pieces) {
      if (kind_of_file(piece.file) != kind) continue;
      file_of[piece.tensor] = piece.file;
      files.insert(piece.file);
      bytes += piece.bytes;
    }
    if (files.size() < 2) continue;
    const std::string name = concat(kSaveKinds[kind].name, kIndex);
    const std::string index = io::format_safetensors_index(file_of, bytes);
    if (Status added = add_file(folder, name, index, manifest); !added.ok()) return added;
  }
  return ok_status();
}

// Checks that every divided tensor lies in the file of its owner.
Status check_complete(const io::SaveManifest& manifest, const std::vector<FileTensor>& expected) {
  std::set<FileTensor> found;
  for (const io::SavePiece& piece : manifest.pieces) found.insert({piece.file, piece.tensor});
  for (const FileTensor& each : expected) {
    if (!found.contains(each))
      return data_loss("expected tensor \"", each.tensor, "\" in ", each.file,
                       ", found none; ranks must have the same state");
  }
  return ok_status();
}

// Rejects a name in two files of a kind.
Status sort_by_name(std::vector<NamedTensor>& tensors) {
  std::ranges::sort(tensors, {}, &NamedTensor::name);
  const auto twice = std::ranges::adjacent_find(tensors, {}, &NamedTensor::name);
  if (twice == tensors.end()) return ok_status();
  return data_loss("tensor \"", twice->name, "\" is in two files of the save");
}

Status check_content(const fs::path& path, const io::SaveFile& found,
                     const io::SaveFile& expected) {
  if (found.bytes == expected.bytes && found.hash == expected.hash) return ok_status();
  return data_loss(path.string(), ": expected ", expected.bytes, " bytes of hash ",
                   io::to_hex(expected.hash), ", found ", found.bytes, " of ",
                   io::to_hex(found.hash), "; the file is damaged or belongs to another save");
}

// Checks that the other files are whole too.
Status check_other_files(const fs::path& save, const io::SaveManifest& manifest) {
  for (const io::SaveFile& file : manifest.files) {
    if (kind_of_file(file.name) != kSaveKinds.size()) continue;
    const auto content = io::content_of(save / file.name);
    if (content.status().code() == StatusCode::not_found)
      return data_loss(content.status().message());
    if (!content.ok()) return content.status();
    const io::SaveFile found{file.name, content->bytes, content->hash};
    if (Status same = check_content(save / file.name, found, file); !same.ok()) return same;
  }
  return ok_status();
}

// Reads a file and checks it against the manifest, with the same tensors in the same places.
Result<SafetensorsFile> read_file_of(const fs::path& save, const io::SaveManifest& manifest,
                                     const io::SaveFile& file) {
  const fs::path path = save / file.name;
  auto read = read_tensor_file(path);
  if (read.status().code() == StatusCode::not_found) return data_loss(read.status().message());
  if (!read.ok()) return read.status();
  if (Status same = check_content(path, read->found.file, file); !same.ok()) return same;
  if (Status place = io::check_place(read->content.metadata, manifest.step); !place.ok())
    return place.with_context(path.string());
  if (Status same = io::check_tensors(path, read->found.pieces, manifest); !same.ok()) return same;
  return std::move(read->content);
}

// Contents of the files of tensors, in the order of the manifest.
using ReadFiles = std::vector<SafetensorsFile>;

// Ranks begin at different files, so that each reads from the disk for the others.
Result<ReadFiles> read_tensor_files(const fs::path& save, const io::SaveManifest& manifest,
                                    ReaderPlace reader) {
  ReadFiles files(manifest.files.size());
  const std::size_t first = files.size() * reader.rank / std::max<std::size_t>(reader.ranks, 1);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::size_t at = (first + i) % files.size();
    if (kind_of_file(manifest.files[at].name) == kSaveKinds.size()) continue;
    auto read = read_file_of(save, manifest, manifest.files[at]);
    if (!read.ok()) return read.status();
    files[at] = *std::move(read);
  }
  return files;
}

// Adds the tensors of all files of a kind. The model's first file contains the position.
Status add_kind(const io::SaveManifest& manifest, const SaveKind& kind, ReadFiles& files,
                Checkpoint& into) {
  std::vector<NamedTensor>& tensors = into.*kind.tensors;
  const bool is_model = &kind == &kSaveKinds[kModelKind];
  std::optional<io::Metadata> metadata;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::size_t place = kind_of_file(manifest.files[i].name);
    if (place == kSaveKinds.size() || &kSaveKinds[place] != &kind) continue;
    std::ranges::move(files[i].tensors, std::back_inserter(tensors));
    if (!metadata) metadata = std::move(files[i].metadata);
  }
  if (!metadata && kind.is_optional) return ok_status();
  if (!metadata) return data_loss("expected a file ", kind.name, ".safetensors, found none");
  if (!is_model) return sort_by_name(tensors);
  auto position = io::read_position(*metadata);
  if (!position.ok()) return position.status();
  into.position = *position;
  if (Status joined = join_tied(*metadata, tensors); !joined.ok()) return joined;
  return sort_by_name(tensors);
}

int rename_with(const fs::path& from, const fs::path& to, unsigned flags) {
  return ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
}

// File systems such as NFS support neither kind of rename.
bool is_unknown_flag(int error) {
  return error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
}

Status not_own(const fs::path& save) {
  return failed_precondition(
      "expected no save of that step, or one of this job, found a save of another job; nothing was "
      "changed: save to another folder, or move " +
      save.string() + " away");
}

}  // namespace

Result<CheckpointFolder> CheckpointFolder::open(fs::path directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  // Uses a unique name, because all ranks probe the folder at once.
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

Status CheckpointFolder::check_shared() const {
  const Status held = lock_->check_held();
  if (held.ok()) return held;
  return failed_precondition("checkpoint.directory ", directory_.string(),
                             ": expected the folder that rank 0 writes to, found a different "
                             "folder; every rank writes to it, so all nodes must share it: ",
                             held.message());
}

SaveTicket CheckpointFolder::draw(std::uint64_t step) {
  SaveTicket ticket{step, draw_id(), {}};
  ticket.folder = working_name(kWriting, ticket.id, step);
  return ticket;
}

std::optional<fs::path> CheckpointFolder::newest() const {
  const auto all = io::saves_in(directory_);
  if (all.empty()) return std::nullopt;
  return all.back();
}

fs::path CheckpointFolder::save_of(std::uint64_t step) const {
  return directory_ / io::save_name(step);
}

fs::path CheckpointFolder::working_name(std::string_view purpose, std::string_view id,
                                        std::uint64_t step) const {
  return directory_ / concat(purpose, id.substr(0, 8), "-", io::save_name(step));
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

Status CheckpointFolder::write_part(const SaveTicket& ticket, const SavePart& part) const {
  const std::string context = "checkpoint " + save_of(ticket.step).string();
  if (Status held = lock_->check_held(); !held.ok()) return held.with_context(context);
  std::error_code error;
  fs::create_directory(ticket.folder, error);  // true for the first rank alone
  if (error)
    return resource_exhausted(
        context + ": cannot create a folder for the save: " + io::errno_text(error.value()));
  io::SaveManifest manifest{.id = ticket.id,
                            .step = ticket.step,
                            .incarnation = part.incarnation,
                            .world_size = static_cast<std::int32_t>(part.ranks),
                            .writer = writer_.name,
                            .written = writer_.now()};
  Status written = write_files(ticket.folder, part, manifest);
  if (written.ok())
    written =
        io::write_manifest(ticket.folder, manifest, io::part_manifest_name(part.rank, part.ranks));
  return written.with_context(context);
}

// Rank 0's part has the facts about the whole. A part of an earlier try has another id.
Result<io::SaveManifest> CheckpointFolder::join_parts(const SaveTicket& ticket,
                                                      const WholeSave& whole) const {
  io::SaveManifest joined;
  for (std::size_t rank = 0; rank < whole.ranks; ++rank) {
    const std::string name = io::part_manifest_name(rank, whole.ranks);
    auto part = io::read_manifest(ticket.folder, name);
    if (!part.ok()) return part;
    if (part->id != ticket.id || part->step != ticket.step)
      return data_loss(name, ": expected a part of save ", ticket.id, ", found a part of ",
                       part->id);
    if (rank == 0) {
      joined = std::move(*part);
      continue;
    }
    std::ranges::move(part->files, std::back_inserter(joined.files));
    std::ranges::move(part->pieces, std::back_inserter(joined.pieces));
  }
  if (Status complete = check_complete(joined, whole.tensors); !complete.ok()) return complete;
  return joined;
}

Status CheckpointFolder::finish(const SaveTicket& ticket, const WholeSave& whole) const {
  auto manifest = join_parts(ticket, whole);
  if (!manifest.ok()) return manifest.status();
  if (Status added = add_indexes(ticket.folder, *manifest); !added.ok()) return added;
  for (std::size_t rank = 0; rank < whole.ranks; ++rank) {
    std::error_code ignored;
    fs::remove(ticket.folder / io::part_manifest_name(rank, whole.ranks), ignored);
  }
  Status written = io::write_manifest(ticket.folder, *manifest);
  if (written.ok()) written = io::sync_folder(ticket.folder);
  if (written.ok()) written = put_in_place(ticket.folder, save_of(ticket.step));
  return written;
}

Status CheckpointFolder::publish(const SaveTicket& ticket, const WholeSave& whole,
                                 std::uint32_t keep) {
  const fs::path final_path = save_of(ticket.step);
  const std::string context = "checkpoint " + final_path.string();
  if (Status finished = finish(ticket, whole); !finished.ok()) {
    give_up(ticket);
    return finished.with_context(context);
  }
  own_.insert(ticket.id);
  remove_others(final_path, keep);
  return io::sync_folder(directory_).with_context(context + ": written, but");
}

void CheckpointFolder::give_up(const SaveTicket& ticket) const {
  std::error_code ignored;
  fs::remove_all(ticket.folder, ignored);
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
  return io::errno_status(error, "cannot rename the save to its final name",
                          StatusCode::resource_exhausted);
}

// Replaces atomically if the file system can, so that a crash leaves one of the two saves. Checks
// the old folder again afterwards, because another job may have put it there meanwhile.
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
    return resource_exhausted("cannot rename the save to its final name: ",
                              io::errno_text(error.value()));
  return ok_status();
}

// Renames first, so that a save is never seen without some of its files.
void CheckpointFolder::remove_own(const fs::path& save) const {
  if (!is_own(save) || !lock_->check_held().ok()) return;
  const fs::path going =
      working_name(kRemoving, io::id_of_save(save), io::step_of_save(save).value_or(0));
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
    OnDamage on_damage, const std::function<Status(const fs::path&)>& look,
    const std::function<void(const std::string&)>& tell) {
  auto saves = io::saves_in(directory_);
  if (saves.empty()) return not_found(directory_.string());
  std::vector<Status> damage;  // damage of the newest saves, newest first
  for (; !saves.empty(); saves.pop_back()) {
    const Status whole = look(saves.back());
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
         damaged.filename().string() + kDamaged + "; the save before is tried: " + each.message());
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

Result<Checkpoint> CheckpointFolder::read(const fs::path& save, ReaderPlace reader) {
  std::error_code ignored;
  if (!fs::is_directory(save, ignored))
    return failed_precondition(save.string() +
                               ": expected the save that rank 0 sees, found no such folder; all "
                               "nodes must share the folder");
  const auto manifest = io::read_manifest(save);
  if (!manifest.ok()) return manifest.status();
  if (io::step_of_save(save) != manifest->step)
    return data_loss(save.string(),
                     ": expected the step in the folder's name, found a save of step ",
                     manifest->step, "; the folder was renamed or copied: restore its name");
  auto files = read_tensor_files(save, *manifest, reader);
  if (!files.ok()) return files.status();
  Checkpoint checkpoint;
  for (const SaveKind& kind : kSaveKinds) {
    if (Status added = add_kind(*manifest, kind, *files, checkpoint); !added.ok())
      return added.with_context(save.string());
  }
  if (Status whole = check_other_files(save, *manifest); !whole.ok()) return whole;
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
