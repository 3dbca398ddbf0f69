// The floor under any coordinator that is a thread of its own: the same mailboxes and the same
// hand-over to a sleeping thread of rank 0 as the control plane has, and nothing else: no decision,
// no plan. A round: every rank posts 256 bytes, the thread wakes, takes them and publishes 128
// bytes, every rank reads them. Each rank's training thread; round() and the rest are collective.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "coordinator/transport/communicator.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"

namespace cox::bench {

class BareBoards {
 public:
  static Result<std::unique_ptr<BareBoards>> start(transport::Communicator& world);
  ~BareBoards();
  BareBoards(const BareBoards&) = delete;
  BareBoards& operator=(const BareBoards&) = delete;

  // False when nothing came within 20 seconds.
  bool round();

 private:
  BareBoards(transport::SharedSegment memory, transport::SignalBoard signals,
             transport::MaskBoard masks, RankId rank);
  void answer();

  transport::SharedSegment memory_;
  transport::SignalBoard signals_;
  transport::MaskBoard masks_;
  transport::MaskReader reader_;
  RankId rank_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  // rank 0
};

}  // namespace cox::bench
