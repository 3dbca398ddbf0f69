#include "coordinator/transport/wait.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace cox::transport {

WaitPolicy wait_policy(std::int32_t ranks_on_node, std::int32_t cores) {
  WaitPolicy policy;
  const bool crowded = ranks_on_node > cores;
  policy.spins = crowded ? 0 : 2000;
  policy.yields = crowded ? 400 : 20000;
  return policy;
}

WaitPolicy with_timeout(WaitPolicy policy, std::chrono::nanoseconds timeout,
                        const char* waited_for) {
  policy.timeout = timeout;
  policy.waited_for = waited_for;
  return policy;
}

std::int32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    return std::max(1, static_cast<std::int32_t>(std::thread::hardware_concurrency()));
  }
  return std::max(1, CPU_COUNT(&set));
}

WaitLimit::WaitLimit(std::chrono::nanoseconds limit) : limit_(limit) {
  if (limit_.count() > 0) last_look_ = std::chrono::steady_clock::now();
}

bool WaitLimit::is_over() {
  if (limit_.count() <= 0) return false;
  const bool over = used_ > limit_;
  const auto now = std::chrono::steady_clock::now();
  const std::chrono::nanoseconds gap = now - last_look_;
  last_look_ = now;
  longest_gap_ = std::max(longest_gap_, gap);
  used_ += std::min<std::chrono::nanoseconds>(
      {gap, limit_ / 10 + std::chrono::nanoseconds(1), std::chrono::seconds(1)});
  return over;
}

Waiter::Waiter(const WaitPolicy& policy) : policy_(policy), limit_(policy.timeout) {}

Status Waiter::pause() {
  const std::uint32_t poll = polls_++;
  if (poll < policy_.spins) return ok_status();
  // Polls are quick, so most of them skip the clock.
  const bool look = poll % 64 == 0 || poll >= policy_.spins + policy_.yields;
  if (look && limit_.is_over()) return timed_out();
  if (poll - policy_.spins < policy_.yields) {
    sched_yield();
    return ok_status();
  }
  polls_ = policy_.spins + policy_.yields;
  std::this_thread::sleep_for(policy_.sleep);
  return ok_status();
}

Status Waiter::timed_out() const {
  const double seconds = std::chrono::duration<double>(policy_.timeout).count();
  const double gap = std::chrono::duration<double>(limit_.longest_gap()).count();
  return unavailable("waited ", seconds, " s for ", policy_.waited_for,
                     "; a rank has died, hangs, or did not start this operation: see the ranks' "
                     "logs (longest gap between two polls: ",
                     gap, " s)");
}

Status wait(Communicator& communicator, Request& request, const WaitPolicy& policy) {
  return wait_with(communicator, request, policy, [] {});
}

Status finish(Communicator& communicator, Result<Request> started, const WaitPolicy& policy) {
  if (!started.ok()) return started.status();
  return wait(communicator, *started, policy);
}

}  // namespace cox::transport
