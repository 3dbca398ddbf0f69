#include "coordinator/transport/mpi/operation.h"

namespace cox::transport {

MpiCallPost::MpiCallPost(MPI_Comm comm) : comm_(comm) {
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

// Drops a note that cannot be sent.
void MpiCallPost::send_to_others(const CallNote& note) {
  forget_arrived();
  auto* sent = sent_.emplace_back(new Sent{note, {}});
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(&sent->note, sizeof sent->note, MPI_BYTE, peer, 0, comm_, &request);
    sent->requests.push_back(request);
  }
}

void MpiCallPost::forget_arrived() {
  std::erase_if(sent_, [](Sent* sent) {
    int is_over = 0;
    const int code = MPI_Testall(static_cast<int>(sent->requests.size()), sent->requests.data(),
                                 &is_over, MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS || is_over == 0) return false;
    delete sent;
    return true;
  });
}

std::optional<CallNote> MpiCallPost::receive() {
  int is_there = 0;
  MPI_Status status{};
  if (MPI_Iprobe(MPI_ANY_SOURCE, 0, comm_, &is_there, &status) != MPI_SUCCESS || is_there == 0)
    return std::nullopt;
  CallNote note;
  const int code = MPI_Recv(&note, sizeof note, MPI_BYTE, status.MPI_SOURCE, 0, comm_, &status);
  if (code != MPI_SUCCESS || note.rank != status.MPI_SOURCE) note.magic = 0;
  return note;
}

}  // namespace cox::transport
