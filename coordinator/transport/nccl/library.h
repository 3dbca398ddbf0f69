// NcclLibrary: NCCL, found when the program runs. Nothing links it: a machine without NCCL, with an
// old one, or with one that lacks a function runs the same binary and gets a reason instead. Once
// found, the library stays loaded until the process ends, because its threads may outlive any
// handle. Immutable; copies are cheap, any thread may use them.
#pragma once

#include <string>

#include "coordinator/core/status.h"
#include "coordinator/transport/nccl/abi.h"

namespace cox::transport {

class NcclLibrary {
 public:
  // The name that LibTorch itself links: one that is loaded already is found by it first.
  static constexpr const char* kName = "libnccl.so.2";

  // Loads the library. `name`: as dlopen() takes it. not_found when there is none or a function is
  // missing, failed_precondition when it is older than nccl::kOldestVersion.
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
