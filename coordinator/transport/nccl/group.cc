#include "coordinator/transport/nccl/group.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "coordinator/core/text.h"
#include "coordinator/io/limits.h"
#include "coordinator/io/thread.h"
#include "coordinator/transport/exchange/departure_watch.h"

namespace cox::transport {
namespace {

using nccl::Outcome;

constexpr std::chrono::microseconds kBetweenPolls{200};

Status status_for(Outcome outcome, const std::string& message) {
  switch (outcome) {
    case Outcome::invalid_argument:
    case Outcome::invalid_usage:
      return invalid_argument(message);
    case Outcome::internal_error:
      return internal_error(message);
    default:
      return unavailable(message);
  }
}

// StartVote is reduced again and again while NCCL starts. The merged vote is equal on all ranks, so
// all leave the start after the same poll with the same result.
struct StartVote {
  Departure failed;
  std::uint64_t pending = 0;  // ranks whose start is not over
};

void merge_into(StartVote& into, const StartVote& from) {
  merge_into(into.failed, from.failed);
  into.pending += from.pending;
}

struct IdFromRoot {
  nccl::UniqueId id{};
  Departure failed;  // the root, if it could not create an id
};

std::string words(const nccl::Functions& functions, nccl::Communicator* handle, Outcome outcome) {
  const char* name = functions.GetErrorString(outcome);
  const char* last = functions.GetLastError(handle);
  std::string text =
      concat(name != nullptr ? name : "no name", " (", static_cast<int>(outcome), ")");
  if (last != nullptr && *last != '\0') text += concat(": ", last);
  return text;
}

Status as_reason(const Departure& departure) {
  return unavailable("rank ", departure.rank, ": ", departure.text());
}

// Checks that every rank can open the library, and that all have the same release.
Status compare_libraries(Communicator& ranks, const Result<NcclLibrary>& library,
                         const WaitPolicy& wait) {
  const auto refusal = first_to_depart(ranks, library.status().message(), wait);
  if (!refusal.ok()) return refusal.status();
  if (refusal->somebody()) return as_reason(*refusal);
  const auto versions = all_gather(ranks, library->version(), wait);
  if (!versions.ok()) return versions.status();
  for (std::size_t r = 0; r < versions->size(); ++r) {
    if ((*versions)[r] == versions->front()) continue;
    return failed_precondition("NCCL: expected the same release on all ranks, found ",
                               nccl_version_text(versions->front()), " on rank 0 and ",
                               nccl_version_text((*versions)[r]), " on rank ", r);
  }
  return ok_status();
}

Result<nccl::UniqueId> share_id(Communicator& ranks, const nccl::Functions& functions,
                                const WaitPolicy& wait) {
  IdFromRoot told;
  if (ranks.rank() == kRoot) {
    const Outcome outcome = functions.GetUniqueId(&told.id);
    if (outcome != Outcome::success) {
      told.failed =
          Departure::of(kRoot, concat("no unique id: ", words(functions, nullptr, outcome)));
    }
  }
  if (Status s = broadcast(ranks, told, wait); !s.ok()) return s;
  if (told.failed.somebody()) return as_reason(told.failed);
  return told.id;
}

}  // namespace

NcclGroup::NcclGroup(const NcclLibrary& library, RankId rank, std::int32_t size,
                     std::chrono::nanoseconds end_limit)
    : nccl_(library.functions()), rank_(rank), size_(size), end_limit_(end_limit) {}

Result<std::unique_ptr<NcclGroup>> NcclGroup::create(Communicator& ranks,
                                                     const Result<NcclLibrary>& library,
                                                     const NcclGroupOptions& options,
                                                     const std::function<Status()>& before_start) {
  if (Status same = compare_libraries(ranks, library, options.wait); !same.ok()) return same;
  const auto id = share_id(ranks, library->functions(), options.wait);
  if (!id.ok()) return id.status();
  std::unique_ptr<NcclGroup> group(
      new NcclGroup(*library, ranks.rank(), ranks.size(), options.end_limit));
  if (before_start) group->status_ = before_start();
  if (group->status_.ok()) group->begin_start(*id, options.max_ctas);
  Status started = group->finish_start(ranks, options);
  if (started.ok()) return group;
  group->abort(started);
  return started;
}

// Polls until the start is over. All ranks leave after the same poll: each with a group, or all
// with the same reason.
Status NcclGroup::finish_start(Communicator& ranks, const NcclGroupOptions& options) {
  WaitLimit limit(options.start_limit);
  for (;;) {
    StartVote vote;
    const auto settled = settle();
    if (!settled.ok()) vote.failed = Departure::of(rank_, settled.status().message());
    vote.pending = settled.ok() && *settled == Progress::pending ? 1 : 0;
    if (vote.pending == 1 && limit.is_over()) {
      const double seconds = std::chrono::duration<double>(options.start_limit).count();
      vote.failed = Departure::of(rank_, concat("NCCL's start: expected it to finish within ",
                                                significant(seconds, 3), " s"));
    }
    Status told = transport::all_reduce(ranks, vote, merging<StartVote>(), options.wait);
    if (!told.ok()) return told;
    if (vote.failed.somebody()) return as_reason(vote.failed);
    if (vote.pending == 0) return ok_status();
    std::this_thread::sleep_for(kBetweenPolls);
  }
}

void NcclGroup::begin_start(const nccl::UniqueId& id, int max_ctas) {
  nccl::Config config;
  config.blocking = 0;
  if (max_ctas > 0) config.max_ctas = max_ctas;
  const Outcome outcome = nccl_.CommInitRankConfig(&handle_, size_, id, rank_.value(), &config);
  static_cast<void>(called("start", outcome));
  if (status_.ok() && handle_ == nullptr) {
    status_ = internal_error("NCCL: start: expected a communicator, found none");
  }
}

NcclGroup::~NcclGroup() {
  if (handle_ == nullptr) return;
  if (Status ended = end(); !ended.ok()) abort(ended);
}

// Needs a limit, because a rank that waits for a lost peer would never leave.
Status NcclGroup::end() {
  WaitLimit limit(end_limit_);
  bool is_finalized = false;
  for (;;) {
    const auto settled = settle();
    if (!settled.ok()) return settled.status();
    if (*settled == Progress::done) {
      if (is_finalized) break;
      is_finalized = true;
      if (Status s = called("finalize", nccl_.CommFinalize(handle_)); !s.ok()) return s;
      continue;
    }
    if (limit.is_over()) return unavailable("NCCL: the group did not end within the time limit");
    std::this_thread::sleep_for(kBetweenPolls);
  }
  static_cast<void>(nccl_.CommDestroy(std::exchange(handle_, nullptr)));
  return ok_status();
}

// NCCL's abort has no limit of its own, and waits for the device. A thread whose abort is late is
// left running, so that the caller can report its error.
void NcclGroup::abort(const Status& why) {
  if (status_.ok()) status_ = why;
  if (handle_ == nullptr) return;
  is_busy_ = true;
  const auto over = std::make_shared<std::promise<void>>();
  const std::future<void> end = over->get_future();
  auto thread = io::start_thread("NCCL's abort", [abort = nccl_.CommAbort, handle = handle_, over] {
    static_cast<void>(abort(handle));
    over->set_value();
  });
  if (!thread.ok()) {
    status_ = status_.with_context(
        concat("NCCL's abort could not be started: ", io::thread_limit_text()));
    return;
  }
  thread->detach();
  handle_ = nullptr;
  is_busy_ = end.wait_for(end_limit_) != std::future_status::ready;
  if (!is_busy_) return;
  const double seconds = std::chrono::duration<double>(end_limit_).count();
  status_ = status_.with_context(
      concat("NCCL's abort has not finished after ", significant(seconds, 3), " s"));
}

Status NcclGroup::called(const char* what, Outcome outcome) {
  if (outcome != Outcome::success && outcome != Outcome::in_progress) return fail(what, outcome);
  is_settled_ = false;  // settle() queries the state, even if the call returned success
  return ok_status();
}

Status NcclGroup::fail(const char* what, Outcome outcome) {
  if (status_.ok())
    status_ = status_for(outcome, concat("NCCL: ", what, ": ", words(nccl_, handle_, outcome)));
  return status_;
}

Status NcclGroup::check_ready() const {
  if (!status_.ok()) return status_;
  if (handle_ == nullptr) return failed_precondition("NCCL: this group has ended");
  if (is_settled_) return ok_status();
  return failed_precondition(
      "NCCL: expected the last call to have settled before the next one; call settle()");
}

Result<Progress> NcclGroup::settle() {
  if (!status_.ok()) return status_;
  if (handle_ == nullptr) return failed_precondition("NCCL: this group has ended");
  Outcome state = Outcome::success;
  const Outcome asked = nccl_.CommGetAsyncError(handle_, &state);
  if (asked != Outcome::success) return fail("asking for errors", asked);
  if (state == Outcome::in_progress) return Progress::pending;
  if (state != Outcome::success) return fail("asynchronous error", state);
  is_settled_ = true;
  return Progress::done;
}

Status NcclGroup::broadcast(const void* send, void* receive, std::size_t count, nccl::Type type,
                            RankId root, void* stream) {
  if (Status ready = check_ready(); !ready.ok()) return ready;
  return called("broadcast",
                nccl_.Broadcast(send, receive, count, type, root.value(), handle_, stream));
}

Status NcclGroup::all_reduce(const void* send, void* receive, std::size_t count, nccl::Type type,
                             nccl::Operator operation, void* stream) {
  if (Status ready = check_ready(); !ready.ok()) return ready;
  return called("all-reduce",
                nccl_.AllReduce(send, receive, count, type, operation, handle_, stream));
}

}  // namespace cox::transport
