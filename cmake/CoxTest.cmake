# One function registers tests written with doctest, once or at several rank counts.
#
#   cox_test(NAME core.plan SOURCES plan_test.cc LINK coxswain::core)
#   cox_test(NAME transport.mpi SOURCES mpi_test.cc LINK coxswain::transport RANKS 1 2 4)
#       registers transport.mpi.np1, .np2 and .np4, each under mpiexec. The main function
#       initialises MPI; rank 0 prints, the others only when they fail; the result is the worst.
#
# All tests of a folder are linked into one program, and one more for those under MPI. Those with TORCH
# (see CoxTargets.cmake) are linked into one for all folders: what LibTorch's headers cost is paid for
# each program. A test runs the cases of its own sources, in a process of its own. ALONE gives a test a
# program of its own: for sources that replace something in the whole program, such as operator new.
#
# LAUNCHER names a program that is called in mpiexec's place. A test whose launcher ends with 77 is
# skipped; the launcher prints the reason.
#
# CUDA runs the test on the stand-ins for CUDA (tests/support/cuda) and labels it `cuda`; without them it
# is left out. ON_DEVICE runs it once more, as NAME.cuda, with its models and data on `cuda:0`;
# ON_DEVICE_WITHOUT is the same, but for the cases whose names are given (those that hold for the CPU alone);
# a `*` stands for whatever a name has from a semicolon on.
#
# NAME is `folder.subject`. Optional: TORCH, ALONE, LABELS, ARGS (of the program), TIMEOUT in seconds
# (120), COST (of a long test, in seconds), DEPENDS (targets that the program runs), DEFINITIONS (of
# the program). Sources include doctest last.
include_guard(GLOBAL)
find_package(doctest REQUIRED)

cox_helpers(cox_test_main SOURCES "${PROJECT_SOURCE_DIR}/tests/support/main.cc"
  LINK doctest::doctest)
if(COX_WITH_MPI)
  cox_helpers(cox_test_mpi_main SOURCES "${PROJECT_SOURCE_DIR}/tests/support/mpi_main.cc"
    LINK doctest::doctest coxswain_mpich)
endif()

# What every test runs with: one thread a rank, because ranks share cores; ranks started by fork.
# MPICH's plug-ins are unloaded before leaks are looked for, so its own cannot be told apart there.
# hwloc's PCI scan keeps tables that a leak checker reports after MPICH has unloaded it.
set(COX_TEST_ENVIRONMENT "OMP_NUM_THREADS=1;HYDRA_LAUNCHER=fork;HWLOC_COMPONENTS=-pci"
  "LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/support/lsan.supp:print_suppressions=0"
  "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
  "TSAN_OPTIONS=halt_on_error=1:suppressions=${PROJECT_SOURCE_DIR}/tests/support/tsan.supp" "COX_MPIEXEC=${COX_MPIEXEC}")
set(COX_CUDA_STANDIN_FOLDER "${PROJECT_BINARY_DIR}/tests/cuda_stand_in")
# CUDA's headers as the stand-ins see them, with or without a toolkit.
set(COX_CUDA_HEADERS "${COX_TORCH_ROOT}/nvidia/cu13/include"
  "${PROJECT_SOURCE_DIR}/tests/support/cuda/without_toolkit")
set(COX_ON_STANDIN "${PROJECT_SOURCE_DIR}/scripts/with-cuda-stand-in" --folder
  "${COX_CUDA_STANDIN_FOLDER}")
set(COX_ON_DEVICE ${COX_ON_STANDIN} --on-device)  # with tensors on cuda:0
set(COX_TWO_NODES "${PROJECT_SOURCE_DIR}/tests/support/two_nodes")
set(COX_TEST_ASAN "ASAN_OPTIONS=detect_odr_violation=0:strict_string_checks=1")

# cox_register(NAME .. COMMAND ... [PROCESSORS n] [LABELS ..] [TIMEOUT s] [COST s]): the common properties.
# A test of a higher COST starts earlier; without it ctest takes what the test took the last time, and in
# a build that never ran its tests the longest might be the last, with one core idle. Tests of several
# PROCESSORS are the first of all: as long as shorter ones wait, two are never free at once. The presets run
# three tests at once, for two cores: many wait for something most of the time.
function(cox_register)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;PROCESSORS;TIMEOUT;COST" "COMMAND;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  if(COX_SANITIZE)
    math(EXPR arg_TIMEOUT "4 * ${arg_TIMEOUT}")
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND})
  string(REGEX REPLACE "\\..*" "" folder "${arg_NAME}")
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${folder};${arg_LABELS}"
    PROCESSORS ${arg_PROCESSORS} TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "${COX_TEST_ENVIRONMENT};${COX_TEST_ASAN}")
  if(arg_PROCESSORS GREATER 1)
    set_tests_properties(${arg_NAME} PROPERTIES COST 1000)
  elseif(arg_COST)
    set_tests_properties(${arg_NAME} PROPERTIES COST ${arg_COST})
  endif()
