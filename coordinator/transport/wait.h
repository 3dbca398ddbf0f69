// Waits for a Request by polling: test, spin, yield the core, and after many vain polls sleep for
// short intervals. Blocking inside MPI costs a hundred times more once ranks outnumber cores, so
// nothing else in Coxswain waits for other ranks. Used by training threads; each wait belongs to
// its calling thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/transport/communicator.h"

namespace cox::transport {

struct WaitPolicy {
  std::uint32_t spins = 0;                 // polls in a row before yielding the core
  std::uint32_t yields = 0;                // then polls with sched_yield() between them
  std::chrono::microseconds sleep{50};     // between all later polls
  std::chrono::nanoseconds timeout{0};     // for the whole wait, as counted by WaitLimit; 0 = none
  const char* waited_for = "other ranks";  // named in the timeout's message
};

// Returns the policy for `ranks_on_node` ranks that share `cores` cores. With more ranks than
// cores, spinning only keeps other ranks from running.
WaitPolicy wait_policy(std::int32_t ranks_on_node, std::int32_t cores);
// Returns the policy with a time limit. Start-up and shut-down use a limit, so that a lost rank
// does not hang the job.
WaitPolicy with_timeout(WaitPolicy policy, std::chrono::nanoseconds timeout,
                        const char* waited_for);
// Returns the number of cores that this process may use, at least 1.
std::int32_t usable_cores();

// Measures the used part of a wait's limit. The time between two looks counts for at most a second
// and a tenth of the limit. So a wait does not fail because a thread or a machine stood still.
class WaitLimit {
 public:
  explicit WaitLimit(std::chrono::nanoseconds limit);  // 0 = none
  // Returns true one look after the limit is used up, so that the caller has polled once more.
  // Called between polls.
  bool is_over();
  std::chrono::nanoseconds longest_gap() const { return longest_gap_; }  // between two looks

 private:
  std::chrono::nanoseconds limit_;
  std::chrono::nanoseconds used_{0};
  std::chrono::nanoseconds longest_gap_{0};
  std::chrono::steady_clock::time_point last_look_;
};

// Passes the time between two polls. Create one per wait.
class Waiter {
 public:
  explicit Waiter(const WaitPolicy& policy);
  // Called after a poll that found nothing new. Returns unavailable once the policy's timeout is
  // used up.
  Status pause();

 private:
  Status timed_out() const;

  WaitPolicy policy_;
  WaitLimit limit_;
  std::uint32_t polls_ = 0;
};

// Polls until `request` is done or failed. Returns unavailable after the policy's timeout. The
// request is then still in flight and owns its buffers.
Status wait(Communicator& communicator, Request& request, const WaitPolicy& policy);

// Waits like wait(), and calls `pump()` between polls, so that the control link advances during the
// reducer's waits. REQUIRES: `pump` does not test `request`.
template <class Pump>
Status wait_with(Communicator& communicator, Request& request, const WaitPolicy& policy,
                 Pump&& pump) {
  Waiter waiter(policy);
  for (;;) {
    Result<Progress> progress = communicator.test(request);
    if (!progress.ok()) return progress.status();
    if (*progress == Progress::done) return ok_status();
    pump();
    if (Status paused = waiter.pause(); !paused.ok()) return paused;
  }
}

// Waits for an operation that was just started: finish(c, c.start_gather(...), policy).
Status finish(Communicator& communicator, Result<Request> started, const WaitPolicy& policy);

// Blocking forms for values. Ranks use them to agree at the start of a job.

// Returns every rank's value, in rank order.
template <class T>
Result<std::vector<T>> all_gather(Communicator& ranks, const T& mine, const WaitPolicy& policy) {
  std::vector<T> all(static_cast<std::size_t>(ranks.size()));
  Status gathered = finish(ranks,
                           ranks.start_all_gather(std::as_bytes(std::span(&mine, 1)),
                                                  std::as_writable_bytes(std::span(all))),
                           policy);
  if (!gathered.ok()) return gathered;
  return all;
}

// Copies rank 0's values to every rank.
template <class T>
Status broadcast(Communicator& ranks, std::span<T> values, const WaitPolicy& policy) {
  return finish(ranks, ranks.start_broadcast(std::as_writable_bytes(values), kRoot), policy);
}
template <class T>
Status broadcast(Communicator& ranks, T& value, const WaitPolicy& policy) {
  return broadcast(ranks, std::span(&value, 1), policy);
}

// Reduces the values of all ranks, in place.
template <class T>
Status all_reduce(Communicator& ranks, T& value, const Reduction& reduction,
                  const WaitPolicy& policy) {
  const auto bytes = std::as_writable_bytes(std::span(&value, 1));
  return finish(ranks, ranks.start_all_reduce(bytes, reduction), policy);
}

}  // namespace cox::transport
