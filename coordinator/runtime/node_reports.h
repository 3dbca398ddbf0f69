// NodeReports: what the leader of a node has from its ranks for the next exchange between nodes.
// A report that comes after its exchange has left is kept and folded into the rank's next one, so
// that a rank that was late does not wait for a round that waits for it; a last report is sent
// again in every exchange, since its rank has left. Allocates nothing once it is warm.
// Thread rule: the leader's training thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/signal.h"
#include "coordinator/transport/shared/signal_board.h"

namespace cox::runtime {

class NodeReports {
 public:
  // `board` has one slot per member, in their order.
  NodeReports(transport::SignalBoard board, std::vector<RankId> members);

  // The leader opens a round: every rank that has not finished owes a report from here on.
  void open();
  // Takes what lies on the board if all owed reports do.
  void take_when_complete();
  // Takes whatever lies on the board.
  void take();
  bool complete() const { return owed_ == 0; }
  bool all_finished() const { return finished_ == members_.size(); }

  // One entry per member; magic 0 where there is none.
  std::span<const RankSignal> signals() const { return signals_; }
  std::span<const BlockEvidence> evidence() const { return evidence_; }
  // The exchange has copied them.
  void sent();

 private:
  bool holds(std::int32_t fresh);
  void keep(const RankSignal& signal);

  transport::SignalBoard board_;
  std::vector<RankId> members_;
  transport::CollectedSignals collected_;  // kept for its memory
  std::vector<RankSignal> signals_;
  std::vector<BlockEvidence> evidence_;
  std::vector<std::uint8_t> owes_;  // 1 for members that owe a report
  std::int32_t owed_ = 0;
  std::size_t finished_ = 0;
};

}  // namespace cox::runtime
