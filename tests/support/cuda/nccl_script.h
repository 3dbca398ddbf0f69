// The fake NCCL in a test: streams in host memory, the library, and scripted faults.
#pragma once

#include <cstdlib>
#include <string>

#include "coordinator/transport/nccl/library.h"
#include "tests/support/cuda/host_lane.h"

namespace cox::test {

// Sets the script of the fake NCCL (nccl/script.h) during its lifetime.
class NcclScriptHere {
 public:
  explicit NcclScriptHere(const std::string& rules) { setenv("COX_FAKE_NCCL", rules.c_str(), 1); }
  ~NcclScriptHere() { unsetenv("COX_FAKE_NCCL"); }
  NcclScriptHere(const NcclScriptHere&) = delete;
  NcclScriptHere& operator=(const NcclScriptHere&) = delete;
};

inline Result<transport::NcclLibrary> fake_nccl(const std::string& file) {
  const std::string refused = use_host_streams(file);
  if (!refused.empty()) return not_found(refused);
  return transport::NcclLibrary::open(file);
}

}  // namespace cox::test
