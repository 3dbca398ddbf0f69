// Waiting for a Request by polling: test, spin, give up the core, and after many vain polls back
// off by sleeping for short whiles. Blocking inside MPI costs a hundred times more once ranks
// outnumber cores, so nothing else in Coxswain waits for other ranks. Used by training threads;
// each wait belongs to the thread that calls it.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/transport/communicator.h"

namespace cox::transport {

struct WaitPolicy {
  std::uint32_t spins = 0;                 // polls in a row before giving up the core
  std::uint32_t yields = 0;                // polls with sched_yield() between them, after that
  std::chrono::microseconds sleep{50};     // between all later polls
  std::chrono::nanoseconds timeout{0};     // of the whole wait, as WaitLimit counts; 0 = none
  const char* waited_for = "other ranks";  // named in the message of a timeout
};

// Returns how to wait where `ranks_on_node` ranks share `cores` cores: with more ranks than cores a
// spinning rank only keeps the others from running.
WaitPolicy wait_policy(std::int32_t ranks_on_node, std::int32_t cores);
// Returns the policy with a limit, for start-up and shut-down, where a lost rank must not hang the
// job.
WaitPolicy with_timeout(WaitPolicy policy, std::chrono::nanoseconds timeout,
                        const char* waited_for);
// Returns the number of cores that this process may use, at least 1.
std::int32_t usable_cores();

// Measures how much of its limit a wait has used up. The time between two looks counts for at most
// a second and at most a tenth of the limit, so that a thread or a machine that stood still fails
// no wait.
class WaitLimit {
 public:
  explicit WaitLimit(std::chrono::nanoseconds limit);  // 0 = none
  // Called between polls. Returns true one look after the limit is used up: a poll came in between.
  bool is_over();
  std::chrono::nanoseconds longest_gap() const { return longest_gap_; }  // between two looks

 private:
  std::chrono::nanoseconds limit_;
  std::chrono::nanoseconds used_{0};
  std::chrono::nanoseconds longest_gap_{0};
  std::chrono::steady_clock::time_point last_look_;
};

// Passes the time between two polls. Make one per wait.
class Waiter {
 public:
  explicit Waiter(const WaitPolicy& policy);
  // Called after a poll that found nothing new. unavailable once the policy's timeout is used up.
  Status pause();

 private:
  Status timed_out() const;

  WaitPolicy policy_;
  WaitLimit limit_;
  std::uint32_t polls_ = 0;
};

// Polls until `request` is done or failed. unavailable after the policy's timeout; the request is
// then still in flight and owns its buffers.
Status wait(Communicator& communicator, Request& request, const WaitPolicy& policy);

// Waits like wait(), and calls `pump()` between polls, so that the control link moves on inside the
// waits of the reducer. REQUIRES: `pump` does not test `request`.
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

// The blocking forms for values, with which ranks agree at the start of a job.

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
