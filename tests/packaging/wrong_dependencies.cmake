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
    COMMAND "${CMAKE_COMMAND}" -E env --unset=COX_TORCH_ROOT --unset=CMAKE_PREFIX_PATH
      --unset=CONDA_PREFIX "VIRTUAL_ENV=${environment}"
      "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/${name}/build" -G "${GENERATOR}"
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

# What looks like LibTorch of some version, by the least that is looked at.
function(fake_torch folder version)
  string(REPLACE "." ";" numbers "${version}")
  set(text)
  foreach(name MAJOR MINOR PATCH)
    list(POP_FRONT numbers number)
    string(APPEND text "#define TORCH_VERSION_${name} ${number}\n")
  endforeach()
  file(MAKE_DIRECTORY "${folder}/share/cmake")
  file(WRITE "${folder}/lib/libtorch_cpu.so" "")
  file(WRITE "${folder}/lib/libc10.so" "")
  file(WRITE "${folder}/include/torch/csrc/api/include/torch/torch.h" "")
  file(WRITE "${folder}/include/torch/headeronly/version.h" "${text}")
endfunction()

set(packages lib/python3.11/site-packages/torch)
file(WRITE "${WORK}/without_headers/${packages}/lib/libtorch_cpu.so" "")
file(WRITE "${WORK}/without_headers/${packages}/lib/libc10.so" "")
set(environment "${WORK}/without_headers")
expect_refusal(no_headers "Expected LibTorch in .*/without_headers/.*, found no include/torch/csrc/api/include/torch/torch.h"
  -DCOX_WITH_MPI=OFF)

fake_torch("${WORK}/old/${packages}" 2.9.1)
set(environment "${WORK}/old")
expect_refusal(old_torch "Expected LibTorch 2.11 to 2.15, found 2.9.1 in .*/old/.*scripts/bootstrap"
  -DCOX_WITH_MPI=OFF)
fake_torch("${WORK}/given/torch" 2.10.0)
expect_refusal(given_torch "Expected LibTorch 2.11 to 2.15, found 2.10.0 in .*/given/torch"
  -DCOX_WITH_MPI=OFF "-DCOX_TORCH_ROOT=${WORK}/given")  # before the environment's
set(environment)

fake_torch("${WORK}/first/torch" 2.11.0)
fake_torch("${WORK}/second/torch" 2.12.1)
expect_refusal(two_torch "Expected one LibTorch, found it in .*/first/torch and in .*/second/torch. Choose one"
  -DCOX_WITH_MPI=OFF "-DCMAKE_PREFIX_PATH=${WORK}/first\\;${WORK}/second")
expect_refusal(old_abi "Expected LibTorch with the C\\+\\+11 ABI of libstdc\\+\\+, found another in"
  -DCOX_WITH_MPI=OFF "-DCMAKE_PREFIX_PATH=${WORK}/first/torch/share/cmake")
