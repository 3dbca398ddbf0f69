// FinalizeWatch calls a function when the program calls MPI_Finalize, while MPI is still usable.
// MPI_Finalize first deletes the attributes of MPI_COMM_SELF (MPI 4.0, section 11.2.4). A program
// may finalise MPI before its session ends; the session then ends in the function. Thread rule: the
// thread that initialised MPI. Declares nothing of mpi.h.
#pragma once

#include <functional>

namespace cox::transport {

class FinalizeWatch {
 public:
  // Installs the watch; a no-op if MPI accepts no attribute. `before` must not throw. REQUIRES: MPI
  // is initialised.
  explicit FinalizeWatch(std::function<void()> before);
  // Stops the watch: a later MPI_Finalize calls nothing.
  ~FinalizeWatch();
  FinalizeWatch(const FinalizeWatch&) = delete;
  FinalizeWatch& operator=(const FinalizeWatch&) = delete;

 private:
  std::function<void()> before_;
  int key_;
};

}  // namespace cox::transport
