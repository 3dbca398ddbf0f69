// Runs control rounds on all ranks as fast as possible; bench_c1 compares them with bare MPI. A
// round ends for a rank when the rank may open the next one and the coordinator has answered:
// - through mailboxes: the rank has read and assembled the plan published for this round (a policy
//   changes the plan in every round);
// - over MPI: the rank's exchange is complete and, on rank 0, the coordinator has taken signals,
//   decided and left its mask for the next broadcast.
// Called on each rank's training thread; round() is collective.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "coordinator/runtime/control_plane.h"
#include "coordinator/transport/communicator.h"

namespace cox::bench {

// The coordinator's side: counts answers and records the times of decisions.
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
  // Starts the control plane; the first `blocks` blocks have evidence. `path` is mailbox or mpi.
  // Collective.
  static Result<std::unique_ptr<ControlRounds>> start(transport::Communicator& world,
                                                      ControlPath path, std::size_t blocks);
  // Returns false if no answer came within 20 seconds.
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
