# Imports LibTorch from an unpacked wheel. The package's own CMake files want a CUDA toolkit and a
# Python interpreter even for a CPU build, so they are not used.
#
# Input:   COX_TORCH_ROOT   a folder that holds torch/lib and torch/include (default:
#                           $COX_TORCH_ROOT, or where scripts/bootstrap unpacks:
#                           ${COX_CACHE:-~/.cache/coxswain}/libtorch-<version>)
# Defines: LibTorch::torch  libtorch_cpu and libc10, and the CUDA libraries where all that they load
#                           is present. Its include folders ship an old google/protobuf: never link
#                           it into code that includes protobuf.
#          LibTorch_VERSION; LibTorch_CUDA: whether the CUDA libraries are linked, or else
#          LibTorch_CUDA_MISSING: why not
include_guard(GLOBAL)

file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/libtorch-version" _cox_torch_wanted LIMIT_COUNT 1)

function(_cox_torch_default_root result)
  if(DEFINED ENV{COX_TORCH_ROOT})
    set(${result} "$ENV{COX_TORCH_ROOT}" PARENT_SCOPE)
    return()
  endif()
  if(DEFINED ENV{COX_CACHE})
    set(cache "$ENV{COX_CACHE}")
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    set(cache "$ENV{XDG_CACHE_HOME}/coxswain")
  else()
    set(cache "$ENV{HOME}/.cache/coxswain")
  endif()
  set(${result} "${cache}/libtorch-${_cox_torch_wanted}" PARENT_SCOPE)
endfunction()

# Returns what libtorch_cuda loads and is not there; empty when it is complete.
function(_cox_torch_cuda_missing root result)
  set(missing)
  foreach(folder cudnn nccl nvshmem cusparselt)
    file(GLOB found "${root}/nvidia/${folder}/lib/*.so*")
    if(NOT found)
      list(APPEND missing ${folder})
    endif()
  endforeach()
  foreach(name cublas cublasLt cusparse cufft curand cusolver cufile cudart)
    file(GLOB found "${root}/nvidia/cu13/lib/lib${name}.so*")
    if(NOT found)
      list(APPEND missing ${name})
    endif()
  endforeach()
  if(NOT EXISTS "${root}/torch/lib/libtorch_cuda.so")
    list(APPEND missing libtorch_cuda)
  endif()
  list(JOIN missing ", " missing)
  set(${result} "${missing}" PARENT_SCOPE)
endfunction()

function(_cox_torch_import target file)
  add_library(${target} SHARED IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${file}" IMPORTED_NO_SONAME FALSE)
endfunction()

if(NOT COX_TORCH_ROOT)
  _cox_torch_default_root(_cox_root)
  set(COX_TORCH_ROOT "${_cox_root}" CACHE PATH "folder that holds torch/lib and torch/include" FORCE)
endif()

foreach(_cox_file lib/libtorch_cpu.so lib/libc10.so include/torch/csrc/api/include/torch/torch.h)
  if(NOT EXISTS "${COX_TORCH_ROOT}/torch/${_cox_file}")
    message(FATAL_ERROR
      "Expected LibTorch ${_cox_torch_wanted} in ${COX_TORCH_ROOT}, found no torch/${_cox_file} there. "
      "Run scripts/bootstrap, or point to a folder that holds torch/: -DCOX_TORCH_ROOT=FOLDER. "
      "To build without the trainer SDK: -DCOX_WITH_TORCH=OFF.")
  endif()
endforeach()

set(LibTorch_VERSION "unknown")
if(EXISTS "${COX_TORCH_ROOT}/torch/include/torch/headeronly/version.h")
  file(STRINGS "${COX_TORCH_ROOT}/torch/include/torch/headeronly/version.h" _cox_lines
    REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH)")
  string(REGEX REPLACE "[^0-9;]" "" _cox_lines "${_cox_lines}")
  list(JOIN _cox_lines "." LibTorch_VERSION)
endif()
if(NOT LibTorch_VERSION STREQUAL _cox_torch_wanted)
  message(WARNING "Expected LibTorch ${_cox_torch_wanted}, found ${LibTorch_VERSION} in "
    "${COX_TORCH_ROOT}. Other versions are not tested.")
endif()

_cox_torch_import(LibTorch::c10 "${COX_TORCH_ROOT}/torch/lib/libc10.so")
_cox_torch_import(LibTorch::torch_cpu "${COX_TORCH_ROOT}/torch/lib/libtorch_cpu.so")

find_package(Threads REQUIRED)
add_library(LibTorch::torch INTERFACE IMPORTED GLOBAL)
set_target_properties(LibTorch::torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES
    "${COX_TORCH_ROOT}/torch/include;${COX_TORCH_ROOT}/torch/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES "LibTorch::torch_cpu;LibTorch::c10;Threads::Threads")

# libtorch_cuda registers its kernels when it is loaded and exports nothing that callers name, so
# the linker has to be told to keep it.
_cox_torch_cuda_missing("${COX_TORCH_ROOT}" _cox_missing)
set(LibTorch_CUDA FALSE)
set(LibTorch_CUDA_MISSING "without ${_cox_missing}")
if(NOT _cox_missing AND COX_WITH_CUDA)
  set(LibTorch_CUDA TRUE)
endif()
if(LibTorch_CUDA)
  _cox_torch_import(LibTorch::c10_cuda "${COX_TORCH_ROOT}/torch/lib/libc10_cuda.so")
  set(_cox_cuda "${COX_TORCH_ROOT}/torch/lib/libtorch_cuda.so")
  set_property(TARGET LibTorch::torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES LibTorch::c10_cuda
    "-Wl,--push-state,--no-as-needed,${_cox_cuda},--pop-state")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS COX_TORCH_ROOT VERSION_VAR LibTorch_VERSION)
