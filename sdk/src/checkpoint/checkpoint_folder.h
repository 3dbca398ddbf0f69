// CheckpointFolder: whole saves of a training run in one directory, one folder a save
// (step-000000000123 with model.safetensors, optimizer.safetensors, control.state and
// manifest.json; coordinator/io/save_folder.h has the manifest). A save is written beside its final
// name and renamed as the last act; what a crash left half written is ignored. One job at a time
// writes: rank 0 holds the lock, and each save is written by one rank, which may be another one.
// Every rank reads. Blocks on the disk; does not communicate.
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
#include "coordinator/io/training_position.h"
#include "coxswain/named_tensor.h"

namespace cox::detail {

using io::TrainingPosition;

struct Checkpoint {
  TrainingPosition position;
  std::vector<NamedTensor> model;
  std::vector<NamedTensor> optimizer;
  std::vector<NamedTensor> reducer;  // empty in saves of earlier versions
  std::vector<NamedTensor> numbers;  // what each rank remembers of them; mostly empty
  std::vector<NamedTensor> parts;    // "PART/TENSOR": what the program added to its state
  // Of the job that writes, for the manifest; read() leaves them alone.
  std::uint32_t incarnation = 0;
  std::int32_t world_size = 1;
};

// SaveWriter says who writes saves, for manifests and the lock.
struct SaveWriter {
  std::string name;  // one line: "run demo on host node-a, process 4711"
  std::function<UnixTime()> now;
  std::function<std::uint64_t()> random;       // 64 random bits a call, on all ranks the same ones
  std::chrono::milliseconds lock_patience{0};  // as FolderLock::take()
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

  // Writes a whole save and removes all but the newest `keep`, and those of later steps: a rollback
  // gave them up. Only saves that this job wrote, or went on from, are ever replaced or removed.
  // `control`: the file of the coordinator's state (runtime::control_state_file); empty = none.
  // After an error (a full disk, another job took the folder over) the earlier saves are untouched
  // and nothing half written remains. REQUIRES: rank 0 claimed, this rank claimed or joined, and
  // all others leave this save to it.
  Status write(const Checkpoint& checkpoint, std::string_view control, std::uint32_t keep);
  // Takes note that another rank writes the next save. REQUIRES: as write().
  void leave_to_other();

  // The newest save, whole or not, if there is one.
  std::optional<std::filesystem::path> newest() const;

  // What to do with a save that is damaged: name it and go on with the one before, or refuse.
  enum class OnDamage { set_aside, refuse };
  // Returns the newest whole save, all files checked. Newer ones, which are damaged, get another
  // name, "step-000000000200.damaged", and `tell` a line each. Errors: not_found when there is no
  // save, and what is wrong with the newest when none is whole; nothing is renamed then. REQUIRES:
  // claim() succeeded.
  Result<std::filesystem::path> newest_whole(OnDamage on_damage,
                                             const std::function<void(const std::string&)>& tell);
  // The run goes on from this save: later writes may remove it and the older ones. On every rank.
  void go_on_from(const std::filesystem::path& save);

  std::filesystem::path save_of(std::uint64_t step) const;
  // Checks all files of the save against its manifest, then reads them. failed_precondition where
  // there is no such folder.
  static Result<Checkpoint> read(const std::filesystem::path& save);
  // The control state that was saved with it; not_found when there was none.
  static Result<ControlState> read_control(const std::filesystem::path& save);

 private:
  explicit CheckpointFolder(std::filesystem::path directory) : directory_(std::move(directory)) {}
  std::string draw_id();
  std::filesystem::path working_name(std::string_view purpose, std::uint64_t step) const;
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
