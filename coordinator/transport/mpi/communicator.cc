#include "coordinator/transport/mpi/communicator.h"

#include <algorithm>
#include <vector>

#include "coordinator/transport/mpi/operation.h"
#include "coordinator/transport/shared/segment.h"

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

MpiCommunicator::MpiCommunicator(MPI_Comm comm, std::string name, const Heritage& heritage)
    : heritage_(heritage) {
  place_.comm = comm;
  place_.name = std::move(name);
  place_.gather_limit_bytes = heritage.options.gather_limit_bytes;
  place_.scratch_limit_bytes = heritage.options.scratch_limit_bytes;
}

Result<std::unique_ptr<Communicator>> MpiCommunicator::adopt(MPI_Comm comm, std::string name,
                                                             const Heritage& heritage) {
  std::unique_ptr<MpiCommunicator> made(new MpiCommunicator(comm, std::move(name), heritage));
  Status status = mpi_status(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN),
                             "MPI_Comm_set_errhandler", made->place_.name);
  if (!status.ok()) return status;
  status = mpi_status(MPI_Comm_rank(comm, &made->place_.rank), "MPI_Comm_rank", made->place_.name);
  if (!status.ok()) return status;
  status = mpi_status(MPI_Comm_size(comm, &made->place_.size), "MPI_Comm_size", made->place_.name);
  if (!status.ok()) return status;
  status = made->count_node_ranks();
  if (!status.ok()) return status;
  return std::unique_ptr<Communicator>(std::move(made));
}

Status MpiCommunicator::count_node_ranks() {
  ranks_on_node_ = place_.size;  // crowded until known: the careful way of waiting
  const auto nodes =
      all_gather(*this, heritage_.node, start_up_wait("all ranks to say on which node they are"));
  if (!nodes.ok()) return nodes.status();
  ranks_on_node_ = static_cast<std::int32_t>(std::ranges::count(*nodes, heritage_.node));
  return ok_status();
}

// A communicator with operations in flight cannot be freed, and MPI may still write to their
// buffers: both are left to the end of the process.
MpiCommunicator::~MpiCommunicator() {
  int finalized = 0;
  if (MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  if (requests_.in_flight() > 0) {
    requests_.for_each_in_flight([this](MpiOperation& operation) {
      heritage_.progress->remove(&operation);
      operation.abandon();
    });
    return;
  }
  MPI_Comm_free(&place_.comm);
}

WaitPolicy MpiCommunicator::start_up_wait(const char* what) const {
  return with_timeout(wait_policy(ranks_on_node_, usable_cores()),
                      heritage_.options.start_up_timeout, what);
}

Result<Request> MpiCommunicator::start(const Call& call, const Buffers& buffers,
                                       const Reduction& reduction) {
  auto taken = requests_.take();
  Status begun = taken.slot->begin(place_, operations_++, call, buffers, reduction);
  if (!begun.ok()) {
    taken.slot->abandon();
    requests_.release(taken.request);
    return begun;
  }
  if (taken.slot->has_steps()) heritage_.progress->add(taken.slot);
  return taken.request;
}

Result<Progress> MpiCommunicator::test(Request& request) {
  if (!request.active()) return Progress::done;
  MpiOperation* operation = requests_.find(request);
  if (operation == nullptr) return stale_request();
  Result<Progress> progress = operation->advance();
  if (progress.ok() && *progress == Progress::pending) {
    heritage_.progress->advance_all();
    return progress;
  }
  heritage_.progress->remove(operation);
  requests_.release(request);
  return progress;
}

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

Result<std::unique_ptr<Communicator>> MpiCommunicator::part(std::int32_t color) {
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
  return part(heritage_.node.value());
}

Result<SharedSegment> MpiCommunicator::share(std::size_t bytes) {
  return share_file(*this, bytes, heritage_.options.shared_folder,
                    start_up_wait("all ranks of the node to map shared memory"));
}

}  // namespace cox::transport
