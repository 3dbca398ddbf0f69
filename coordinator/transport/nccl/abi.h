// The part of NCCL's binary interface that Coxswain calls. Declared here, so that Coxswain compiles
// without nccl.h and without the CUDA Toolkit. Values and layouts hold for NCCL 2.17 and every
// later release of libnccl.so.2. tests/transport/nccl_abi_test.cc compares them with the real
// nccl.h if installed. Declarations only.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

namespace cox::transport::nccl {

struct Communicator;  // ncclComm: opaque

enum class Outcome : int {  // ncclResult_t
  success = 0,
  unhandled_cuda_error = 1,
  system_error = 2,
  internal_error = 3,
  invalid_argument = 4,
  invalid_usage = 5,
  remote_error = 6,
  in_progress = 7,
};

enum class Type : int {  // ncclDataType_t
  int8 = 0,
  uint8 = 1,
  int32 = 2,
  uint32 = 3,
  int64 = 4,
  uint64 = 5,
  float16 = 6,
  float32 = 7,
  float64 = 8,
  bfloat16 = 9,
};

constexpr std::size_t bytes_of(Type type) {
  constexpr std::size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
  return kBytes[static_cast<std::size_t>(type)];
}

enum class Operator : int { sum = 0, product = 1, max = 2, min = 3, average = 4 };  // ncclRedOp_t

struct UniqueId {  // ncclUniqueId
  char bytes[128];
};

// The fields of ncclConfig_t in NCCL 2.17. Later releases append fields and read `size` and
// `version`, so they accept this Config and choose the other fields themselves.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xCAFEBEEF;
  unsigned int version = 21700;
  int blocking = INT_MIN;  // INT_MIN = NCCL's choice, here and below
  int cluster_size = INT_MIN;
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;  // most thread blocks of a collective
  const char* net_name = nullptr;
};

inline constexpr int kOldestVersion = 21700;

// The functions, named as in nccl.h without the prefix. A stream is a cudaStream_t.
struct Functions {
  Outcome (*GetVersion)(int* version);
  Outcome (*GetUniqueId)(UniqueId* id);
  Outcome (*CommInitRankConfig)(Communicator** made, int ranks, UniqueId id, int rank,
                                Config* config);
  Outcome (*CommGetAsyncError)(Communicator* communicator, Outcome* state);
  Outcome (*CommFinalize)(Communicator* communicator);
  Outcome (*CommDestroy)(Communicator* communicator);
  Outcome (*CommAbort)(Communicator* communicator);
  const char* (*GetErrorString)(Outcome outcome);
  const char* (*GetLastError)(Communicator* communicator);
  Outcome (*Broadcast)(const void* send, void* receive, std::size_t count, Type type, int root,
                       Communicator* communicator, void* stream);
  Outcome (*AllReduce)(const void* send, void* receive, std::size_t count, Type type,
                       Operator operation, Communicator* communicator, void* stream);
};

}  // namespace cox::transport::nccl
