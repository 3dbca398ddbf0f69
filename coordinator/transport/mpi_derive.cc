// How one MPI communicator becomes another: duplicate, split, nodes, shared memory. All of it is
// for the start of a job.
#include "coordinator/transport/mpi_communicator.h"
#include "coordinator/transport/mpi_error.h"
#include "coordinator/transport/shared_file.h"

namespace cox::transport {
namespace {

Status poll(MPI_Request& request, const char* call, const std::string& name,
            const WaitPolicy& policy) {
  Waiter waiter(policy);
  for (;;) {
    int flag = 0;
    Status status = mpi_status(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), call, name);
    if (!status.ok() || flag != 0) return status;
    status = waiter.pause();
    if (!status.ok()) return status;
  }
}

}  // namespace

Result<MPI_Comm> mpi_duplicate(MPI_Comm comm, const std::string& name, const WaitPolicy& policy) {
  // MPI writes the handle when the operation completes, so it must not be on a stack that a timeout
  // unwinds.
  auto copy = std::make_unique<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  Status status = mpi_status(MPI_Comm_idup(comm, copy.get(), &request), "MPI_Comm_idup", name);
  if (!status.ok()) return status;
  status = poll(request, "MPI_Comm_idup", name, policy);
  if (!status.ok()) {
    static_cast<void>(copy.release());
    return status;
  }
  return *copy;
}

Status mpi_meet(MPI_Comm comm, const std::string& name, const WaitPolicy& policy) {
  MPI_Request request = MPI_REQUEST_NULL;
  Status status = mpi_status(MPI_Ibarrier(comm, &request), "MPI_Ibarrier", name);
  if (!status.ok()) return status;
  return poll(request, "MPI_Ibarrier", name, policy);
}

std::string MpiCommunicator::child_name() {
  return place_.name + "." + std::to_string(children_++);
}

Result<std::unique_ptr<Communicator>> MpiCommunicator::duplicate() {
  const std::string name = child_name();
  Result<MPI_Comm> copy =
      mpi_duplicate(place_.comm, name, start_up_wait("all ranks to duplicate a communicator"));
  if (!copy.ok()) return copy.status();
  return adopt(*copy, name, heritage_);
}

Result<std::unique_ptr<Communicator>> MpiCommunicator::split(std::int32_t color) {
  Status fits = check_color(color);
  if (!fits.ok()) return fits;
  const std::string name = child_name() + ":" + std::to_string(color);
  Status met = mpi_meet(place_.comm, name, start_up_wait("all ranks to split a communicator"));
  if (!met.ok()) return met;
  MPI_Comm part = MPI_COMM_NULL;
  Status status =
      mpi_status(MPI_Comm_split(place_.comm, color, place_.rank, &part), "MPI_Comm_split", name);
  if (!status.ok()) return status;
  return adopt(part, name, heritage_);
}

Result<std::unique_ptr<Communicator>> MpiCommunicator::split_by_node() {
  return split(heritage_.node.value());
}

Result<SharedSegment> MpiCommunicator::shared_segment(std::size_t bytes) {
  if (ranks_on_node_ != place_.size) {
    return failed_precondition("shared_segment: expected ranks of one node, found " +
                               std::to_string(place_.size - ranks_on_node_) +
                               " on others; call it on what split_by_node() returns");
  }
  return share_file(*this, bytes, heritage_.options.shared_folder,
                    start_up_wait("all ranks of the node to map shared memory"));
}

}  // namespace cox::transport
