// The lower bound for any coordinator with its own thread: the control plane's mailboxes and its
// hand-over to a sleeping thread of rank 0, without decisions or plans.
//
// A round: every rank posts 256 bytes; the thread wakes, takes the bytes and publishes 128; every
// rank reads those. Called on each rank's training thread; all functions are collective.
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

  // Returns false if no answer came within 20 seconds.
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
