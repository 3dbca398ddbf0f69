// MpiCallPost carries CallNotes between ranks as messages of a communicator of their own. A note is
// small enough for MPI to send it whether or not it is received. Includes mpi.h: for transport/mpi
// only. One thread.
#pragma once

#include <mpi.h>

#include <memory>
#include <optional>
#include <vector>

#include "coordinator/transport/call_book.h"

namespace cox::transport {

class MpiCallPost final : public CallPost {
 public:
  // `comm` has the job's ranks and is used for nothing else. It is left to MPI's end, as notes are
  // that nobody receives.
  explicit MpiCallPost(MPI_Comm comm);
  RankId rank() const override { return RankId(rank_); }
  std::int32_t size() const override { return size_; }
  void send_to_others(const CallNote& note) override;
  std::optional<CallNote> receive() override;

 private:
  struct Sent {
    CallNote note;
    std::vector<MPI_Request> requests;
  };
  void forget_arrived();

  MPI_Comm comm_;
  int rank_ = 0;
  int size_ = 1;
  std::vector<Sent*> sent_;  // never freed while MPI may read them
};

}  // namespace cox::transport
