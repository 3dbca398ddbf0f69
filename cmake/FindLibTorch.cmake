# Finds LibTorch: a folder with lib/ and include/, as a torch wheel, a Python environment or an archive
# of pytorch.org has. The package's own CMake files want a CUDA toolkit and a Python interpreter even
# for a CPU build, so they are not used.
#
# Input:   the first of these that is given
#            COX_TORCH_ROOT             CMake variable, or variable of the environment
#            Torch_DIR                  as find_package(Torch) takes it
#            CMAKE_PREFIX_PATH          torch.utils.cmake_prefix_path, or a folder that holds torch/
#            VIRTUAL_ENV, CONDA_PREFIX  the Python environment that is active
#            COX_TORCH_BUILT_WITH       of an installed package
#          and else where scripts/bootstrap unpacks:
#          ${COX_CACHE:-~/.cache/coxswain}/libtorch-<version of cmake/libtorch-version>
# Defines: LibTorch::torch  libtorch_cpu and libc10, and the CUDA libraries where all that they load
#                           is present. Its include folders ship an old google/protobuf: never link
#                           it into code that includes protobuf.
#          COX_TORCH_ROOT   the folder that holds torch/, or LibTorch's own
#          LibTorch_FOLDER  the one with lib/ and include/
#          LibTorch_VERSION; LibTorch_CUDA: whether the CUDA libraries are linked, or else
#          LibTorch_CUDA_MISSING: why not
include_guard(GLOBAL)

set(_cox_torch_oldest 2.11)
set(_cox_torch_newest 2.15)
file(STRINGS "${CMAKE_CURRENT_LIST_DIR}/libtorch-version" _cox_torch_default LIMIT_COUNT 1)

# Returns the folders with a lib/libtorch_cpu.so to which these places lead, each once.
function(_cox_torch_below result)
  set(found)
  foreach(place ${ARGN})
    foreach(below . torch ../.. ../../..)  # itself; site-packages; share/cmake; share/cmake/Torch
      if(EXISTS "${place}/${below}/lib/libtorch_cpu.so")
        file(REAL_PATH "${place}/${below}" folder)
        list(APPEND found "${folder}")
        break()
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES found)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

function(_cox_torch_cache result)
  if(DEFINED ENV{COX_CACHE})
    set(cache "$ENV{COX_CACHE}")
  elseif(DEFINED ENV{XDG_CACHE_HOME})
    set(cache "$ENV{XDG_CACHE_HOME}/coxswain")
  else()
    set(cache "$ENV{HOME}/.cache/coxswain")
  endif()
  set(${result} "${cache}/libtorch-${_cox_torch_default}" PARENT_SCOPE)
endfunction()

# Returns the one folder that the first place that is given leads to.
function(_cox_torch_find result)
  set(environments)
  foreach(variable VIRTUAL_ENV CONDA_PREFIX)
    if(NOT "$ENV{${variable}}" STREQUAL "")
      file(GLOB packages "$ENV{${variable}}/lib/python3*/site-packages")
      list(APPEND environments ${packages})
    endif()
  endforeach()
  set(prefixes ${CMAKE_PREFIX_PATH} $ENV{CMAKE_PREFIX_PATH})
  _cox_torch_cache(cache)
  foreach(places Torch_DIR prefixes environments COX_TORCH_BUILT_WITH cache)
    _cox_torch_below(found ${${places}})
    list(LENGTH found count)
    if(count EQUAL 1)
      set(${result} "${found}" PARENT_SCOPE)
      return()
    elseif(count GREATER 1)
      list(JOIN found " and in " folders)
      message(FATAL_ERROR "Expected one LibTorch, found it in ${folders}. Choose one: -DCOX_TORCH_ROOT=FOLDER.")
    endif()
  endforeach()
  set(${result} "${cache}" PARENT_SCOPE)
endfunction()

