// ControlLink: how a rank's report leaves and how masks arrive. Within a node both go through
// boards in memory that the node's ranks share; between nodes their leaders run a LeaderExchange.
// With one rank a node (pure MPI) the boards are private and the exchange is everything. Thread
// rule: the rank's training thread. Nothing blocks.
//
// An exchange that fails is a lost round. One that cannot even be started is the last: every rank
// keeps its plan, control rounds cease, and at the end of the job each leader hears who failed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/core/evidence.h"
#include "coordinator/core/log.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/status.h"
#include "coordinator/runtime/control_boards.h"
#include "coordinator/runtime/mask_broadcast.h"
#include "coordinator/runtime/node_leader.h"
#include "coordinator/runtime/plan_book.h"
#include "coordinator/transport/shared/mask_board.h"

namespace cox::runtime {

class ControlLink {
 public:
  // `boards` must outlive the link. `late`: how long a leader waits for the ranks of its node.
  ControlLink(Boards& boards, Seconds late, Log log);

  // Returns whether this rank's last report was taken and nothing of its control round is under
  // way.
  bool closed() const;

  // Rank 0: whether a frame waits for the ranks to agree on its way: a control round between nodes,
  // or a broadcast over NCCL.
  bool mask_waits();

  bool uses_nccl() const { return uses_nccl_; }
  MaskLane mask_lane() const { return uses_nccl_ ? boards_.broadcast->lane() : MaskLane::free; }

  // Takes the merged ballot of a round: all ranks start a broadcast over NCCL, or give NCCL up, or
  // neither.
  void agree(const StepBallot& merged);

  // Hands the report over. REQUIRES: closed(), and `downward` is the same on all ranks.
  void open(const RankSignal& signal, std::span<const BlockEvidence> evidence, Downward downward);

  // Moves everything on; new masks go into `plans`.
  void pump(PlanBook& plans);

  // Ok, or why control rounds ended before the job; names the leader that failed, if one did.
  const Status& status() const { return status_; }

  // This rank is at its end: it opens rounds only for those who are not.
  void begin_ending() { has_begun_ending_ = true; }
  // Says that this leader needs no further exchange. The others wait for these words before they
  // leave. Later calls do nothing.
  void end_exchange();

  // After this rank's last report: whether no rank of its node needs it any more.
  bool node_finished();

  // For ranks that only watch. Returns whether the exchange between nodes has come to its agreed
  // end.
  bool exchange_ended() const { return !reports_ || (is_ending_ && rounds_left_ == 0); }
  // Returns whether all leaders have said that they need no further exchange, or one has failed.
  bool all_leaders_end() const { return !reports_ || all_end_; }

 private:
  enum class Stage { idle, node_reports, exchanging, broken };

  void pump_exchange(PlanBook& plans);
  void start_exchange();
  void deliver(PlanBook& plans);
  void deliver_parcel(const MaskParcel& parcel, PlanBook& plans);
  void deliver_signals();
  void post_gathered(RankId expected, const RankSignal& signal);
  void read_masks(PlanBook& plans);
  void pump_broadcast(PlanBook& plans);
  MaskBroadcast::Frames next_frames();
  void leave_nccl();
  void show_outbox();
  MaskParcel next_parcel();
  void pump_ending();
  void break_off(const Status& why);
  Boards& boards_;
  Seconds late_;
  Log log_;
  Stage stage_ = Stage::idle;
  Downward downward_ = Downward::word;  // of the round that is open
  Status status_;
  std::chrono::steady_clock::time_point opened_{};
  transport::MaskReader masks_;

  // Leaders with an exchange.
  std::optional<NodeReports> reports_;
  std::optional<MaskRelay> relay_;
  bool has_begun_ending_ = false;
  bool all_end_ = false;
  bool is_ending_ = false;
  std::uint16_t rounds_left_ = 0;  // once the end is near: exchanges still to come

  // The root with an exchange or a broadcast.
  transport::MaskReader outbox_;
  std::size_t outgoing_next_ = 0;       // of outbox_.frames(): the next one to send
  std::vector<std::uint8_t> finished_;  // 1 for ranks whose last report has arrived
  std::size_t posted_ = 0;              // reports of the last round

  // Masks over NCCL.
  bool uses_nccl_;
  bool relays_outbox_ = false;  // rank 0 of one node, after NCCL was left
};

}  // namespace cox::runtime
