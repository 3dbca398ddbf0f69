// CheckpointFolder: whole saves of a training run in one directory, one folder a save
// (step-000000000123 with model.safetensors, optimizer.safetensors, control.state and
// manifest.json; coordinator/io/save_folder.h has the manifest). Each rank writes its part of a
// save into a folder beside the final name, and rank 0 publishes it: checks the parts, writes the
// manifest and renames the folder as the last act. Leftovers of a crash are ignored. One job at a
// time writes: rank 0 holds the lock. Every rank reads. Blocks on the disk; does not
// communicate.
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

// SaveWriter says who writes saves, for manifests and the lock.
struct SaveWriter {
  std::string name;  // one line: "run demo on host node-a, process 4711"
  std::function<UnixTime()> now;
  std::function<std::uint64_t()> random;       // 64 random bits a call, on all ranks the same ones
  std::chrono::milliseconds lock_patience{0};  // as FolderLock::take()
};

// SaveTicket is a save that is being written; equal on all ranks.
struct SaveTicket {
  std::uint64_t step = 0;
  std::string id;                // of its manifest
  std::filesystem::path folder;  // where the parts are written
};

// WholeSave says what must be in a save when all ranks have written their parts.
struct WholeSave {
  std::size_t ranks = 1;
  std::vector<FileTensor> tensors;  // at least
};

// SavePart is what one rank writes of a save.
struct SavePart {
  std::size_t rank = 0;
  std::size_t ranks = 1;
  std::uint32_t incarnation = 0;  // of the job
  std::vector<PartFile> files;
  std::string
      control;  // the file of the coordinator's state (runtime::control_state_file); empty = none
};

// ReaderPlace is the rank that reads a save, of so many that read it at once.
struct ReaderPlace {
  std::size_t rank = 0;
  std::size_t ranks = 1;
};

class CheckpointFolder {
 public:
  // Creates the directory. failed_precondition when that, or a probe file in it, is impossible.
  static Result<CheckpointFolder> open(std::filesystem::path directory);

  // Makes this job the one that writes here, for as long as this object lives, and removes what
  // a crash left half written. Rank 0's part. failed_precondition, naming the holder, when another
  // job writes to the folder.
  Status claim(SaveWriter writer);
  // The other ranks' part: they may write saves once rank 0 has claimed the folder.
  void join(SaveWriter writer);
  // Returns whether this rank sees the folder that rank 0 claimed; else failed_precondition.
  // REQUIRES: rank 0 has claimed, this rank claimed or joined.
  Status check_shared() const;

  // Begins a save. Every rank calls it for every save. REQUIRES: as check_shared().
  SaveTicket draw(std::uint64_t step);
  // Writes this rank's part and makes it durable. After an error (a full disk, another job took the
  // folder over) the save must be given up. REQUIRES: draw() gave the ticket. Any thread.
  Status write_part(const SaveTicket& ticket, const SavePart& part) const;
  // Makes a save of the parts, which are all written, and removes all but the newest `keep`, and
  // those of later steps: a rollback gave them up. Only saves that this job wrote, or went on from,
  // are ever replaced or removed. data_loss where one is missing, or lacks what `whole` says. After
  // an error the earlier saves are untouched and nothing half written remains. Rank 0's, any
  // thread.
  Status publish(const SaveTicket& ticket, const WholeSave& whole, std::uint32_t keep);
  // Removes what was written. Rank 0's. REQUIRES: no rank is writing its part.
  void give_up(const SaveTicket& ticket) const;

  // The newest save, whole or not, if there is one.
  std::optional<std::filesystem::path> newest() const;

  // What to do with a save that is damaged: name it and go on with the one before, or refuse.
  enum class OnDamage { set_aside, refuse };
  // Returns the newest save in which `look` finds no damage; `look` reads a save and returns
  // data_loss for one that is damaged. Newer ones get another name then,
  // "step-000000000200.damaged", and `tell` a line each. Errors: not_found when there is no save,
  // and what is wrong with the newest when none is whole; nothing is renamed then. REQUIRES:
  // claim() succeeded.
  Result<std::filesystem::path> newest_whole(
      OnDamage on_damage, const std::function<Status(const std::filesystem::path& save)>& look,
      const std::function<void(const std::string&)>& tell);
  // The run goes on from this save: later writes may remove it and the older ones. On every rank.
  void go_on_from(const std::filesystem::path& save);

  std::filesystem::path save_of(std::uint64_t step) const;
  // Reads all files of the save and checks them against its manifest, each byte once.
  // failed_precondition where there is no such folder.
  static Result<Checkpoint> read(const std::filesystem::path& save, ReaderPlace reader = {});
  // The control state that was saved with it; not_found when there was none.
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
  std::set<std::string> own_;  // ids of the saves that may be replaced and removed
};

// Equal exactly if names, shapes and types are. Compared between the ranks of a job; no save has
// it.
std::uint64_t fingerprint(const std::vector<NamedTensor>& tensors);

}  // namespace cox::detail
