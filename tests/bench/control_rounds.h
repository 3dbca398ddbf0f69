// Control rounds one after another on all ranks, as fast as they go: what bench_c1 compares with
// bare MPI. A round is over for a rank when it may open the next one and the coordinator's answer
// to this one is out:
// - through mailboxes: when the plan that the coordinator published for this very round has been
//   read and put together here (a policy changes the plan in every round);
// - over MPI: when this rank's exchange is over and, on rank 0, the coordinator has taken the
//   signals, decided and left its mask for the next broadcast.
// Each rank's training thread; round() is collective.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "coordinator/runtime/control_plane.h"
#include "coordinator/transport/communicator.h"

namespace cox::bench {

// The coordinator's side of the flow: counts answers, keeps what decisions took.
class AnswerCount final : public StepSink {
 public:
  void record(const StepRecord& record) override;
  std::uint64_t answered() const { return answered_.load(std::memory_order_acquire); }
  std::vector<double> decide_microseconds() const;

 private:
  std::atomic<std::uint64_t> answered_{0};
  mutable std::mutex mutex_;
  std::vector<double> decide_us_;
};

class ControlRounds {
 public:
  // Collective. `path` is mailbox or mpi; `blocks` is how many have evidence.
  static Result<std::unique_ptr<ControlRounds>> start(transport::Communicator& world,
                                                      ControlPath path, std::size_t blocks);
  // False when the answer did not come within 20 seconds.
  bool round();
  void finish();
  const AnswerCount& answers() const { return answers_; }
  std::uint64_t plans() const { return plane_->plan_held(); }

 private:
  ControlRounds() = default;
  bool is_over(std::uint64_t held_before) const;
  RankSignal signal() const;

  RankId rank_{};
  ControlPath path_ = ControlPath::mailbox;
  AnswerCount answers_;
  std::unique_ptr<runtime::ControlPlane> plane_;  // refers to answers_
  RoundId round_{};
  std::uint64_t rounds_ = 0;
};

}  // namespace cox::bench
