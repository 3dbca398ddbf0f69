# Finds MPICH, and only MPICH: Debian installs Open MPI beside it and either may own `mpicxx`.
#
# Input:   COX_MPICXX   the wrapper to ask (default: $COX_MPICXX, mpicxx.mpich, then mpicxx)
# Defines: coxswain_mpich          imported target with MPICH's headers and libraries
#          COX_MPIEXEC             the launcher that belongs to the wrapper
#          MPICH_VERSION           as its header says
#          MPICH_LIBRARY_VERSION   first line of MPI_Get_library_version, checked to be MPICH's
include_guard(GLOBAL)

# Stops with one message: what was expected, what was found, what to do.
function(_cox_mpich_stop found)
  message(FATAL_ERROR
    "Expected MPICH, found ${found}. Install MPICH (scripts/bootstrap does) or point to its "
    "compiler wrapper: -DCOX_MPICXX=/path/to/mpicxx.mpich. To build without MPI: -DCOX_WITH_MPI=OFF.")
endfunction()

# Splits what the wrapper says it would run into include folders, library folders and libraries.
function(_cox_mpich_ask wrapper)
  execute_process(COMMAND "${wrapper}" -show OUTPUT_VARIABLE line ERROR_VARIABLE complaint
    RESULT_VARIABLE code OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT code EQUAL 0)
    _cox_mpich_stop("a wrapper that does not answer '${wrapper} -show': ${complaint}")
  endif()
  separate_arguments(words UNIX_COMMAND "${line}")
  set(includes)
  set(folders)
  set(names)
  foreach(word IN LISTS words)
    if(word MATCHES "^-I(.+)")
      list(APPEND includes "${CMAKE_MATCH_1}")
    elseif(word MATCHES "^-L(.+)")
      list(APPEND folders "${CMAKE_MATCH_1}")
    elseif(word MATCHES "cxx$")
      # The C++ bindings that MPI-3 removed.
    elseif(word MATCHES "^-l(.+)")
      list(APPEND names "${CMAKE_MATCH_1}")
    endif()
  endforeach()
  set(includes "${includes}" PARENT_SCOPE)
  set(folders "${folders}" PARENT_SCOPE)
  set(names "${names}" PARENT_SCOPE)
endfunction()

# Reads who made the mpi.h that the wrapper would use. Sets `version` for MPICH, stops otherwise.
function(_cox_mpich_header wrapper includes)
  find_file(header mpi.h PATHS ${includes} NO_CACHE NO_DEFAULT_PATH)
  if(NOT header)
    find_file(header mpi.h NO_CACHE)
  endif()
  if(NOT header)
    _cox_mpich_stop("no mpi.h in the folders that ${wrapper} names (${includes})")
  endif()
  file(STRINGS "${header}" lines REGEX "^# *define +(MPICH_VERSION|OMPI_M[A-Z]+_VERSION) ")
  if(lines MATCHES "MPICH_VERSION +\"([^\"]+)\"")
    set(version "${CMAKE_MATCH_1}" PARENT_SCOPE)
  elseif(lines MATCHES "OMPI_MAJOR_VERSION +([0-9]+)")
    set(major "${CMAKE_MATCH_1}")
    string(REGEX MATCH "OMPI_MINOR_VERSION +([0-9]+)" unused "${lines}")
    _cox_mpich_stop("Open MPI ${major}.${CMAKE_MATCH_1} behind ${wrapper}")
  else()
    _cox_mpich_stop("an MPI that is neither MPICH nor Open MPI (${header}) behind ${wrapper}")
  endif()
endfunction()

# Asks the library itself, which may be another one than the header's. MPI allows this call
# before MPI_Init.
function(_cox_mpich_library)
  if(DEFINED MPICH_LIBRARY_VERSION AND "${MPICH_LIBRARY_WRAPPER}" STREQUAL "${COX_MPICXX}")
    return()
  endif()
  set(source "${PROJECT_BINARY_DIR}/cox_mpich/version.cc")
  file(WRITE "${source}" "#include <mpi.h>
#include <cstdio>
int main() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return 1;
  std::puts(text);
}
")
  try_run(exit_code compiled "${PROJECT_BINARY_DIR}/cox_mpich" "${source}"
    LINK_LIBRARIES coxswain_mpich COMPILE_OUTPUT_VARIABLE log RUN_OUTPUT_VARIABLE text)
  if(NOT compiled)
    _cox_mpich_stop("a library that does not link:\n${log}\n")
  endif()
  string(REGEX REPLACE "\n.*" "" first "${text}")
  if(NOT exit_code EQUAL 0 OR NOT first MATCHES "MPICH Version")
    _cox_mpich_stop("a library that calls itself '${first}'")
  endif()
  string(REGEX REPLACE "[ \t]+" " " first "${first}")
  set(MPICH_LIBRARY_VERSION "${first}" CACHE INTERNAL "what the MPI library calls itself")
  set(MPICH_LIBRARY_WRAPPER "${COX_MPICXX}" CACHE INTERNAL "whose library that is")
endfunction()

if(NOT COX_MPICXX AND DEFINED ENV{COX_MPICXX})
  set(COX_MPICXX "$ENV{COX_MPICXX}" CACHE FILEPATH "MPICH's C++ compiler wrapper")
endif()
find_program(COX_MPICXX NAMES mpicxx.mpich mpicxx DOC "MPICH's C++ compiler wrapper")
if(NOT COX_MPICXX)
  _cox_mpich_stop("no mpicxx at all")
endif()
_cox_mpich_ask("${COX_MPICXX}")
_cox_mpich_header("${COX_MPICXX}" "${includes}")
set(MPICH_VERSION "${version}")

set(_cox_mpich_libraries)
foreach(_cox_name IN LISTS names)
  find_library(_cox_library NAMES ${_cox_name} PATHS ${folders} NO_CACHE)
  if(NOT _cox_library)
    _cox_mpich_stop("no lib${_cox_name} in ${folders}")
  endif()
  list(APPEND _cox_mpich_libraries "${_cox_library}")
  unset(_cox_library)
endforeach()

add_library(coxswain_mpich INTERFACE IMPORTED GLOBAL)
set_target_properties(coxswain_mpich PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${includes}"
  INTERFACE_COMPILE_DEFINITIONS "MPICH_SKIP_MPICXX"
  INTERFACE_LINK_LIBRARIES "${_cox_mpich_libraries}")
_cox_mpich_library()

get_filename_component(_cox_folder "${COX_MPICXX}" DIRECTORY)
find_program(COX_MPIEXEC NAMES mpiexec.mpich mpiexec.hydra HINTS "${_cox_folder}"
  DOC "MPICH's launcher")
if(NOT COX_MPIEXEC)
  find_program(COX_MPIEXEC NAMES mpiexec PATHS "${_cox_folder}" NO_DEFAULT_PATH)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(MPICH
  REQUIRED_VARS COX_MPICXX COX_MPIEXEC MPICH_LIBRARY_VERSION VERSION_VAR MPICH_VERSION)
