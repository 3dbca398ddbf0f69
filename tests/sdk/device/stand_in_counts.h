// How often the host waited for the device so far, as the stand-in for CUDA counts it.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

inline std::uint64_t synchronisations() {
  static const auto count =
      reinterpret_cast<std::uint64_t (*)()>(dlsym(RTLD_DEFAULT, "cox_standin_synchronisations"));
  if (count == nullptr) throw std::runtime_error("run this by scripts/with-cuda-stand-in");
  return count();
}
