// ControlLink: how a rank's report leaves and how masks arrive. Within a node both go through
// boards in memory that the node's ranks share; between nodes their leaders run a LeaderExchange.
// With one rank a node (pure MPI) the boards are private and the exchange is everything. Thread
// rule: the rank's training thread. Nothing blocks; a failing exchange is reported once, and from
// then on this rank keeps its plan and control rounds cease.
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
#include "coordinator/runtime/plan_book.h"
#include "coordinator/transport/mailbox.h"

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
  // The root has seen all ranks finish, or there is nothing between nodes that must be matched.
  bool may_leave() const;

 private:
  enum class Stage { idle, node_reports, exchanging, broken };

  void pump_exchange();
  void start_exchange();
  void deliver();
  void deliver_signals();
  void read_masks(PlanBook& plans);
  MaskParcel next_parcel();
  void fail(const Status& status);

  Boards& boards_;
  Seconds late_;
  Log log_;
  Stage stage_ = Stage::idle;
  std::chrono::steady_clock::time_point opened_{};
  transport::MaskReader masks_;
  transport::MaskReader outbox_;      // root with an exchange
  std::size_t outgoing_next_ = 0;     // of outbox_.frames(): the next one to send
  std::vector<wire::Frame> arrived_;  // leader: frames of the newest mask so far
  bool all_finished_ = false;         // root: every rank said so
  bool last_seen_ = false;
};

}  // namespace cox::runtime
