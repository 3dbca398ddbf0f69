// ControlLink: how a rank's report leaves and how masks arrive. Within a node both go through
// boards in memory that the node's ranks share; between nodes their leaders run a LeaderExchange.
// With one rank a node (pure MPI) the boards are private and the exchange is everything. Thread
// rule: the rank's training thread. Nothing blocks. An exchange that fails is a lost round; one
// that cannot even be started is the last: this rank keeps its plan and control rounds cease.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/log.h"
#include "coordinator/core/signal.h"
#include "coordinator/runtime/leader_exchange.h"
#include "coordinator/runtime/mask_relay.h"
#include "coordinator/runtime/node_reports.h"
#include "coordinator/runtime/plan_book.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"

namespace cox::runtime {

struct Boards;

class ControlLink {
 public:
  // `boards` must outlive the link. `late`: how long a leader waits for the ranks of its node.
  ControlLink(Boards& boards, Seconds late, Log log);

  // Whether this rank's last report was taken and nothing of its control round is under way here.
  bool closed() const;
  // Hands the report over. Requires: closed().
  void open(const RankSignal& signal, std::span<const BlockEvidence> evidence);
  // Moves everything on; new masks go into `plans`.
  void pump(PlanBook& plans);

  bool broken() const { return stage_ == Stage::broken; }
  // After this rank's last report: whether no rank of its node needs it any more.
  bool node_finished();
  // Of ranks that only watch: whether the exchange between nodes has come to its agreed end.
  bool exchange_ended() const { return !reports_ || (is_ending_ && rounds_left_ == 0); }

 private:
  enum class Stage { idle, node_reports, exchanging, broken };

  void pump_exchange(PlanBook& plans);
  void start_exchange();
  void deliver(PlanBook& plans);
  void deliver_parcel(const MaskParcel& parcel, PlanBook& plans);
  void deliver_signals();
  void post_gathered(RankId expected, const RankSignal& signal);
  void read_masks(PlanBook& plans);
  MaskParcel next_parcel();

  Boards& boards_;
  Seconds late_;
  Log log_;
  Stage stage_ = Stage::idle;
  std::chrono::steady_clock::time_point opened_{};
  transport::MaskReader masks_;

  // Leaders with an exchange.
  std::optional<NodeReports> reports_;
  std::optional<MaskRelay> relay_;
  bool is_ending_ = false;
  std::uint16_t rounds_left_ = 0;  // once the end is near: exchanges still to come

  // The root with an exchange.
  transport::MaskReader outbox_;
  std::size_t outgoing_next_ = 0;       // of outbox_.frames(): the next one to send
  std::vector<std::uint8_t> finished_;  // 1 for ranks whose last report has arrived
  std::size_t posted_ = 0;              // reports of the last round
};

}  // namespace cox::runtime
