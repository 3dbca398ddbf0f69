// ControlLink: sends a rank's reports and receives masks. Within a node both use boards in memory
// shared by the node's ranks; between nodes the leaders run a LeaderExchange. With one rank a node
// (pure MPI) the boards are private and all traffic is the exchange. A failed exchange is a lost
// round. An exchange that cannot even be started is the last: every rank keeps its plan, control
// rounds end, and at the end of the job each leader learns which leader failed. Thread rule: the
// rank's training thread. Nothing blocks.
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
  // `boards` must outlive the link. A leader waits for the node's ranks for at most `late`.
  ControlLink(Boards& boards, Seconds late, Log log);

  // Returns whether the rank's last report was taken and no part of its control round is under way.
  bool closed() const;

  // Rank 0: returns whether a frame waits until the ranks agree on a control round between nodes or
  // a broadcast over NCCL.
  bool mask_waits();

  bool uses_nccl() const { return uses_nccl_; }
  MaskLane mask_lane() const { return uses_nccl_ ? boards_.broadcast->lane() : MaskLane::free; }

  // Applies the merged ballot of a round: all ranks start a broadcast over NCCL, or leave NCCL, or
  // do neither.
  void agree(const StepBallot& merged);

  // Posts the report. REQUIRES: closed(), and `downward` is the same on all ranks.
  void open(const RankSignal& signal, std::span<const BlockEvidence> evidence, Downward downward);

  // Advances all transfers; new masks go into `plans`.
  void pump(PlanBook& plans);

  // Returns ok, or why control rounds ended before the job, with the name of the leader that
  // failed.
  const Status& status() const { return status_; }

  // Marks the rank as finished: from now on it opens rounds only for other ranks.
  void begin_ending() { has_begun_ending_ = true; }
  // Announces that the leader needs no further exchange. The other leaders wait for the
  // announcement. Later calls do nothing.
  void end_exchange();

  // Call after the rank's last report. Returns whether no other rank of the node needs the rank any
  // more.
  bool node_finished();

  // For ranks that only watch. Returns whether the exchange between nodes has reached the agreed
  // end.
  bool exchange_ended() const { return !reports_ || (is_ending_ && rounds_left_ == 0); }
  // Returns whether no leader needs a further exchange, or one leader has failed.
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
  std::uint16_t rounds_left_ = 0;  // near the end: exchanges still to come

  // The root with an exchange or a broadcast.
  transport::MaskReader outbox_;
  std::size_t outgoing_next_ = 0;       // index of the next frame to send in outbox_.frames()
  std::vector<std::uint8_t> finished_;  // 1 for ranks whose last report has arrived
  std::size_t posted_ = 0;              // reports of the last round

  // Masks over NCCL.
  bool uses_nccl_;
  bool relays_outbox_ = false;  // rank 0 of one node, after NCCL was left
};

}  // namespace cox::runtime
