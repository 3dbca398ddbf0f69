// CheckpointFolder stores whole saves of a training run in one directory, one folder for each save
// (step-000000000123 with model.safetensors, optimizer.safetensors, control.state and
// manifest.json; the manifest is in coordinator/io/save_folder.h). Each rank writes its part into a
// temporary folder. Rank 0 publishes the save: checks the parts, writes the manifest and, last,
// renames the folder. Leftovers of a crash are ignored. Rank 0's lock admits one writing job at a
// time. Every rank reads. Blocks on the disk; does not communicate.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/decide/decide.h"
#include "coordinator/io/folder_lock.h"
#include "coordinator/io/save_folder.h"
#include "coxswain/named_tensor.h"
#include "sdk/src/checkpoint/checkpoint.h"
#include "sdk/src/checkpoint/save_layout.h"

namespace cox::detail {

// SaveWriter identifies the writer of saves, for manifests and the lock.
struct SaveWriter {
  std::string name;  // one line: "run demo on host node-a, process 4711"
  std::function<UnixTime()> now;
  std::function<std::uint64_t()> random;       // 64 random bits a call, the same on all ranks
  std::chrono::milliseconds lock_patience{0};  // as in FolderLock::take()
};

// SaveTicket is a save that is being written; equal on all ranks.
struct SaveTicket {
  std::uint64_t step = 0;
  std::string id;                // id in the save's manifest
  std::filesystem::path folder;  // folder of the parts
};

// WholeSave lists the required contents of a save after all ranks have written their parts.
struct WholeSave {
  std::size_t ranks = 1;
  std::vector<FileTensor> tensors;  // at least
};

// SavePart is one rank's part of a save.
struct SavePart {
  std::size_t rank = 0;
  std::size_t ranks = 1;
  std::uint32_t incarnation = 0;  // the job's
  std::vector<PartFile> files;
  std::string
      control;  // the file of the coordinator's state (runtime::control_state_file); empty = none
};

// ReaderPlace is a rank among the ranks that read a save at once.
struct ReaderPlace {
  std::size_t rank = 0;
  std::size_t ranks = 1;
};

class CheckpointFolder {
 public:
  // Creates the directory. failed_precondition if creating it, or a probe file in it, fails.
  static Result<CheckpointFolder> open(std::filesystem::path directory);

  // Makes this job the only writer for as long as the object lives, and removes a crash's
  // half-written files. Called on rank 0. failed_precondition with the holder's name if another job
  // writes to the folder.
  Status claim(SaveWriter writer);
  // Allows the other ranks to write saves. Called after rank 0 has claimed the folder.
  void join(SaveWriter writer);
  // Returns ok if this rank sees the folder claimed by rank 0, else failed_precondition. REQUIRES:
  // rank 0 has claimed, this rank claimed or joined.
  Status check_shared() const;

  // Begins a save. Called on every rank for every save. REQUIRES: as check_shared().
  SaveTicket draw(std::uint64_t step);
  // Writes this rank's part and makes it durable. After an error (a full disk, another job took
  // over the folder) the save must be given up. REQUIRES: draw() returned the ticket. Any thread.
  Status write_part(const SaveTicket& ticket, const SavePart& part) const;
  // Publishes a save from its written parts. Then removes all saves but the newest `keep`, and
  // saves of later steps, which a rollback gave up. Replaces or removes only saves that this job
  // wrote or resumed from. data_loss if a part is missing, or lacks a tensor of `whole`. After an
  // error the earlier saves are untouched and nothing half-written remains. Called on rank 0, on
  // any thread.
  Status publish(const SaveTicket& ticket, const WholeSave& whole, std::uint32_t keep);
  // Removes the written parts. Called on rank 0. REQUIRES: no rank is writing its part.
  void give_up(const SaveTicket& ticket) const;

  // Returns the newest save, whole or not, if there is one.
  std::optional<std::filesystem::path> newest() const;

  // Handling of a damaged save: rename it and use the one before, or refuse.
  enum class OnDamage { set_aside, refuse };
  // Returns the newest save in which `look` finds no damage. `look` reads a save and returns
  // data_loss for a damaged one. Renames newer, damaged saves to "step-000000000200.damaged", and
  // calls `tell` with a line for each. Errors rename nothing: not_found without a save, and the
  // newest save's damage if none is whole. REQUIRES: claim() succeeded.
  Result<std::filesystem::path> newest_whole(
      OnDamage on_damage, const std::function<Status(const std::filesystem::path& save)>& look,
      const std::function<void(const std::string&)>& tell);
  // Resumes the run from this save: later writes may remove it and older ones. On every rank.
  void go_on_from(const std::filesystem::path& save);

  std::filesystem::path save_of(std::uint64_t step) const;
  // Reads all files of the save and checks them against the manifest, each byte once.
  // failed_precondition if the folder does not exist.
  static Result<Checkpoint> read(const std::filesystem::path& save, ReaderPlace reader = {});
  // Returns the control state in the save; not_found if there is none.
  static Result<ControlState> read_control(const std::filesystem::path& save);

 private:
  explicit CheckpointFolder(std::filesystem::path directory) : directory_(std::move(directory)) {}
  std::string draw_id();
  std::filesystem::path working_name(std::string_view purpose, std::string_view id,
                                     std::uint64_t step) const;
  Result<io::SaveManifest> join_parts(const SaveTicket& ticket, const WholeSave& whole) const;
  Status finish(const SaveTicket& ticket, const WholeSave& whole) const;
  void remove_leftovers() const;
  bool is_own(const std::filesystem::path& save) const;
  Status put_in_place(const std::filesystem::path& fresh,
                      const std::filesystem::path& target) const;
  Status replace(const std::filesystem::path& fresh, const std::filesystem::path& target) const;
  void remove_others(const std::filesystem::path& newest, std::uint32_t keep) const;
  void remove_own(const std::filesystem::path& save) const;
  Status set_aside(const std::filesystem::path& save) const;

  std::filesystem::path directory_;
  std::optional<io::FolderLock> lock_;  // from claim() or join() on
  SaveWriter writer_;
  std::set<std::string> own_;  // ids of saves that may be replaced and removed
};

// Returns a hash that is equal exactly if names, shapes and types are. Compared between the ranks
// of a job, never stored in a save.
std::uint64_t fingerprint(const std::vector<NamedTensor>& tensors);

}  // namespace cox::detail
