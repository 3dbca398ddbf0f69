// A folder for all ranks, named after rank 0's process and removed by rank 0. Collective.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <system_error>

#include "coxswain/error.h"
#include "coxswain/session.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/session/session_state.h"

class SharedFolder {
 public:
  explicit SharedFolder(cox::Session& session) : is_owner_(session.rank() == 0) {
    const auto processes = cox::detail::require(cox::detail::gather_values(
        session.state().job().data(), static_cast<std::uint64_t>(::getpid())));
    path_ =
        std::filesystem::temp_directory_path() / ("cox-test-mpi-" + std::to_string(processes[0]));
  }
  ~SharedFolder() {
    std::error_code ignored;
    if (is_owner_) std::filesystem::remove_all(path_, ignored);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  std::string text() const { return path_.string(); }

 private:
  bool is_owner_;
  std::filesystem::path path_;
};
