// The work of a node's leader, its lowest rank, where a job has several nodes. In each control
// round it takes the reports of its node from the board (NodeReports), exchanges them with the
// other leaders (LeaderExchange), and shows its node the mask that came down (MaskRelay):
//
//   ranks of the node -- SignalBoard --> NodeReports --> LeaderExchange --> rank 0
//   ranks of the node <-- MaskBoard -- MaskRelay <-- LeaderExchange <-- rank 0
//
// With one rank a node (COX_CONTROL=mpi) every rank is a leader and this is the whole control
// traffic. Thread rule: the leader's training thread. Nothing blocks; the classes are owned by the
// rank's Boards and ControlLink.
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
#include "coordinator/transport/exchange/departure_watch.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"
#include "coordinator/wire/frame.h"

namespace cox::runtime {

// Collects the reports of the node's ranks for the next exchange. A report that comes after its
// exchange has left is kept and folded into the rank's next one, so that a rank that was late does
// not wait for a round that waits for it; a last report is sent again in every exchange, since its
// rank has left. Allocates nothing once it is warm.
class NodeReports {
 public:
  // `board` has one slot per member, in their order.
  NodeReports(transport::SignalBoard board, std::vector<RankId> members);

  // Opens a round: every rank that has not finished owes a report from here on.
  void open();
  // Takes what lies on the board if all owed reports do.
  void take_when_complete();
  // Takes whatever lies on the board; take_uncounted() also where stray writes have damaged the
  // board's counts.
  void take();
  void take_uncounted();
  bool complete() const { return owed_ == 0; }
  bool all_finished() const { return finished_ == members_.size(); }
  // Returns the same without the leader's own last report, which a leader that has failed cannot
  // post.
  bool others_finished() const;

  // Returns one entry per member, with magic 0 where there is no report.
  std::span<const RankSignal> signals() const { return signals_; }
  std::span<const BlockEvidence> evidence() const { return evidence_; }
  // Forgets the reports that the exchange has copied; those of finished ranks stay, to be sent
  // again.
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

// Downward says what a round sends down: the word alone, or a frame behind it. All leaders agree.
enum class Downward : std::uint8_t { word, mask };

// RoundWord is the part of the broadcast that every round carries.
struct RoundWord {
  std::uint32_t checksum = 0;     // of all that follows, the mask included; set by open()
  std::uint16_t sequence = 0;     // exchanges before this one, modulo 2^16; set by open()
  std::uint16_t rounds_left = 0;  // 0 = no end is near; else all leave after that many, this one in
};
static_assert(sizeof(RoundWord) == 8);

// MaskParcel comes down in rounds for which the ranks agreed that a frame waits
// (StepBallot::mask_waits_max).
struct MaskParcel {
  RoundWord word;
  std::uint16_t size = 0;  // bytes of `frame` in use; 0 = there was none after all
  std::uint16_t unused = 0;
  std::array<std::byte, wire::kFrameBytes> frame{};
};
static_assert(sizeof(MaskParcel) == sizeof(RoundWord) + 4 + wire::kFrameBytes);

// Runs one control round after another between the leaders. Signals go up by a gather, block
// evidence by a reduction, a RoundWord or MaskParcel comes down by a broadcast; all three are
// started together by every leader, so their order is the same everywhere, and polled by pump().
// Checksums show what was damaged on the way, sequence numbers what comes a second time. Rounds
// allocate nothing.
//
// A leader that can start no more rounds says so with end(); so does every leader at the end of the
// job. When all have, each knows whether one of them failed, and which.
class LeaderExchange {
 public:
  // All communicators span the leaders only, in the order of their nodes, and are used by nobody
  // else. Leader 0, the root, is rank 0 of the world.
  struct Links {
    std::unique_ptr<transport::Communicator> gathers;
    std::unique_ptr<transport::Communicator> masks;
    std::unique_ptr<transport::Communicator> endings;  // of their last words
  };
  // `self` is this leader's rank in the world.
  LeaderExchange(Links links, RankId self, std::size_t largest_node, std::size_t blocks);
  // A round that never came to its end (all ranks fail at once) keeps its buffers for good: MPI may
  // still write to them.
  ~LeaderExchange();

  bool idle() const { return !busy_; }

  // Starts a round. `node_signals` has at most largest_node entries, `evidence` one per block or
  // none; `parcel` counts at the root only. REQUIRES: idle(), and `downward` is the same on all
  // leaders. After an error no further round can be opened: the leaders would not start the same
  // operations.
  Status open(std::span<const RankSignal> node_signals, std::span<const BlockEvidence> evidence,
              Downward downward, const MaskParcel& parcel);

  // Moves the round on. Returns done once all three operations are over here; then parcel() holds,
  // and at the root gathered() and evidence(). After an error, which comes when all three are over
  // as well, nothing of this round holds, and the next one may be opened.
  Result<transport::Progress> pump();

  // Returns the parcel that this round broadcast; in a round without a mask only `word` is valid.
  // Null when the parcel is damaged or belongs to another round.
  const MaskParcel* parcel() const { return is_sound_ ? &buffers_->parcel : nullptr; }
  // Returns the signals of a node; slots that were not filled have magic 0.
  std::span<const RankSignal> gathered(std::size_t node_index) const;
  std::span<const BlockEvidence> evidence() const { return buffers_->evidence; }

  // Says that this leader opens no further round, because the job ends (ok) or because it cannot.
  // Later calls do nothing.
  void end(const Status& why);
  // Moves the last words on. Returns done once all leaders have called end(). An error names the
  // leader that failed, and is final. Pending before end() was called.
  Result<transport::Progress> pump_end();

 private:
  struct Buffers {
    std::vector<RankSignal> sent;
    std::vector<RankSignal> received;  // at the root
    std::vector<BlockEvidence> evidence;
    MaskParcel parcel;
    Downward downward = Downward::word;  // how much of `parcel` travels
  };
  Status start_all();

  Links links_;
  transport::DepartureWatch endings_;
  RankId self_;
  std::size_t largest_node_;
  std::unique_ptr<Buffers> buffers_;
  std::array<transport::Request, 3> requests_{};
  Status failed_;               // the first failure of this round
  Status ending_;               // why last words cannot travel; ok = they can
  std::uint16_t sequence_ = 0;  // of this round; rounds opened before it, modulo 2^16
  bool is_sound_ = false;
  bool busy_ = false;
  bool has_ended_ = false;
};

// Shows the ranks of the node the masks that came from another node, frame by frame. Those ranks
// may look seldom, so the frames of one plan stay on the board together until frames of another one
// come. Damaged frames are dropped before they spread. The board's only writer.
class MaskRelay {
 public:
  explicit MaskRelay(transport::MaskBoard board) : board_(board) {}

  // Shows a frame to the node. Returns data_loss, and changes nothing, when the bytes are not a
  // frame. Frames of older plans and frames that lie there already change nothing either.
  Status pass(std::span<const std::byte> frame);

 private:
  transport::MaskBoard board_;
  wire::FrameHeader plan_{};  // what the frames on the board belong to
  std::vector<wire::Frame> frames_;
};

}  // namespace cox::runtime
