// RunDirectory is this rank's part of the directory run.directory: a record of the run's start, the
// rows of its steps, its operators. Rank 0 also holds the lock that keeps other jobs out of the
// directory. Does nothing without run.directory. Owned by ControlEnd. Training thread only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/status.h"
#include "coordinator/core/units.h"
#include "coordinator/io/folder_lock.h"
#include "metrics/records/run_format.h"
#include "metrics/records/run_store.h"
#include "sdk/src/device/device_facts.h"
#include "sdk/src/session/membership.h"

namespace cox::detail {

struct RunPlace {
  std::string program;
  RankId rank{};
  std::int32_t world_size = 1;
  RankId node{};  // the lowest rank of this rank's machine
  std::optional<DeviceFacts> device{};
};
// Returns how this rank's run was started, for run.json. `environment` has entries NAME=VALUE; only
// variables that steer threads and transport are kept.
metrics::RunInfo run_info(const Config& config, const RunPlace& place, UnixTime now,
                          const std::vector<std::string>& environment);

class RunDirectory {
 public:
  // `program` is the name for run.json.
  RunDirectory(const Membership& job, std::string program)
      : job_(job), program_(std::move(program)) {}

  // Continues a run from a save: the directory keeps the rows of steps before `step`. REQUIRES:
  // open() was not called.
  void go_on_at(StepId step) { goes_on_at_ = step; }
  // Opens the directory. Collective. Throws cox::Error on all ranks if the directory cannot be used
  // or belongs to another job.
  void open();

  // Returns the writer of this rank's rows, null without a directory.
  metrics::RunStoreWriter* rows() { return rows_.get(); }
  // Waits until the directory holds the rows of all steps that every rank has ended, so that a save
  // is never ahead of the rows. Collective when there is a directory.
  void flush();
  // Returns the path of the journal (control.journal, or in the directory); empty if there is none.
  std::filesystem::path journal_path() const;

  void close();

 private:
  Status lock();
  void tell_last_ending() const;
  metrics::RunStoreOptions row_options() const;

  const Membership& job_;
  const std::string program_;
  std::optional<StepId> goes_on_at_;
  std::optional<io::FolderLock> lock_;  // rank 0, for the directory of all ranks
  std::unique_ptr<metrics::RunStoreWriter> rows_;
};

}  // namespace cox::detail
