#include "sdk/src/device/cuda_program.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <string_view>

#include "coordinator/core/never_destroyed.h"
#include "coordinator/core/text.h"
#include "coxswain/error.h"

namespace cox::detail {
namespace {

// Declarations of CUDA, in its headers' types except for handles and enumerations.
struct Extent {
  unsigned int x = 1, y = 1, z = 1;
};
struct Runtime {
  int (*DeviceGetAttribute)(int* value, int attribute, int device);
  const char* (*GetErrorString)(int error);
  int (*GetLastError)();
  int (*LibraryLoadData)(void** library, const void* code, int* jit_options, void** jit_values,
                         unsigned int jit_count, int* options, void** values, unsigned int count);
  int (*LibraryGetKernel)(void** kernel, void* library, const char* name);
  int (*LaunchKernel)(const void* kernel, Extent grid, Extent block, void** arguments,
                      std::size_t shared_bytes, void* stream);
};
constexpr int kMultiprocessorCount = 16, kCapabilityMajor = 75, kCapabilityMinor = 76;

struct Compiler {
  int (*CreateProgram)(void** program, const char* source, const char* name, int headers,
                       const char* const* texts, const char* const* names);
  int (*CompileProgram)(void* program, int options, const char* const* texts);
  int (*DestroyProgram)(void** program);
  int (*GetProgramLogSize)(void* program, std::size_t* size);
  int (*GetProgramLog)(void* program, char* log);
  int (*GetCUBINSize)(void* program, std::size_t* size);
  int (*GetCUBIN)(void* program, char* code);
};
constexpr std::array kCompilers = {"libnvrtc.so.13", "libnvrtc.so.12"};

// Looks up names in a library and keeps the first missing one.
class Names {
 public:
  explicit Names(void* library) : library_(library) {}
  template <class Function>
  void find(Function& function, const char* name) {
    void* found = dlsym(library_, name);
    if (found == nullptr && missing_ == nullptr) missing_ = name;
    function = reinterpret_cast<Function>(found);
  }
  const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

Result<Runtime> runtime() {
  Runtime found{};
  Names names(RTLD_DEFAULT);
  names.find(found.DeviceGetAttribute, "cudaDeviceGetAttribute");
  names.find(found.GetErrorString, "cudaGetErrorString");
  names.find(found.GetLastError, "cudaGetLastError");
  names.find(found.LibraryLoadData, "cudaLibraryLoadData");
  names.find(found.LibraryGetKernel, "cudaLibraryGetKernel");
  names.find(found.LaunchKernel, "cudaLaunchKernel");
  if (names.missing() == nullptr) return found;
  return unavailable("CUDA's runtime: expected ", names.missing(),
                     "() in the process, found a runtime without this function");
}

// Returns the runtime's text for an error, and clears it, because LibTorch checks the last error
// after its own calls.
std::string taken_back(const Runtime& call, int error) {
  call.GetLastError();
  return call.GetErrorString(error);
}

// Returns the folder of CUDA's loaded runtime; the wheels put NVRTC beside it.
std::filesystem::path folder_of_runtime() {
  for (const char* name : {"libcudart.so.13", "libcudart.so.12"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
    const void* inside = library != nullptr ? dlsym(library, "cudaGetErrorString") : nullptr;
    Dl_info info{};
    if (inside != nullptr && dladdr(inside, &info) != 0) {
      return std::filesystem::path(info.dli_fname).parent_path();
    }
  }
  return {};
}

void* open_compiler() {
  for (const char* name : kCompilers) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
    const auto beside = folder_of_runtime() / name;
    if (void* library = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

Result<Compiler> compiler() {
  void* library = open_compiler();
  if (library == nullptr) {
    return not_found("NVRTC: expected ", kCompilers[0], " or ", kCompilers[1],
                     " in the library search path or beside CUDA's runtime, found neither");
  }
  Compiler found{};
  Names names(library);
  names.find(found.CreateProgram, "nvrtcCreateProgram");
  names.find(found.CompileProgram, "nvrtcCompileProgram");
  names.find(found.DestroyProgram, "nvrtcDestroyProgram");
  names.find(found.GetProgramLogSize, "nvrtcGetProgramLogSize");
  names.find(found.GetProgramLog, "nvrtcGetProgramLog");
  names.find(found.GetCUBINSize, "nvrtcGetCUBINSize");
  names.find(found.GetCUBIN, "nvrtcGetCUBIN");
  if (names.missing() == nullptr) return found;
  return not_found("NVRTC: expected ", names.missing(),
                   "(), found a library without this function");
}

std::vector<const char*> pointers_of(const std::vector<std::string>& texts) {
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  return pointers;
}

// Returns the compiler's code for a program, or its first line of errors.
Result<std::string> compiled(const Compiler& call, void* program, int capability,
                             const std::vector<std::string>& definitions) {
  std::vector<std::string> options = {concat("--gpu-architecture=sm_", capability), "--std=c++17"};
  for (const std::string& each : definitions) options.push_back("-D" + each);
  const std::vector<const char*> texts = pointers_of(options);
  std::size_t size = 0;
  if (call.CompileProgram(program, static_cast<int>(texts.size()), texts.data()) != 0) {
    call.GetProgramLogSize(program, &size);
    std::string log(size, '\0');
    call.GetProgramLog(program, log.data());
    return invalid_argument("NVRTC: expected to compile for ", options[0],
                            ", found: ", first_line(log.c_str()));
  }
  if (call.GetCUBINSize(program, &size) != 0 || size == 0) {
    return invalid_argument("NVRTC: expected code for ", options[0], ", found none");
  }
  std::string code(size, '\0');
  call.GetCUBIN(program, code.data());
  return code;
}

}  // namespace

Result<CudaFigures> cuda_figures(c10::Device device) {
  const auto call = runtime();
  if (!call.ok()) return call.status();
  int major = 0, minor = 0;
  CudaFigures figures;
  for (const auto& [attribute, into] : {std::pair{kCapabilityMajor, &major},
                                        {kCapabilityMinor, &minor},
                                        {kMultiprocessorCount, &figures.multiprocessors}}) {
    const int error = call->DeviceGetAttribute(into, attribute, device.index());
    if (error != 0) return unavailable("CUDA's runtime: ", taken_back(*call, error));
  }
  figures.capability = 10 * major + minor;
  return figures;
}

Result<std::string> compile_for(int capability, const CudaSource& source) {
  const auto call = compiler();
  if (!call.ok()) return call.status();
  std::vector<const char*> texts, names;
  for (const SourceText& header : source.headers) {
    texts.push_back(header.text.c_str());
    names.push_back(header.name.c_str());
  }
  void* program = nullptr;
  if (call->CreateProgram(&program, source.kernels.text.c_str(), source.kernels.name.c_str(),
                          static_cast<int>(texts.size()), texts.data(), names.data()) != 0) {
    return unavailable("NVRTC: expected to create a program, found an error");
  }
  Result<std::string> code = compiled(*call, program, capability, source.definitions);
  call->DestroyProgram(&program);
  return code;
}

Result<CudaProgram> CudaProgram::load(const std::string& code) {
  const auto call = runtime();
  if (!call.ok()) return call.status();
  void* library = nullptr;
  const int error =
      call->LibraryLoadData(&library, code.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
  if (error != 0) return unavailable("CUDA's runtime: ", taken_back(*call, error));
  return CudaProgram(library);
}

Result<CudaKernel> CudaProgram::kernel(const char* name) const {
  const auto call = runtime();
  if (!call.ok()) return call.status();
  void* kernel = nullptr;
  const int error = call->LibraryGetKernel(&kernel, handle_, name);
  if (error != 0) return not_found("a kernel ", name, ": ", taken_back(*call, error));
  return CudaKernel(kernel);
}

void CudaKernel::start(c10::Device device, unsigned int blocks, unsigned int threads,
                       std::span<void*> arguments) const {
  static const Result<Runtime>& call = never_destroyed(runtime());
  require(call.status());
  const c10::DeviceGuard guard(device);
  void* const stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
  const int error = call->LaunchKernel(handle_, {blocks}, {threads}, arguments.data(), 0, stream);
  if (error != 0) {
    throw Error(unavailable("a kernel: expected it to start, found: ", taken_back(*call, error)));
  }
}

}  // namespace cox::detail
