# Configures with something wrong in place of MPICH or LibTorch. Each must stop with one message
# that says what was expected, what was found and what to do.

# A wrapper that answers -show with `flags` for an mpi.h that holds `header`.
function(fake_wrapper folder header)
  file(WRITE "${folder}/include/mpi.h" "${header}")
  file(WRITE "${folder}/mpicxx" "#!/bin/sh\necho g++ -I${folder}/include\n")
  file(CHMOD "${folder}/mpicxx" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()

function(expect_refusal name expected)
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/${name}/build" -G "${GENERATOR}"
      -DCOX_BUILD_TESTS=OFF ${ARGN}
    RESULT_VARIABLE code OUTPUT_VARIABLE unused ERROR_VARIABLE text)
  string(REGEX REPLACE "[ \n]+" " " text "${text}")
  if(code EQUAL 0)
    message(SEND_ERROR "${name}: expected configure to fail, found success")
  elseif(NOT text MATCHES "${expected}")
    message(SEND_ERROR "${name}: expected a message like '${expected}', found: ${text}")
  endif()
endfunction()

file(REMOVE_RECURSE "${WORK}")

fake_wrapper("${WORK}/open_mpi"
  "#define OMPI_MAJOR_VERSION 4\n#define OMPI_MINOR_VERSION 1\n#define OMPI_RELEASE_VERSION 4\n")
expect_refusal(open_mpi "Expected MPICH, found Open MPI 4.1 behind .*-DCOX_MPICXX="
  -DCOX_WITH_TORCH=OFF "-DCOX_MPICXX=${WORK}/open_mpi/mpicxx")

# MPICH's header over a library that is another one.
fake_wrapper("${WORK}/other_library" "#include <cstring>
#define MPICH_VERSION \"4.0.2\"
#define MPI_MAX_LIBRARY_VERSION_STRING 256
#define MPI_SUCCESS 0
inline int MPI_Get_library_version(char* text, int* length) {
  std::strcpy(text, \"Open MPI v4.1.4\");
  *length = 15;
  return MPI_SUCCESS;
}
")
expect_refusal(other_library "Expected MPICH, found a library that calls itself 'Open MPI v4.1.4'"
  -DCOX_WITH_TORCH=OFF "-DCOX_MPICXX=${WORK}/other_library/mpicxx")

fake_wrapper("${WORK}/unknown_mpi" "#define SOME_OTHER_MPI 1\n")
expect_refusal(unknown_mpi "Expected MPICH, found an MPI that is neither MPICH nor Open MPI"
  -DCOX_WITH_TORCH=OFF "-DCOX_MPICXX=${WORK}/unknown_mpi/mpicxx")

expect_refusal(no_wrapper "Expected MPICH, found a wrapper that does not answer"
  -DCOX_WITH_TORCH=OFF -DCOX_MPICXX=${WORK}/nothing/mpicxx)

expect_refusal(no_torch "Expected LibTorch in .*, found no lib/libtorch_cpu.so there. Run scripts/bootstrap"
  -DCOX_WITH_MPI=OFF "-DCOX_TORCH_ROOT=${WORK}/nothing")
