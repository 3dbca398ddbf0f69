#include "coordinator/transport/mpi/finalize_watch.h"

#include <mpi.h>

#include <utility>

namespace cox::transport {
namespace {

int call_before(MPI_Comm, int, void* attribute, void*) {
  const auto& before = *static_cast<const std::function<void()>*>(attribute);
  if (before) before();
  return MPI_SUCCESS;
}

}  // namespace

FinalizeWatch::FinalizeWatch(std::function<void()> before)
    : before_(std::move(before)), key_(MPI_KEYVAL_INVALID) {
  if (MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, call_before, &key_, nullptr) != MPI_SUCCESS) {
    key_ = MPI_KEYVAL_INVALID;
    return;
  }
  MPI_Comm_set_attr(MPI_COMM_SELF, key_, &before_);
}

FinalizeWatch::~FinalizeWatch() {
  before_ = nullptr;
  int is_finalized = 0;
  if (key_ == MPI_KEYVAL_INVALID || MPI_Finalized(&is_finalized) != MPI_SUCCESS) return;
  if (is_finalized != 0) return;
  MPI_Comm_delete_attr(MPI_COMM_SELF, key_);
  MPI_Comm_free_keyval(&key_);
}

}  // namespace cox::transport
