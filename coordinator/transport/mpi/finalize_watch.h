// FinalizeWatch calls a function when the program calls MPI_Finalize, while MPI can still be used.
// MPI deletes the attributes of MPI_COMM_SELF first of all then (MPI 4.0, section 11.2.4). A
// session ends by it where the program finalises MPI before the session ends. Thread rule: the
// thread that initialised MPI. Declares nothing of mpi.h.
#pragma once

#include <functional>

namespace cox::transport {

class FinalizeWatch {
 public:
  // Watches nothing where MPI takes no attribute. `before` must not throw. REQUIRES: MPI is
  // initialised.
  explicit FinalizeWatch(std::function<void()> before);
  // From here on MPI_Finalize is the program's own affair.
  ~FinalizeWatch();
  FinalizeWatch(const FinalizeWatch&) = delete;
  FinalizeWatch& operator=(const FinalizeWatch&) = delete;

 private:
  std::function<void()> before_;
  int key_;
};

}  // namespace cox::transport
