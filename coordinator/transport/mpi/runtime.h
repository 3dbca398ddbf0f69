// MpiRuntime: MPI from its start to its end, for this process. A program's own MPI_Init is
// respected; the runtime then does not finalise MPI. The runtime duplicates MPI_COMM_WORLD and uses
// no other communicator of the program. Declares nothing of mpi.h.
//
// Thread rule: the thread that initialised MPI (MPI_THREAD_FUNNELED), for the runtime and for all
// communicators derived from it. Communicators must be destroyed before the runtime; later ones are
// left to MPI's end.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "coordinator/transport/communicator.h"

namespace cox::transport {

struct MpiOptions {
  std::int32_t ranks_per_node = 0;         // 0 = the machine's own nodes; else pretended (tests)
  std::string shared_folder = "/dev/shm";  // folder for shared segments
  std::size_t gather_limit_bytes = std::size_t{64} << 10;   // all-reduce by one all-gather up to
                                                            // this size of all ranks' bytes
  std::size_t scratch_limit_bytes = std::size_t{16} << 20;  // limit of one reduction in flight
  std::chrono::nanoseconds start_up_timeout = std::chrono::seconds(120);
};

class CallBook;
class MpiProgress;

class MpiRuntime {
 public:
  // Initialises MPI unless the program did. Returns failed_precondition when the library is not
  // MPICH, MPI is already finalised, or another thread initialised MPI.
  static Result<MpiRuntime> start(int* argc, char*** argv);

  MpiRuntime(MpiRuntime&& other) noexcept;
  MpiRuntime& operator=(MpiRuntime&&) = delete;
  // Calls end().
  ~MpiRuntime();

  // Waits at most a minute for the other ranks, and finalises MPI if start() initialised it.
  // Returns an error if not all ranks arrived. Send nothing afterwards.
  Status end();

  // Returns whether start() called MPI_Init, so that the destructor calls MPI_Finalize.
  bool initialized_here() const { return owned_; }

  // Returns a duplicate of MPI_COMM_WORLD whose calls return errors. Collective and blocking.
  Result<std::unique_ptr<Communicator>> world(const MpiOptions& options) const;

  // Returns the calls of all communicators derived from world(), or null before world().
  CallBook* calls() const;

  // Keeps the destructor from finalising MPI, which would wait for all ranks. Call it on a rank
  // that fails alone. If the process then exits with a code other than 0, the launcher ends the
  // whole job. REQUIRES: initialized_here().
  void leave_to_exit() { owned_ = false; }

  // Ends all ranks at once, without cleaning up. For failures that cannot be reported to other
  // ranks.
  [[noreturn]] static void abort_all(int exit_code);

 private:
  explicit MpiRuntime(bool owned);
  bool owned_;
  std::shared_ptr<MpiProgress> progress_;  // shared by all derived communicators
};

}  // namespace cox::transport
