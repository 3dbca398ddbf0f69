// The counts of the stand-in for CUDA in this process, or, on a GPU, of
// tests/support/cuda/real_counts.cc.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <stdexcept>

#include "tests/support/cuda/stand_in.h"

// Returns whether the device is a stand-in, whose kernels are the CPU's to the last bit and run at
// once.
inline bool on_stand_in() {
  return dlsym(RTLD_DEFAULT, "cox_standin_launch") != nullptr;
}

// Throws if the program does not run on the stand-ins.
template <class Function>
Function* of_stand_in(const char* name) {
  auto* found = reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
  if (found == nullptr)
    throw std::runtime_error("run this by scripts/with-cuda-stand-in or scripts/gpu-check");
  return found;
}

// Returns how often the host has waited for the device.
inline std::uint64_t synchronisations() {
  return of_stand_in<std::uint64_t()>("cox_standin_synchronisations")();
}

inline cox_standin_counters stand_in_counters() {
  cox_standin_counters counters{};
  of_stand_in<void(cox_standin_counters*)>("cox_standin_read_counters")(&counters);
  return counters;
}

inline std::uint64_t copies_to_host() {
  return stand_in_counters().copies_to_host;
}
