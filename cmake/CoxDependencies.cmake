# Finds what the chosen parts need. Nothing is downloaded here: scripts/bootstrap installs.
if(COX_CORE_ONLY)
  return()
endif()

find_package(Threads REQUIRED)
if(COX_BUILD_TESTS)
  find_package(Protobuf 3.21 REQUIRED)  # tests compare our bytes with its classes
endif()
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(Boost 1.74 CONFIG REQUIRED COMPONENTS headers)  # Asio and Beast; nothing to link
find_package(ZLIB 1.2 REQUIRED)  # packed traces
find_package(nlohmann_json 3.11 CONFIG REQUIRED)
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED DOC "of xxHash 0.8 (Debian: libxxhash-dev)")
find_package(fmt 9 CONFIG REQUIRED)
find_package(CLI11 2.1 CONFIG REQUIRED)
if(COX_WITH_MPI)
  find_package(MPICH REQUIRED)
endif()
if(COX_WITH_TORCH)
  find_package(LibTorch REQUIRED)
endif()

# NCCL is looked up by the program when it runs; its header and library only widen the tests. Why
# one is missing stands in the summary.
find_path(COX_CUDA_INCLUDE_DIR cuda_runtime.h HINTS ENV CUDA_HOME PATHS /usr/local/cuda
  PATH_SUFFIXES include DOC "of the CUDA Toolkit")
find_path(COX_NCCL_INCLUDE_DIR nccl.h HINTS ENV CUDA_HOME PATHS /usr/local/cuda
  PATH_SUFFIXES include DOC "of NCCL")
find_library(COX_NCCL_LIBRARY NAMES libnccl.so.2 HINTS ENV CUDA_HOME PATHS /usr/local/cuda
  PATH_SUFFIXES lib64 lib DOC "NCCL 2")
