// The work of a node's leader, the node's lowest rank, in a job with several nodes. In each control
// round the leader takes the node's reports from the board (NodeReports), exchanges reports with
// the other leaders (LeaderExchange), and shows its node the mask that came down (MaskRelay). With
// one rank a node (COX_CONTROL=mpi) every rank is a leader, and all control traffic is the
// exchange. Thread rule: the leader's training thread. Nothing blocks. The rank's Boards and
// ControlLink own the objects.
//
//   ranks of the node -- SignalBoard --> NodeReports --> LeaderExchange --> rank 0
//   ranks of the node <-- MaskBoard -- MaskRelay <-- LeaderExchange <-- rank 0
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

// Collects the reports of the node's ranks for the next exchange. A report that misses its exchange
// is merged into the rank's next one, so that a late rank and a round never wait for each other. A
// last report is sent again in every exchange, because the rank has left. Allocates only in the
// first rounds.
class NodeReports {
 public:
  // `board` has one slot per member, in the order of `members`.
  NodeReports(transport::SignalBoard board, std::vector<RankId> members);

  // Opens a round: every rank that has not finished owes a report from now on.
  void open();
  // Takes the reports from the board if all owed ones are there.
  void take_when_complete();
  // Takes the reports that are on the board. take_uncounted() works even if stray writes have
  // damaged the board's counts.
  void take();
  void take_uncounted();
  bool complete() const { return owed_ == 0; }
  bool all_finished() const { return finished_ == members_.size(); }
  // Returns all_finished() without the leader's own last report, which a failed leader cannot post.
  bool others_finished() const;

  // Returns one entry per member, with magic 0 for a missing report.
  std::span<const RankSignal> signals() const { return signals_; }
  std::span<const BlockEvidence> evidence() const { return evidence_; }
  // Forgets the reports that the exchange has copied. Reports of finished ranks stay, to be sent
  // again.
  void sent();

 private:
  bool holds(std::int32_t fresh);
  void keep(const RankSignal& signal);

  transport::SignalBoard board_;
  std::vector<RankId> members_;
  transport::CollectedSignals collected_;  // keeps its memory
  std::vector<RankSignal> signals_;
  std::vector<BlockEvidence> evidence_;
  std::vector<std::uint8_t> owes_;  // 1 for members that owe a report
  std::int32_t owed_ = 0;
  std::size_t finished_ = 0;
};

// Downward says what a round broadcasts: the word alone, or also a frame. All leaders agree.
enum class Downward : std::uint8_t { word, mask };

// RoundWord is the part of the broadcast that every round carries.
struct RoundWord {
  std::uint32_t checksum = 0;     // of all that follows, the mask included; set by open()
  std::uint16_t sequence = 0;     // earlier exchanges, modulo 2^16; set by open()
  std::uint16_t rounds_left = 0;  // 0 = no end is near; else rounds left, this one included
};
static_assert(sizeof(RoundWord) == 8);

// MaskParcel is broadcast in rounds for which the ranks agreed that a frame waits
// (StepBallot::mask_waits_max).
struct MaskParcel {
  RoundWord word;
  std::uint16_t size = 0;  // bytes of `frame` in use; 0 = no frame after all
  std::uint16_t unused = 0;
  std::array<std::byte, wire::kFrameBytes> frame{};
};
static_assert(sizeof(MaskParcel) == sizeof(RoundWord) + 4 + wire::kFrameBytes);

// Runs one control round after another between the leaders. A gather takes signals up, a reduction
// takes block evidence up, and a broadcast takes a RoundWord or MaskParcel down. Every leader
// starts all three together, so the order is equal everywhere; pump() polls all three. Checksums
// show damage on the way, sequence numbers show repeats. Rounds allocate nothing.
//
// A leader that cannot start another round calls end(), and every leader does so at the end of the
// job. After all calls each leader knows whether one of the leaders failed, and which.
class LeaderExchange {
 public:
  // All communicators span the leaders only, in the order of nodes, and have no other user. Leader
  // 0, the root, is rank 0 of the world.
  struct Links {
    std::unique_ptr<transport::Communicator> gathers;
    std::unique_ptr<transport::Communicator> masks;
    std::unique_ptr<transport::Communicator> endings;  // for last words
  };
  // `self` is the leader's rank in the world.
  LeaderExchange(Links links, RankId self, std::size_t largest_node, std::size_t blocks);
  // An unfinished round (all ranks fail at once) keeps its buffers for good, because MPI may still
  // write there.
  ~LeaderExchange();

  bool idle() const { return !busy_; }

  // Starts a round. `node_signals` has at most largest_node entries, `evidence` one per block or
  // none; `parcel` counts at the root only. After an error no further round can be opened, because
  // the leaders would not start the same operations. REQUIRES: idle(), and `downward` is the same
  // on all leaders.
  Status open(std::span<const RankSignal> node_signals, std::span<const BlockEvidence> evidence,
              Downward downward, const MaskParcel& parcel);

  // Advances the round. Returns done once all three operations are complete here. Then parcel() is
  // valid, and at the root gathered() and evidence(). An error also comes after all three are
  // complete. The round then has no valid result, and the next round may be opened.
  Result<transport::Progress> pump();

  // Returns the parcel of the round; without a mask only `word` is valid. Returns null if the
  // parcel is damaged or belongs to another round.
  const MaskParcel* parcel() const { return is_sound_ ? &buffers_->parcel : nullptr; }
  // Returns the signals of a node; empty slots have magic 0.
  std::span<const RankSignal> gathered(std::size_t node_index) const;
  std::span<const BlockEvidence> evidence() const { return buffers_->evidence; }

  // Announces that the leader opens no further round, because the job ends (ok) or because of an
  // error. Later calls do nothing.
  void end(const Status& why);
  // Advances the last words. Returns done once all leaders have called end(), and pending before
  // the own call. An error names the leader that failed, and is final.
  Result<transport::Progress> pump_end();

 private:
  struct Buffers {
    std::vector<RankSignal> sent;
    std::vector<RankSignal> received;  // at the root
    std::vector<BlockEvidence> evidence;
    MaskParcel parcel;
    Downward downward = Downward::word;  // says how much of `parcel` travels
  };
  Status start_all();

  Links links_;
  transport::DepartureWatch endings_;
  RankId self_;
  std::size_t largest_node_;
  std::unique_ptr<Buffers> buffers_;
  std::array<transport::Request, 3> requests_{};
  Status failed_;               // the first failure of this round
  Status ending_;               // why last words cannot travel; ok = no error
  std::uint16_t sequence_ = 0;  // of this round: number of earlier rounds, modulo 2^16
  bool is_sound_ = false;
  bool busy_ = false;
  bool has_ended_ = false;
};

// Shows the ranks of the node the masks from another node, frame by frame. Ranks may look seldom,
// so the frames of one plan stay on the board together until frames of another plan come. Damaged
// frames are dropped before spreading. The board has no other writer.
class MaskRelay {
 public:
  explicit MaskRelay(transport::MaskBoard board) : board_(board) {}

  // Shows a frame to the node. Returns data_loss, and changes nothing, if the bytes are not a
  // frame. Frames of older plans and repeated frames change nothing either.
  Status pass(std::span<const std::byte> frame);

 private:
  transport::MaskBoard board_;
  wire::FrameHeader plan_{};  // of the frames on the board
  std::vector<wire::Frame> frames_;
};

}  // namespace cox::runtime
