// LeaderExchange: one control round between the leaders of nodes. Signals go up by a gather, block
// evidence by a reduction, one mask frame comes down by a broadcast; all three are started together
// by every leader, so their order is the same everywhere, and polled by pump(). What was damaged on
// the way is recognised by checksums, and what comes a second time by its number. With one rank a
// node (COX_CONTROL=mpi) every rank is a leader and this is the whole control traffic.
// Thread rule: the leader's training thread. No allocation after construction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/wire/mask.h"

namespace cox::runtime {

// What a broadcast carries: at most one frame, and the word that ends the exchange.
struct MaskParcel {
  std::uint32_t checksum = 0;     // of all that follows; set by open()
  std::uint32_t sequence = 0;     // exchanges before this one; set by open()
  std::uint16_t size = 0;         // bytes of `frame` in use; 0 = nothing new
  std::uint16_t rounds_left = 0;  // 0 = no end is near; else all leave after that many, this one in
  std::array<std::byte, wire::kFrameBytes> frame{};
};
static_assert(sizeof(MaskParcel) == 12 + wire::kFrameBytes);

class LeaderExchange {
 public:
  // Both communicators span the leaders only, in the order of their nodes, and are used by nobody
  // else. Root (leader 0) is rank 0 of the world.
  LeaderExchange(std::unique_ptr<transport::Communicator> gathers,
                 std::unique_ptr<transport::Communicator> masks, std::size_t largest_node,
                 std::size_t blocks);
  // A round that never came to its end (all ranks fail at once) keeps its buffers for good: MPI may
  // still write to them.
  ~LeaderExchange();

  bool idle() const { return !busy_; }

  // Starts the round. `node_signals` has at most largest_node entries, `evidence` one per block or
  // none; `parcel` counts at the root only. Requires: idle().
  Status open(std::span<const RankSignal> node_signals, std::span<const BlockEvidence> evidence,
              const MaskParcel& parcel);

  // Moves the round on. Returns done once all three operations are over here; then parcel() holds,
  // and at the root gathered() and evidence(). After an error, which comes when all three are over
  // as well, nothing of this round holds, and the next one may be opened.
  Result<transport::Progress> pump();

  // nullptr when what arrived is damaged, or is not the parcel of this round.
  const MaskParcel* parcel() const { return is_sound_ ? &buffers_->parcel : nullptr; }
  // Signals of node `index`; slots that were not filled have magic 0.
  std::span<const RankSignal> gathered(std::size_t node_index) const;
  std::span<const BlockEvidence> evidence() const { return buffers_->evidence; }

 private:
  struct Buffers {
    std::vector<RankSignal> sent;
    std::vector<RankSignal> received;  // at the root
    std::vector<BlockEvidence> evidence;
    MaskParcel parcel;
  };

  std::unique_ptr<transport::Communicator> gathers_;
  std::unique_ptr<transport::Communicator> masks_;
  std::size_t largest_node_;
  std::unique_ptr<Buffers> buffers_;
  std::array<transport::Request, 3> requests_{};
  Status failed_;               // the first failure of this round
  std::uint32_t sequence_ = 0;  // of this round; rounds opened before it
  bool is_sound_ = false;
  bool busy_ = false;
};

}  // namespace cox::runtime
