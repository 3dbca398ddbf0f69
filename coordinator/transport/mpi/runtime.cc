#include "coordinator/transport/mpi/runtime.h"

#include <mpi.h>

#include <array>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "coordinator/transport/launch.h"
#include "coordinator/transport/mpi/communicator.h"
#include "coordinator/transport/mpi/operation.h"

namespace cox::transport {
namespace {

Status check_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text{};
  int length = 0;
  Status status = mpi_status(MPI_Get_library_version(text.data(), &length),
                             "MPI_Get_library_version", "before the start");
  if (!status.ok()) return status;
  return check_mpi_library({text.data(), static_cast<std::size_t>(length)});
}

Status check_thread() {
  int is_main = 0;
  Status status = mpi_status(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main", "at the start");
  if (!status.ok() || is_main != 0) return status;
  return failed_precondition(
      "MPI: expected to be started on the thread that called MPI_Init, found another; only one "
      "thread of a rank may use MPI");
}

Status initialize(int* argc, char*** argv) {
  int provided = MPI_THREAD_SINGLE;
  Status status = mpi_status(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided),
                             "MPI_Init_thread", "at the start");
  if (!status.ok()) return status;
  if (provided < MPI_THREAD_FUNNELED) {
    return failed_precondition("MPI: expected thread level MPI_THREAD_FUNNELED, found " +
                               std::to_string(provided) + "; use a library built with threads");
  }
  return ok_status();
}

// Ranks that share memory get one number: the lowest of their ranks in `comm`.
Result<NodeId> node_of(MPI_Comm comm, int rank, const MpiCommunicator::Heritage& heritage,
                       const WaitPolicy& policy) {
  const std::int32_t pretended = heritage.options.ranks_per_node;
  if (pretended > 0) return NodeId(rank / pretended);
  Status status = mpi_meet(comm, "world", policy);
  if (!status.ok()) return status;
  MPI_Comm node = MPI_COMM_NULL;
  status = mpi_status(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
                      "MPI_Comm_split_type", "world");
  if (!status.ok()) return status;
  Result<std::unique_ptr<Communicator>> ranks = MpiCommunicator::adopt(node, "node", heritage);
  if (!ranks.ok()) return ranks.status();
  NodeId lowest(rank);
  status = broadcast(**ranks, lowest, policy);
  if (!status.ok()) return status;
  return lowest;
}

}  // namespace

Result<MpiRuntime> MpiRuntime::start(int* argc, char*** argv) {
  if (Status library = check_library(); !library.ok()) return library;
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized != 0) {
    return failed_precondition("MPI: expected it to be usable, found it finalised; start before");
  }
  if (initialized == 0) {
    if (Status started = initialize(argc, argv); !started.ok()) return started;
    return MpiRuntime(true);
  }
  if (Status thread = check_thread(); !thread.ok()) return thread;
  return MpiRuntime(false);
}

MpiRuntime::MpiRuntime(bool owned) : owned_(owned), progress_(std::make_shared<MpiProgress>()) {}

MpiRuntime::MpiRuntime(MpiRuntime&& other) noexcept
    : owned_(std::exchange(other.owned_, false)), progress_(std::move(other.progress_)) {}

// Finalising blocks inside MPI, which is slow where ranks share cores, so ranks meet before.
MpiRuntime::~MpiRuntime() {
  int finalized = 0;
  if (!owned_ || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return;
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const WaitPolicy policy = wait_policy(size, usable_cores());
  static_cast<void>(mpi_meet(MPI_COMM_WORLD, "world",
                             with_timeout(policy, std::chrono::seconds(60), "all ranks to end")));
  MPI_Finalize();
}

Result<std::unique_ptr<Communicator>> MpiRuntime::world(const MpiOptions& options) const {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const WaitPolicy policy = with_timeout(wait_policy(size, usable_cores()),
                                         options.start_up_timeout, "all ranks to join the world");
  Result<MPI_Comm> copy = mpi_duplicate(MPI_COMM_WORLD, "world", policy);
  if (!copy.ok()) return copy.status();
  MpiCommunicator::Heritage heritage{NodeId(0), options, progress_};
  Result<NodeId> node = node_of(*copy, rank, heritage, policy);
  if (!node.ok()) return node.status();
  heritage.node = *node;
  return MpiCommunicator::adopt(*copy, "world", heritage);
}

void MpiRuntime::abort_all(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();
}

}  // namespace cox::transport
