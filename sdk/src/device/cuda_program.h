// CudaProgram: kernels that are compiled when a program runs, by NVRTC, for the device at hand, and
// started on its current stream. Neither library is linked and no header of CUDA is needed: NVRTC
// is loaded, CUDA's runtime is in every process of LibTorch's, and what is called is looked up by
// name. A machine without one of them, or with another runtime, gets a reason instead. Compiling
// takes a second or two, so it is done before the first step. Any thread.
#pragma once

#include <c10/core/Device.h>

#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::detail {

struct SourceText {
  std::string name;  // as it is included
  std::string text;
};

// What is to be compiled.
struct CudaSource {
  SourceText kernels;
  std::vector<SourceText> headers;
  std::vector<std::string> definitions;  // NAME=VALUE
};

struct CudaFigures {
  int capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
};
// Returns unavailable where the runtime does not tell. REQUIRES: `device` has a number.
Result<CudaFigures> cuda_figures(c10::Device device);

// Returns the code for devices of that capability. not_found without NVRTC, with what was looked
// for; invalid_argument with the compiler's first words where it refuses.
Result<std::string> compile_for(int capability, const CudaSource& source);

// A kernel belongs to a program that stays loaded until the process ends.
class CudaKernel {
 public:
  // Starts it behind all that the device's current stream was given; nothing waits. Throws
  // cox::Error where the runtime refuses. REQUIRES: `arguments` are pointers to the kernel's
  // arguments, of its types and in its order; they are read before this returns.
  void start(c10::Device device, unsigned int blocks, unsigned int threads,
             std::span<void*> arguments) const;

 private:
  friend class CudaProgram;
  explicit CudaKernel(void* handle) : handle_(handle) {}
  void* handle_;
};

class CudaProgram {
 public:
  // unavailable where the runtime cannot load code, or refuses this.
  static Result<CudaProgram> load(const std::string& code);

  // not_found for a name that the program has not.
  Result<CudaKernel> kernel(const char* name) const;

 private:
  explicit CudaProgram(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace cox::detail
