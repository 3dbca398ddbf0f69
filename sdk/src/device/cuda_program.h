// CudaProgram compiles kernels at run time for the present device, by NVRTC, and starts them on the
// device's current stream. Links neither library and needs no header of CUDA: NVRTC is loaded,
// CUDA's runtime is in every process with LibTorch, and functions are found by name. A machine
// without one of them, or with another runtime, gets an error with the reason. Compiling takes a
// second or two, so it is done before the first step. Any thread.
#pragma once

#include <c10/core/Device.h>

#include <span>
#include <string>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::detail {

struct SourceText {
  std::string name;  // as included
  std::string text;
};

// Input of a compilation.
struct CudaSource {
  SourceText kernels;
  std::vector<SourceText> headers;
  std::vector<std::string> definitions;  // NAME=VALUE
};

struct CudaFigures {
  int capability = 0;  // 90 for 9.0
  int multiprocessors = 0;
};
// Returns unavailable if the runtime has no answer. REQUIRES: `device` has a number.
Result<CudaFigures> cuda_figures(c10::Device device);

// Returns the code for devices of the capability. not_found without NVRTC, with the names tried;
// invalid_argument with the compiler's first line after a failed compilation.
Result<std::string> compile_for(int capability, const CudaSource& source);

// A kernel belongs to a program that stays loaded until the process ends.
class CudaKernel {
 public:
  // Starts the kernel after all work of the device's current stream, without waiting. Throws
  // cox::Error if the runtime fails. REQUIRES: `arguments` are pointers to the kernel's arguments,
  // in its types and order; the call reads them before it returns.
  void start(c10::Device device, unsigned int blocks, unsigned int threads,
             std::span<void*> arguments) const;

 private:
  friend class CudaProgram;
  explicit CudaKernel(void* handle) : handle_(handle) {}
  void* handle_;
};

class CudaProgram {
 public:
  // unavailable if the runtime cannot load code, or refuses `code`.
  static Result<CudaProgram> load(const std::string& code);

  // not_found for a name that the program does not have.
  Result<CudaKernel> kernel(const char* name) const;

 private:
  explicit CudaProgram(void* handle) : handle_(handle) {}
  void* handle_;
};

}  // namespace cox::detail
