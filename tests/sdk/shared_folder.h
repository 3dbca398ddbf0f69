// A folder for all ranks, named after rank 0's process. The constructor is collective. The rank
// that leaves last removes the folder, so that all ranks can look into it until they leave.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "coxswain/error.h"
#include "coxswain/session.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"

class SharedFolder {
 public:
  explicit SharedFolder(cox::Session& session) {
    const auto process = static_cast<std::uint64_t>(::getpid());
    path_ = std::filesystem::temp_directory_path() /
            ("cox-test-mpi-" + std::to_string(values_of_ranks(session, process)[0]));
    present_ = path_.string() + "-ranks";
    mine_ = present_ / std::to_string(session.rank());
    std::filesystem::create_directories(mine_);
    values_of_ranks(session, process);  // no rank leaves before all are present
  }
  ~SharedFolder() {
    std::error_code failed;
    std::filesystem::remove(mine_, failed);
    const bool is_last = std::filesystem::remove(present_, failed);  // only if empty
    if (is_last) std::filesystem::remove_all(path_, failed);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  std::string text() const { return path_.string(); }

 private:
  static std::vector<std::uint64_t> values_of_ranks(cox::Session& session, std::uint64_t mine) {
    return cox::detail::require(cox::detail::gather_values(session.state().job().data(), mine));
  }

  std::filesystem::path path_;
  std::filesystem::path present_;  // a folder for each rank that has not left
  std::filesystem::path mine_;
};