# Returns the version that the headers tell; empty where they tell none.
function(_cox_torch_version folder result)
  set(version)
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(NOT version AND EXISTS "${folder}/include/${header}")
      file(STRINGS "${folder}/include/${header}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX REPLACE "[^0-9;]" "" lines "${lines}")
      list(JOIN lines "." version)
    endif()
  endforeach()
  set(${result} "${version}" PARENT_SCOPE)
endfunction()

function(_cox_torch_check_version version folder)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" minor "${version}")
  if(NOT minor OR minor VERSION_LESS _cox_torch_oldest)
    message(FATAL_ERROR "Expected LibTorch ${_cox_torch_oldest} to ${_cox_torch_newest}, found "
      "${version} in ${folder}. Install a newer one, or run scripts/bootstrap and point to it: "
      "-DCOX_TORCH_ROOT=FOLDER.")
  elseif(minor VERSION_GREATER _cox_torch_newest)
    message(WARNING "Expected LibTorch ${_cox_torch_oldest} to ${_cox_torch_newest}, found ${version} in "
      "${folder}. Newer versions are not tested.")
  endif()
endfunction()

# All current LibTorch has the newer names of the C++ library's strings; pytorch.org's archives
# "pre-cxx11 ABI" were the last to have older ones.
function(_cox_torch_check_abi folder)
  file(STRINGS "${folder}/lib/libc10.so" names REGEX "_ZN3c105ErrorC.*__cxx11" LIMIT_COUNT 1)
  if(NOT names)
    message(FATAL_ERROR "Expected LibTorch with the C++11 ABI of libstdc++, found another in ${folder}. "
      "Take the torch wheel of PyPI, or pytorch.org's archive \"cxx11-abi\".")
  endif()
endfunction()

# Returns what libtorch_cuda.so loads and is not there; empty when it is complete.
function(_cox_torch_cuda_missing root folder result)
  set(library "${folder}/lib/libtorch_cuda.so")
  if(NOT EXISTS "${library}")
    set(${result} libtorch_cuda.so PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND "${CMAKE_READELF}" -d "${library}" OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCHALL "\\[lib[^]]*\\.so[^]]*\\]" needed "${text}")
  set(missing)
  foreach(name ${needed})
    string(REGEX REPLACE "[][]" "" name "${name}")
    file(GLOB found "${folder}/lib/${name}" "${root}/nvidia/*/lib/${name}")
    if(NOT found)
      string(MAKE_C_IDENTIFIER "_cox_at_${name}" variable)
      find_library(${variable} NAMES "${name}" NO_CACHE)
      set(found "${${variable}}")
    endif()
    if(NOT found AND NOT name MATCHES "^lib(c|m|dl|rt|pthread|gcc_s|stdc\\+\\+)\\.so")
      list(APPEND missing "${name}")
    endif()
  endforeach()
  list(JOIN missing ", " missing)
  set(${result} "${missing}" PARENT_SCOPE)
endfunction()

function(_cox_torch_import target file)
  add_library(${target} SHARED IMPORTED GLOBAL)
  set_target_properties(${target} PROPERTIES IMPORTED_LOCATION "${file}" IMPORTED_NO_SONAME FALSE)
endfunction()

if(NOT COX_TORCH_ROOT AND DEFINED ENV{COX_TORCH_ROOT})
  set(COX_TORCH_ROOT "$ENV{COX_TORCH_ROOT}" CACHE PATH "folder that holds torch/, or LibTorch's own" FORCE)
elseif(NOT COX_TORCH_ROOT)
  _cox_torch_find(_cox_root)
  if(_cox_root MATCHES "/torch$")
    string(REGEX REPLACE "/torch$" "" _cox_root "${_cox_root}")
  endif()
  set(COX_TORCH_ROOT "${_cox_root}" CACHE PATH "folder that holds torch/, or LibTorch's own" FORCE)
endif()
set(LibTorch_FOLDER "${COX_TORCH_ROOT}/torch")
if(EXISTS "${COX_TORCH_ROOT}/lib/libtorch_cpu.so")
  set(LibTorch_FOLDER "${COX_TORCH_ROOT}")
endif()

foreach(_cox_file lib/libtorch_cpu.so lib/libc10.so include/torch/csrc/api/include/torch/torch.h)
  if(NOT EXISTS "${LibTorch_FOLDER}/${_cox_file}")
    message(FATAL_ERROR
      "Expected LibTorch in ${LibTorch_FOLDER}, found no ${_cox_file} there. Run scripts/bootstrap, or "
      "point to a folder that holds torch/ with its headers: -DCOX_TORCH_ROOT=FOLDER. "
      "To build without the trainer SDK: -DCOX_WITH_TORCH=OFF.")
  endif()
endforeach()
_cox_torch_version("${LibTorch_FOLDER}" LibTorch_VERSION)
_cox_torch_check_version("${LibTorch_VERSION}" "${LibTorch_FOLDER}")
_cox_torch_check_abi("${LibTorch_FOLDER}")

_cox_torch_import(LibTorch::c10 "${LibTorch_FOLDER}/lib/libc10.so")
_cox_torch_import(LibTorch::torch_cpu "${LibTorch_FOLDER}/lib/libtorch_cpu.so")

find_package(Threads REQUIRED)
add_library(LibTorch::torch INTERFACE IMPORTED GLOBAL)
set_target_properties(LibTorch::torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES
    "${LibTorch_FOLDER}/include;${LibTorch_FOLDER}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES "LibTorch::torch_cpu;LibTorch::c10;Threads::Threads")

# libtorch_cuda registers its kernels when it is loaded and exports nothing that callers name, so
# the linker has to be told to keep it.
_cox_torch_cuda_missing("${COX_TORCH_ROOT}" "${LibTorch_FOLDER}" _cox_missing)
set(LibTorch_CUDA FALSE)
set(LibTorch_CUDA_MISSING "without ${_cox_missing}")
if(NOT _cox_missing AND COX_WITH_CUDA)
  set(LibTorch_CUDA TRUE)
endif()
if(LibTorch_CUDA)
  _cox_torch_import(LibTorch::c10_cuda "${LibTorch_FOLDER}/lib/libc10_cuda.so")
  set(_cox_cuda "${LibTorch_FOLDER}/lib/libtorch_cuda.so")
  set_property(TARGET LibTorch::torch APPEND PROPERTY INTERFACE_LINK_LIBRARIES LibTorch::c10_cuda
    "-Wl,--push-state,--no-as-needed,${_cox_cuda},--pop-state")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(LibTorch REQUIRED_VARS COX_TORCH_ROOT VERSION_VAR LibTorch_VERSION)