endfunction()

# Compiles the tests of a program together (COX_UNITY): what they include is read once, and GCC instantiates
# what LibTorch's precompiled header left pending anew for each of its users, which takes longer than most
# tests. They name their helpers as they like: each file lies in a namespace of its own, and what it includes
# is included before that. A file that opens a namespace of the project's, or is no test, is compiled alone.
function(_cox_compile_together program)
  set(headers)
  get_target_property(sources ${program} SOURCES)
  foreach(source IN LISTS sources)
    file(STRINGS "${source}" opened REGEX "^(namespace [a-z_:]+ {|template <>|TORCH_LIBRARY|extern |#define )")
    if(opened OR NOT source MATCHES "_test\\.cc$")
      set_source_files_properties("${source}" TARGET_DIRECTORY ${program}
        PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      continue()
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
    get_filename_component(folder "${source}" DIRECTORY)
    file(STRINGS "${source}" includes REGEX "^#include [<\"]")
    foreach(include IN LISTS includes)
      string(REGEX MATCH "\"(.*)\"" quoted "${include}")
      if(quoted AND EXISTS "${folder}/${CMAKE_MATCH_1}")
        set(include "#include \"${folder}/${CMAKE_MATCH_1}\"")
      endif()
      list(APPEND headers "${include}")
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES headers)
  list(REMOVE_ITEM headers "#include <doctest/doctest.h>")
  list(APPEND headers "#include <doctest/doctest.h>")  # last, as everywhere
  list(JOIN headers "\n" headers)
  set(before "${PROJECT_BINARY_DIR}/tests/${program}_headers.h")
  file(CONFIGURE OUTPUT "${before}" CONTENT "#pragma once\n${headers}\n" @ONLY)
  set_target_properties(${program} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 32
    UNITY_BUILD_UNIQUE_ID COX_TEST_FILE
    UNITY_BUILD_CODE_BEFORE_INCLUDE "#include \"${before}\"\nnamespace COX_TEST_FILE {"
    UNITY_BUILD_CODE_AFTER_INCLUDE "}")
endfunction()

# Adds the sources to the program that runs them and sets `result` to its name.
function(_cox_test_program result)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TORCH;ALONE;MPI" "NAME" "SOURCES;LINK;DEFINITIONS")
  file(RELATIVE_PATH program "${PROJECT_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}")
  if(arg_TORCH)
    string(REGEX REPLACE "/.*" "" program "${program}")
  endif()
  if(arg_ALONE)
    set(program "${arg_NAME}")
  endif()
  set(main cox_test_main)
  if(arg_MPI)
    set(main cox_test_mpi_main)
    string(APPEND program "_mpi")
  endif()
  set(torch)
  if(arg_TORCH)
    set(torch TORCH)
    string(APPEND program "_torch")
  endif()
  string(REGEX REPLACE "[./]" "_" program "${program}_tests")
  if(NOT TARGET ${program})
    cox_executable(${program} SOURCES LINK ${main} ${torch})
    set_target_properties(${program} PROPERTIES UNITY_BUILD OFF
      RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
    if(COX_UNITY)  # once all folders have added their sources
      cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY [[${PROJECT_SOURCE_DIR}/tests]]
        CALL _cox_compile_together ${program})")
      if(NOT arg_TORCH)  # GCC 12 sees writes beyond strings that are appended to (its bug 105651)
        target_compile_options(${program} PRIVATE
          $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds;-Wno-stringop-overflow>)
      endif()
    endif()
  endif()
  get_target_property(known ${program} SOURCES)
  foreach(source IN LISTS arg_SOURCES)
    get_filename_component(source "${source}" ABSOLUTE)
    if(NOT source IN_LIST known)
      target_sources(${program} PRIVATE "${source}")
    endif()
  endforeach()
  target_link_libraries(${program} PRIVATE ${arg_LINK})
  target_compile_definitions(${program} PRIVATE ${arg_DEFINITIONS})
  set(${result} ${program} PARENT_SCOPE)
endfunction()

