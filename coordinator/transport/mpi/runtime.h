// MpiRuntime: MPI from its start to its end, for this process. A program's own MPI_Init is
// respected: then MPI is not finalised here. Nothing of the program's communicators is used beyond
// duplicating MPI_COMM_WORLD. Declares nothing of mpi.h.
//
// Thread rule: the thread that initialised MPI (MPI_THREAD_FUNNELED), for the runtime and for all
// communicators that come from it. Communicators must be gone before the runtime; those that are
// not are left to MPI's end.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "coordinator/transport/communicator.h"

namespace cox::transport {

struct MpiOptions {
  std::int32_t ranks_per_node = 0;         // 0 = as the machine says; else pretend (tests)
  std::string shared_folder = "/dev/shm";  // of shared segments
  std::size_t gather_limit_bytes = std::size_t{64} << 10;   // all-reduce by one all-gather up to
                                                            // this size of all ranks' bytes
  std::size_t scratch_limit_bytes = std::size_t{16} << 20;  // of one reduction in flight
  std::chrono::nanoseconds start_up_timeout = std::chrono::seconds(120);
};

class CallBook;
class MpiProgress;

class MpiRuntime {
 public:
  // Initialises MPI unless the program did. failed_precondition when the library is not MPICH, MPI
  // is already finalised, or this is not the thread that initialised it.
  static Result<MpiRuntime> start(int* argc, char*** argv);

  MpiRuntime(MpiRuntime&& other) noexcept;
  MpiRuntime& operator=(MpiRuntime&&) = delete;
  // As end().
  ~MpiRuntime();

  // Waits for the other ranks, a minute at most, and finalises MPI when start() initialised it.
  // Returns why it did not wait until all came. Nothing may be sent afterwards.
  Status end();

  // Returns whether start() called MPI_Init, and the destructor will call MPI_Finalize.
  bool initialized_here() const { return owned_; }

  // Returns a duplicate of MPI_COMM_WORLD that returns errors. Collective and waiting.
  Result<std::unique_ptr<Communicator>> world(const MpiOptions& options) const;

  // Returns the calls of all communicators that come from world(); null before.
  CallBook* calls() const;

  // Keeps the destructor from finalising MPI, which would wait for all ranks. Call it on a rank
  // that fails alone. A process that then exits with a code other than 0 takes the job with it.
  // REQUIRES: initialized_here().
  void leave_to_exit() { owned_ = false; }

  // Ends all ranks at once, without cleaning up. Call it for failures that cannot be reported to
  // the other ranks.
  [[noreturn]] static void abort_all(int exit_code);

 private:
  explicit MpiRuntime(bool owned);
  bool owned_;
  std::shared_ptr<MpiProgress> progress_;  // of all communicators that come from here
};

}  // namespace cox::transport
