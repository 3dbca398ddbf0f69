// NcclLibrary: NCCL, loaded when the program runs. No binary links NCCL. On a machine without a
// usable NCCL (none, too old, a function missing), the same binary runs and gets a reason. A loaded
// library stays loaded until the process ends, because its threads may outlive any handle.
// Immutable; copies are cheap, and any thread may use them.
#pragma once

#include <string>

#include "coordinator/core/status.h"
#include "coordinator/transport/nccl/abi.h"

namespace cox::transport {

class NcclLibrary {
 public:
  // The name that LibTorch links. dlopen() finds an already loaded library by it first.
  static constexpr const char* kName = "libnccl.so.2";

  // Loads the library. `name` is as for dlopen(). Returns not_found if the library or a function is
  // missing, failed_precondition if the library is older than nccl::kOldestVersion.
  static Result<NcclLibrary> open(const std::string& name = kName);

  const nccl::Functions& functions() const { return *functions_; }
  int version() const { return version_; }  // 22809 is 2.28.9
  std::string version_text() const;         // "2.28.9"

 private:
  const nccl::Functions* functions_ = nullptr;  // lives as long as the process
  int version_ = 0;
};

// Returns "2.28.9" for 22809.
std::string nccl_version_text(int version);

}  // namespace cox::transport
