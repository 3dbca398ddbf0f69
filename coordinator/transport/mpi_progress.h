// MpiProgress: the operations of several steps that are in flight on any communicator of one
// MpiRuntime. MPI moves its own collectives on whichever of them is tested; ours must be no worse:
// a rank that waits on one communicator takes the steps that others need on another, or two ranks
// could wait for each other for ever. Includes mpi.h: for mpi_*.cc only. One thread.
#pragma once

#include <algorithm>
#include <vector>

#include "coordinator/transport/mpi_operation.h"

namespace cox::transport {

class MpiProgress {
 public:
  void add(MpiOperation* operation) { operations_.push_back(operation); }
  void remove(MpiOperation* operation) { std::erase(operations_, operation); }
  // An operation keeps its outcome for its own test().
  void advance_all() {
    for (MpiOperation* operation : operations_) static_cast<void>(operation->advance());
  }

 private:
  std::vector<MpiOperation*> operations_;
};

}  // namespace cox::transport
