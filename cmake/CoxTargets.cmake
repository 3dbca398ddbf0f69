# How every target of this project is made.
#
#   cox_library(wire SOURCES mask.cc ... PUBLIC_LINK coxswain::core PRIVATE_LINK fmt::fmt)
#       coxswain_wire, known as coxswain::wire, exported and installed. Includes are from the
#       repository root. Without SOURCES it is an INTERFACE library, unless SUBFOLDERS says that
#       subfolders add them: target_sources(coxswain_sdk PRIVATE session.cc ...).
#   cox_executable(cox SOURCES main.cc LINK coxswain::coordinator [INSTALL])
#       a program in <build>/bin.
#   cox_helpers(gpt2_model SOURCES model.cc ... LINK coxswain::sdk)
#       a library that several of this project's own programs or tests share, not installed.
#
# TORCH as a flag of any: the sources include torch/torch.h (13-18 s a file), so they share one
# precompiled header of it. All other targets share one of standard headers.

# Flags of our own sources. Linked privately, so no consumer inherits a warning or a sanitizer.
# Contraction and position independence are the same everywhere: the first because decisions must
# not depend on the processor, the second because one precompiled header has to fit all. GCC 12
# takes "text" + std::to_string(n) for a copy onto itself, or out of bounds, and a part of a variant
# for uninitialized, where it optimizes most.
add_library(coxswain_flags INTERFACE)
target_compile_options(coxswain_flags INTERFACE
  -ffp-contract=off -fPIC -fno-semantic-interposition
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align
  -Wunused -Wformat=2 -Wimplicit-fallthrough -Wextra-semi
  $<$<CXX_COMPILER_ID:GNU>:-Wduplicated-cond>
  "$<$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>,$<CONFIG:Release>>:-Wno-restrict;-Wno-stringop-overflow;-Wno-array-bounds;-Wno-maybe-uninitialized>"
  $<$<BOOL:${COX_WERROR}>:-Werror>)
if(COX_SANITIZE)
  target_compile_options(coxswain_flags INTERFACE -fsanitize=${COX_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(coxswain_flags INTERFACE -fsanitize=${COX_SANITIZE})
endif()

# Everything that is installed.
if(COX_INSTALL)
  add_custom_target(coxswain)
endif()

function(_cox_common target torch)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:coxswain_flags>)
  if(torch)
    _cox_precompiled(coxswain_torch_header <torch/torch.h>)
    target_link_libraries(coxswain_torch_header PRIVATE LibTorch::torch)
    target_link_libraries(${target} PRIVATE LibTorch::torch)
    target_precompile_headers(${target} REUSE_FROM coxswain_torch_header)
    if(COX_UNITY)
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 44)
    endif()
  else()
    _cox_precompiled(coxswain_standard_header ${COX_STANDARD_HEADERS})
    target_precompile_headers(${target} REUSE_FROM coxswain_standard_header)
  endif()
endfunction()

# The headers of C++ that most sources include. They are more than half of the time that a source
# without LibTorch takes to compile.
set(COX_STANDARD_HEADERS <algorithm> <array> <chrono> <cmath> <cstdint> <filesystem> <functional>
  <map> <memory> <optional> <span> <string> <string_view> <utility> <variant> <vector>)

# Adds the one target that compiles these headers; the others reuse its precompiled header.
function(_cox_precompiled target)
  if(TARGET ${target})
    return()
  endif()
  set(source "${PROJECT_BINARY_DIR}/${target}.cc")
  file(CONFIGURE OUTPUT "${source}" CONTENT "// Carries the precompiled header.\n")
  add_library(${target} OBJECT "${source}")
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_link_libraries(${target} PRIVATE coxswain_flags)
  target_precompile_headers(${target} PRIVATE ${ARGN})
endfunction()

function(cox_library name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;SUBFOLDERS" "" "SOURCES;PUBLIC_LINK;PRIVATE_LINK")
  set(target coxswain_${name})
  set(includes $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/coxswain/tree>)
  if(arg_SOURCES OR arg_SUBFOLDERS)
    add_library(${target} ${arg_SOURCES})
    _cox_common(${target} "${arg_TORCH}")
    if(COX_UNITY AND NOT arg_TORCH)  # few at a time, so that all cores have work, and few names have to differ
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    endif()
    target_include_directories(${target} PUBLIC ${includes})
    target_link_libraries(${target} PUBLIC ${arg_PUBLIC_LINK} PRIVATE ${arg_PRIVATE_LINK})
    set_target_properties(${target} PROPERTIES VERSION ${PROJECT_VERSION}
      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  else()
    add_library(${target} INTERFACE)
    target_compile_features(${target} INTERFACE cxx_std_20)
    target_include_directories(${target} INTERFACE ${includes})
    target_link_libraries(${target} INTERFACE ${arg_PUBLIC_LINK})
  endif()
  add_library(coxswain::${name} ALIAS ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  if(COX_INSTALL)
    install(TARGETS ${target} EXPORT coxswainTargets)
    add_dependencies(coxswain ${target})
  endif()
endfunction()

function(cox_executable name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;INSTALL" "" "SOURCES;LINK")
  add_executable(${name} ${arg_SOURCES})
  _cox_common(${name} "${arg_TORCH}")
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE ${arg_LINK})
  if(arg_INSTALL AND COX_INSTALL)
    install(TARGETS ${name})
    add_dependencies(coxswain ${name})
  endif()
endfunction()

function(cox_helpers name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH" "" "SOURCES;LINK")
  add_library(${name} STATIC ${arg_SOURCES})
  _cox_common(${name} "${arg_TORCH}")
  target_include_directories(${name} PUBLIC "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PUBLIC ${arg_LINK})
endfunction()
