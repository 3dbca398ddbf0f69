#include "coordinator/transport/mpi/runtime.h"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/transport/call_book.h"
#include "coordinator/transport/launch.h"
#include "coordinator/transport/mpi/operation.h"
#include "coordinator/transport/request_table.h"
#include "coordinator/transport/shared/shared_file.h"
#include "coordinator/transport/wait.h"

namespace cox::transport {
namespace {

using BetweenPolls = std::function<void()>;  // may be empty

Status poll(MPI_Request& request, const char* call, const std::string& name,
            const WaitPolicy& policy, const BetweenPolls& look = {}) {
  Waiter waiter(policy);
  for (;;) {
    int flag = 0;
    Status status = mpi_status(MPI_Test(&request, &flag, MPI_STATUS_IGNORE), call, name);
    if (!status.ok() || flag != 0) return status;
    if (look) look();
    status = waiter.pause();
    if (!status.ok()) return status;
  }
}

// Returns a duplicate of `comm`, and waits for the duplicate by polling. `name` is for messages.
Result<MPI_Comm> mpi_duplicate(MPI_Comm comm, const std::string& name, const WaitPolicy& policy) {
  // MPI writes the handle when the operation completes, so the handle must not lie on a stack that
  // a timeout unwinds.
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

// Gathers all ranks of `comm` by polling, so that a blocking call afterwards is short.
Status mpi_meet(MPI_Comm comm, const std::string& name, const WaitPolicy& policy,
                const BetweenPolls& look = {}) {
  MPI_Request request = MPI_REQUEST_NULL;
  Status status = mpi_status(MPI_Ibarrier(comm, &request), "MPI_Ibarrier", name);
  if (!status.ok()) return status;
  return poll(request, "MPI_Ibarrier", name, policy, look);
}

// Stores the ranks of `comm`, as ranks of the job, in `place`.
Status find_members(MPI_Comm comm, MpiPlace& place) {
  std::vector<int> here(static_cast<std::size_t>(place.size));
  std::vector<int> there(here.size());
  std::iota(here.begin(), here.end(), 0);
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Group job = MPI_GROUP_NULL;
  Status found = mpi_status(MPI_Comm_group(comm, &members), "MPI_Comm_group", place.name);
  if (!found.ok()) return found;
  found = mpi_status(MPI_Comm_group(MPI_COMM_WORLD, &job), "MPI_Comm_group", place.name);
  if (found.ok()) {
    found =
        mpi_status(MPI_Group_translate_ranks(members, place.size, here.data(), job, there.data()),
                   "MPI_Group_translate_ranks", place.name);
    MPI_Group_free(&job);
  }
  MPI_Group_free(&members);
  place.members.clear();
  for (const int rank : there) place.members.push_back(RankId(rank));
  return found;
}

// The Communicator over MPI. Owns an MPI communicator and a table of operations.
class MpiCommunicator final : public Communicator {
 public:
  // Heritage is passed on to derived communicators. `node` is equal on ranks that share memory, and
  // on those only.
  struct Heritage {
    NodeId node{};
    MpiOptions options;
    std::shared_ptr<MpiProgress> progress;
  };
  // Takes ownership of `comm` and makes its calls return errors. Collective and blocking.
  static Result<std::unique_ptr<Communicator>> adopt(MPI_Comm comm, std::string name,
                                                     const Heritage& heritage) {
    std::unique_ptr<MpiCommunicator> made(new MpiCommunicator(comm, std::move(name), heritage));
    Status status = mpi_status(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN),
                               "MPI_Comm_set_errhandler", made->place_.name);
    if (status.ok())
      status =
          mpi_status(MPI_Comm_rank(comm, &made->place_.rank), "MPI_Comm_rank", made->place_.name);
    if (status.ok())
      status =
          mpi_status(MPI_Comm_size(comm, &made->place_.size), "MPI_Comm_size", made->place_.name);
    if (status.ok()) status = find_members(comm, made->place_);
    if (status.ok()) {
      made->line_ = heritage.progress->calls->open_line(made->place_.name, made->place_.members);
      status = made->count_node_ranks();
    }
    if (!status.ok()) return status;
    return std::unique_ptr<Communicator>(std::move(made));
  }

  // A communicator with operations in flight cannot be freed, and MPI may still write to their
  // buffers. Both are left to the end of the process.
  ~MpiCommunicator() override {
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

  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  RankId rank() const override { return RankId(place_.rank); }
  std::int32_t size() const override { return place_.size; }
  std::int32_t ranks_on_node() const override { return ranks_on_node_; }
  const char* kind() const override { return "mpi"; }

  Result<Progress> test(Request& request) override {
    if (!request.active()) return Progress::done;
    MpiOperation* operation = requests_.find(request);
    if (operation == nullptr) return stale_request();
    Result<Progress> progress = operation->advance();
    if (progress.ok() && *progress == Progress::pending) {
      heritage_.progress->advance_all();
      return look(*operation, request);
    }
    heritage_.progress->remove(operation);
    const bool is_watched = operation->watched_since().has_value();
    requests_.release(request);
    if (!is_watched) return progress;
    if (!progress.ok()) return calls().failed(*line_, progress.status());
    calls().end();
    return progress;
  }

  Result<std::unique_ptr<Communicator>> duplicate() override {
    const std::string name = child_name();
    Result<MPI_Comm> copy =
        mpi_duplicate(place_.comm, name, start_up_wait("all ranks to duplicate a communicator"));
    if (!copy.ok()) return copy.status();
    return adopt(*copy, name, heritage_);
  }

  Result<std::unique_ptr<Communicator>> split_by_node() override {
    return part(heritage_.node.value());
  }

 private:
  MpiCommunicator(MPI_Comm comm, std::string name, const Heritage& heritage) : heritage_(heritage) {
    place_.comm = comm;
    place_.name = std::move(name);
    place_.gather_limit_bytes = heritage.options.gather_limit_bytes;
    place_.scratch_limit_bytes = heritage.options.scratch_limit_bytes;
  }

  Result<Request> start(const Call& call, const Buffers& buffers,
                        const Reduction& reduction) override {
    auto taken = requests_.take();
    const CallStamp stamp = calls().begin(*line_, call);
    Status begun = taken.slot->begin(place_, operations_++, call, stamp, buffers, reduction);
    if (calls().is_named()) taken.slot->watch(CallBook::Clock::now());
    if (!begun.ok()) {
      taken.slot->abandon();
      requests_.release(taken.request);
      return begun;
    }
    if (taken.slot->has_steps()) heritage_.progress->add(taken.slot);
    return taken.request;
  }

  Result<std::unique_ptr<Communicator>> part(std::int32_t color) override {
    const std::string name = concat(child_name(), ":", color);
    Status met = mpi_meet(place_.comm, name, start_up_wait("all ranks to split a communicator"));
    if (!met.ok()) return met;
    MPI_Comm part = MPI_COMM_NULL;
    Status status =
        mpi_status(MPI_Comm_split(place_.comm, color, place_.rank, &part), "MPI_Comm_split", name);
    if (!status.ok()) return status;
    return adopt(part, name, heritage_);
  }

  Result<SharedSegment> share(std::size_t bytes) override {
    return share_file(*this, bytes, heritage_.options.shared_folder,
                      start_up_wait("all ranks of the node to map shared memory"));
  }

  CallBook& calls() const { return *heritage_.progress->calls; }

  // Ends a wait for ranks in other calls. MPI may still write to the operation's memory, so the
  // memory and its slot are left to the end of the process.
  Result<Progress> look(MpiOperation& operation, Request& request) {
    const auto since = operation.watched_since();
    const Status same = since ? calls().look(*line_, *since) : ok_status();
    if (same.ok()) return Progress::pending;
    heritage_.progress->remove(&operation);
    operation.abandon();
    request = Request{};
    return same;
  }

  Status count_node_ranks() {
    ranks_on_node_ = place_.size;  // until known, assume a crowded node and wait carefully
    const auto nodes =
        all_gather(*this, heritage_.node, start_up_wait("all ranks to report their node"));
    if (!nodes.ok()) return nodes.status();
    ranks_on_node_ = static_cast<std::int32_t>(std::ranges::count(*nodes, heritage_.node));
    return ok_status();
  }

  WaitPolicy start_up_wait(const char* what) const {
    return with_timeout(wait_policy(ranks_on_node_, usable_cores()),
                        heritage_.options.start_up_timeout, what);
  }

  std::string child_name() { return concat(place_.name, ".", children_++); }

  const Heritage heritage_;
  MpiPlace place_;
  std::int32_t ranks_on_node_ = 1;
  std::uint64_t operations_ = 0;
  std::int32_t children_ = 0;
  RequestTable<MpiOperation> requests_;
  std::shared_ptr<CallLine> line_;
};

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
    return failed_precondition("MPI: expected thread level MPI_THREAD_FUNNELED, found ", provided,
                               "; use a library built with threads");
  }
  return ok_status();
}

// Returns one number for all ranks that share memory: the lowest of their ranks in `comm`.
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
    return failed_precondition(
        "MPI: expected to start before MPI_Finalize, found MPI already finalised; start the "
        "session before MPI_Finalize");
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

MpiRuntime::~MpiRuntime() {
  static_cast<void>(end());
}

// Finalising blocks inside MPI, which is slow when ranks share cores, so ranks meet first. A rank
// that waits for this one in a call learns from its looks that this one has ended.
Status MpiRuntime::end() {
  int finalized = 0;
  if (!owned_ || MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0) return ok_status();
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const WaitPolicy policy = wait_policy(size, usable_cores());
  const auto look = [book = calls(), since = CallBook::Clock::now()] {
    if (book != nullptr) static_cast<void>(book->look_at_end(since));
  };
  if (calls() != nullptr) calls()->begin_end();
  Status met = mpi_meet(MPI_COMM_WORLD, "world",
                        with_timeout(policy, std::chrono::seconds(60), "all ranks to end"), look);
  if (calls() != nullptr) calls()->clear_notes();
  MPI_Finalize();
  return met;
}

Result<std::unique_ptr<Communicator>> MpiRuntime::world(const MpiOptions& options) const {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const WaitPolicy policy = with_timeout(wait_policy(size, usable_cores()),
                                         options.start_up_timeout, "all ranks to join the world");
  Result<MPI_Comm> notes = mpi_duplicate(MPI_COMM_WORLD, "calls", policy);
  if (!notes.ok()) return notes.status();
  progress_->calls = std::make_shared<CallBook>(std::make_unique<MpiCallPost>(*notes));
  Result<MPI_Comm> copy = mpi_duplicate(MPI_COMM_WORLD, "world", policy);
  if (!copy.ok()) return copy.status();
  MpiCommunicator::Heritage heritage{NodeId(0), options, progress_};
  Result<NodeId> node = node_of(*copy, rank, heritage, policy);
  if (!node.ok()) return node.status();
  heritage.node = *node;
  return MpiCommunicator::adopt(*copy, "world", heritage);
}

CallBook* MpiRuntime::calls() const {
  return progress_->calls.get();
}

void MpiRuntime::abort_all(int exit_code) {
  MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::abort();
}

}  // namespace cox::transport