# _cox_on_device(name program ranks timeout argument ...): a program with its tensors on `cuda:0`, at one rank without
# MPI where no rank counts are given. More than two ranks show nothing else on one stand-in.
function(_cox_on_device name program ranks timeout)
  if(NOT ranks)
    cox_register(NAME ${name}.cuda LABELS cuda TIMEOUT "${timeout}"
      COMMAND ${COX_ON_DEVICE} $<TARGET_FILE:${program}> ${ARGN})
  endif()
  foreach(count IN LISTS ranks)
    if(count LESS_EQUAL 2)
      cox_register(NAME ${name}.cuda.np${count} LABELS cuda mpi TIMEOUT "${timeout}"
        COMMAND ${COX_ON_DEVICE} "${COX_MPIEXEC}" -n ${count} $<TARGET_FILE:${program}> ${ARGN})
    endif()
  endforeach()
endfunction()

function(cox_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "TORCH;ALONE;CUDA;ON_DEVICE" "NAME;TIMEOUT;LAUNCHER;COST"
    "SOURCES;LINK;RANKS;LABELS;ARGS;DEPENDS;DEFINITIONS;ON_DEVICE_WITHOUT;ALSO_WITH")
  set(before)
  if(arg_CUDA)
    if(NOT TARGET cuda_stand_in)
      return()
    endif()
    set(before ${COX_ON_STANDIN})
    list(APPEND arg_LABELS cuda)
    list(APPEND arg_DEPENDS cuda_stand_in)
  endif()
  if(arg_RANKS AND NOT COX_WITH_MPI)
    message(STATUS "Test ${arg_NAME} is left out: it runs under MPI, and COX_WITH_MPI is OFF")
    return()
  endif()
  set(kind)
  foreach(flag TORCH ALONE)
    if(arg_${flag})
      list(APPEND kind ${flag})
    endif()
  endforeach()
  if(arg_RANKS)
    list(APPEND kind MPI)
  endif()
  _cox_test_program(program ${kind} NAME ${arg_NAME} SOURCES ${arg_SOURCES} LINK ${arg_LINK}
    DEFINITIONS ${arg_DEFINITIONS})
  if(arg_DEPENDS)
    add_dependencies(${program} ${arg_DEPENDS})
  endif()
  set(sources)
  foreach(source IN LISTS arg_SOURCES)
    get_filename_component(source "${source}" ABSOLUTE)
    file(RELATIVE_PATH source "${PROJECT_SOURCE_DIR}" "${source}")
    list(APPEND sources "*/${source}")
  endforeach()
  list(JOIN sources "," sources)
  set(arguments "--source-file=${sources}" --no-skipped-summary ${arg_ARGS})
  if(NOT arg_RANKS)
    cox_register(NAME ${arg_NAME} COMMAND ${before} $<TARGET_FILE:${program}> ${arguments} LABELS ${arg_LABELS}
      TIMEOUT ${arg_TIMEOUT} COST ${arg_COST})
  endif()
  foreach(with IN LISTS arg_ALSO_WITH)  # NAME:VARIABLE=VALUE
    string(REGEX MATCH "^([a-z0-9]+):(.+)$" with "${with}")
    cox_register(NAME ${arg_NAME}.${CMAKE_MATCH_1} LABELS ${arg_LABELS} TIMEOUT ${arg_TIMEOUT}
      COMMAND ${CMAKE_COMMAND} -E env ${CMAKE_MATCH_2} ${before} $<TARGET_FILE:${program}> ${arguments})
  endforeach()
  string(APPEND COX_TEST_ASAN ":detect_leaks=0")
  set(launcher "${COX_MPIEXEC}")
  if(arg_LAUNCHER)
    set(launcher "${arg_LAUNCHER}")
  endif()
  foreach(ranks IN LISTS arg_RANKS)
    math(EXPR cores "(${ranks} + 1) / 2")  # ranks start, and wait for each other, half of the time
    cox_register(NAME ${arg_NAME}.np${ranks} LABELS mpi ${arg_LABELS}
      COMMAND ${before} "${launcher}" -n ${ranks} $<TARGET_FILE:${program}> ${arguments}
      PROCESSORS ${cores} TIMEOUT ${arg_TIMEOUT} COST ${arg_COST})
    if(arg_LAUNCHER)
      set_tests_properties(${arg_NAME}.np${ranks} PROPERTIES SKIP_RETURN_CODE 77)
    endif()
  endforeach()
  if((arg_ON_DEVICE OR arg_ON_DEVICE_WITHOUT) AND TARGET cuda_stand_in)
    list(TRANSFORM arg_ON_DEVICE_WITHOUT REPLACE "," "*" OUTPUT_VARIABLE without)
    list(JOIN without "," without)
    _cox_on_device(${arg_NAME} ${program} "${arg_RANKS}" "${arg_TIMEOUT}" ${arguments}
      "--test-case-exclude=${without}")
  endif()
endfunction()
