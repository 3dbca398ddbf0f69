# One function registers a doctest program, once or at several rank counts.
#
#   cox_test(NAME core.plan SOURCES plan_test.cc LINK coxswain::core)
#   cox_test(NAME transport.mpi SOURCES mpi_test.cc LINK coxswain::transport RANKS 1 2 4)
#       registers transport.mpi.np1, .np2 and .np4, each under mpiexec. The main function
#       initialises MPI; rank 0 prints, the others only when they fail; the result is the worst.
#
# NAME is `folder.subject`. Optional: TORCH (see CoxTargets.cmake), LABELS, ARGS (of the program),
# TIMEOUT in seconds (120), DEPENDS (targets that the program runs). Sources include doctest last.
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
  "TSAN_OPTIONS=halt_on_error=1")
set(COX_TEST_ASAN "ASAN_OPTIONS=detect_odr_violation=0:strict_string_checks=1")

# cox_register(NAME .. COMMAND ... [PROCESSORS n] [LABELS ..] [TIMEOUT s]): the common properties.
function(cox_register)
  cmake_parse_arguments(PARSE_ARGV 0 arg "" "NAME;PROCESSORS;TIMEOUT" "COMMAND;LABELS")
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  add_test(NAME ${arg_NAME} COMMAND ${arg_COMMAND})
  string(REGEX REPLACE "\\..*" "" folder "${arg_NAME}")
  set_tests_properties(${arg_NAME} PROPERTIES LABELS "${folder};${arg_LABELS}"
    PROCESSORS ${arg_PROCESSORS} TIMEOUT ${arg_TIMEOUT}
    ENVIRONMENT "${COX_TEST_ENVIRONMENT};${COX_TEST_ASAN}")
endfunction()

function(cox_test)
  cmake_parse_arguments(PARSE_ARGV 0 arg "TORCH" "NAME;TIMEOUT" "SOURCES;LINK;RANKS;LABELS;ARGS;DEPENDS")
  if(arg_RANKS AND NOT COX_WITH_MPI)
    message(STATUS "Test ${arg_NAME} is left out: it runs under MPI, and COX_WITH_MPI is OFF")
    return()
  endif()
  string(REPLACE "." "_" target "${arg_NAME}_test")
  set(main cox_test_main)
  if(arg_RANKS)
    set(main cox_test_mpi_main)
  endif()
  set(torch)
  if(arg_TORCH)
    set(torch TORCH)
  endif()
  cox_executable(${target} SOURCES ${arg_SOURCES} LINK ${main} ${arg_LINK} ${torch})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests/bin")
  if(arg_DEPENDS)
    add_dependencies(${target} ${arg_DEPENDS})
  endif()
  if(NOT arg_RANKS)
    cox_register(NAME ${arg_NAME} COMMAND ${target} ${arg_ARGS} LABELS ${arg_LABELS}
      TIMEOUT ${arg_TIMEOUT})
  endif()
  string(APPEND COX_TEST_ASAN ":detect_leaks=0")
  foreach(ranks IN LISTS arg_RANKS)
    cox_register(NAME ${arg_NAME}.np${ranks} LABELS mpi ${arg_LABELS}
      COMMAND "${COX_MPIEXEC}" -n ${ranks} $<TARGET_FILE:${target}> ${arg_ARGS}
      PROCESSORS ${ranks} TIMEOUT ${arg_TIMEOUT})
  endforeach()
endfunction()
