#include "coordinator/transport/nccl/library.h"

#include <dlfcn.h>

#include <memory>
#include <type_traits>

namespace cox::transport {
namespace {

// Fills the table. Returns the first name that the library lacks, or null.
const char* look_up(void* library, nccl::Functions& into) {
  const char* missing = nullptr;
  const auto find = [&](auto& function, const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr && missing == nullptr) missing = name;
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  find(into.GetVersion, "ncclGetVersion");
  find(into.GetUniqueId, "ncclGetUniqueId");
  find(into.CommInitRankConfig, "ncclCommInitRankConfig");
  find(into.CommGetAsyncError, "ncclCommGetAsyncError");
  find(into.CommFinalize, "ncclCommFinalize");
  find(into.CommDestroy, "ncclCommDestroy");
  find(into.CommAbort, "ncclCommAbort");
  find(into.GetErrorString, "ncclGetErrorString");
  find(into.GetLastError, "ncclGetLastError");
  find(into.Broadcast, "ncclBroadcast");
  find(into.AllReduce, "ncclAllReduce");
  return missing;
}

}  // namespace

std::string nccl_version_text(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;  // before 2.9: 2708
  const int minor = version < 10000 ? version / 100 % 10 : version / 100 % 100;
  return concat(major, ".", minor, ".", version % 100);
}

std::string NcclLibrary::version_text() const {
  return nccl_version_text(version_);
}

Result<NcclLibrary> NcclLibrary::open(const std::string& name) {
  void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return not_found("NCCL: expected a library ", name, ", found none (",
                     why != nullptr ? why : "no reason given", ")");
  }
  auto functions = std::make_unique<nccl::Functions>();
  if (const char* missing = look_up(handle, *functions)) {
    return not_found("NCCL: expected ", missing, "() in ", name, ", found a library without it");
  }
  NcclLibrary library;
  if (functions->GetVersion(&library.version_) != nccl::Outcome::success) {
    return failed_precondition("NCCL: ", name, "'s version call failed; reinstall NCCL");
  }
  if (library.version_ < nccl::kOldestVersion) {
    return failed_precondition("NCCL: expected ", nccl_version_text(nccl::kOldestVersion),
                               " or newer, found ", library.version_text(), " in ", name);
  }
  library.functions_ = functions.release();
  return library;
}

}  // namespace cox::transport
