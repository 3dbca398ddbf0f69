// ControlPlane: a rank's end of the control plane and, on rank 0, the coordinator's thread behind
// it. start() is collective: it agrees on incarnation, first round and first plan, builds the link,
// and starts the loop. Afterwards only the training thread of each rank calls it. learn() and
// finish() wait for other ranks; all other calls take microseconds and never block. None throws.
// Owns link, plan book, journal and loop.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/core/ballot.h"
#include "coordinator/core/config.h"
#include "coordinator/core/log.h"
#include "coordinator/decide/decide.h"
#include "coordinator/decide/record.h"
#include "coordinator/runtime/control_boards.h"
#include "coordinator/runtime/control_loop.h"
#include "coordinator/runtime/journal.h"
#include "coordinator/runtime/mark_relay.h"
#include "coordinator/runtime/mask_broadcast.h"
#include "coordinator/runtime/node_marks.h"
#include "coordinator/runtime/plan_book.h"
#include "coordinator/runtime/stall_watch.h"
#include "coordinator/transport/communicator.h"

namespace cox::runtime {

class ControlLink;

// StartFacts are what every rank learns from rank 0.
struct StartFacts {
  std::uint32_t incarnation = 1;
  RoundId first_round{};
};

struct ControlPlaneSetup {
  JobFacts job;  // incarnation and node_of_rank are filled in by start()
  Config config;
  PolicySet policies;
  std::optional<ControlState> restored;  // used on rank 0 only
  // Called once on rank 0, on the starting thread, with the completed facts. It may return null.
  std::function<StepSink*(const JobFacts&)> make_sink;
  std::function<UnixTime()> now;
  std::filesystem::path journal;  // rank 0; empty = none
  Log log;
  // Makes a stream of this rank's device for masks over NCCL; empty = this rank has no device.
  // `nccl_library`: as dlopen() takes it.
  MakeLane make_lane{};
  std::string nccl_library = transport::NcclLibrary::kName;
  // Rank 0, on the coordinator's thread, both may be empty: the newest stall while there is one and
  // once when it is over; and why the job must not wait any longer, once.
  std::function<void(const std::optional<Stall>&)> on_stall{};
  std::function<void(const std::string& why)> on_hopeless{};
};

// MeasuredFacts were measured on the first batch. Facts that do not fit the job's shape are
// dropped, with a line in the log.
struct MeasuredFacts {
  MemoryFacts memory;
  PrecisionFacts precision;
};

enum class MayOpen : bool { no, yes };

class ControlPlane {
 public:
  // Joins the control plane of the job. Collective; blocks by polling.
  static Result<std::unique_ptr<ControlPlane>> start(transport::Communicator& world,
                                                     ControlPlaneSetup setup);
  ~ControlPlane();
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  // Hands rank 0's facts to the coordinator; those of other ranks do not count. Policies decide
  // what the next step runs under, and every rank starts from that plan. Returns their reasons on
  // rank 0. May be repeated with more facts, between steps as well: the decisions then begin anew
  // with a plan of the next number. Collective; blocks by polling. REQUIRES: no rank has reported
  // yet, or the ranks open no control round.
  Result<std::vector<Reason>> learn(transport::Communicator& world, MeasuredFacts facts);

  const StartFacts& start_facts() const { return start_; }
  const JobFacts& job() const { return job_; }
  // Returns "mailbox", "mpi" or "mailbox+mpi", with "+nccl" behind it while masks go over NCCL.
  std::string path() const;
  // Ok while masks go over NCCL, or were never to; else why they do not. The same code on all
  // ranks, the whole reason on the rank that had it.
  Status masks_status() const;

  // plan() returns the plan in force, plan_held() the number of the newest one held.
  const Plan& plan() const { return plans_.active(); }
  std::uint64_t plan_held() const { return plans_.held_number(); }
  bool round_closed() const;

  // Fills in this rank's votes: the plan it holds, whether its last control round is closed,
  // whether a mask waits for other nodes.
  void cast(StepBallot& ballot);

  // Takes over the merged ballot of `round`: decides whether the plan that is held becomes active.
  // REQUIRES: every rank calls it with equal arguments.
  void agree(RoundId round, const StepBallot& merged);
  // Opens the next round. A plan that was agreed on is in force from here on.
  void begin_round() { plans_.begin_round(); }

  // Takes this rank's report. The report leaves at once if `may_open` is yes (the ranks agreed to
  // open a control round, or this rank only watches) and the last control round is closed.
  // Otherwise it is merged into the next report.
  void report(RankSignal signal, std::span<const BlockEvidence> evidence, MayOpen may_open);

  // Moves messages on and reads masks.
  void pump();
  // Returns whether NCCL has not yet handed a mask that this rank sends or gets to its stream; then
  // pump() goes on with it.
  bool is_mask_setting_out() const;

  // This rank's mark, for its training thread to move.
  transport::MarkWriter& mark() { return mark_; }
  // The board of this node's marks, and whose they are.
  const NodeMarks& node_marks() const { return *marks_; }
  // The marks that can be read on this node, with the state of their processes, and those of other
  // nodes' ranks that the coordinator says others wait for; ascending ranks.
  std::vector<RankMark> marks_here() const;

  // Sends a last report with the flag `finished` and waits (polling) until no other rank needs this
  // one: the leader of a node for its ranks and for the other leaders, rank 0 for all, ranks that
  // only watch for the common end of the exchange between nodes. Then stops the coordinator. Every
  // rank calls it, after as many rounds as the others or, if it only watches, whenever it is done.
  // Gives the others ten minutes to come, at most control.wait_seconds, or a day if this rank only
  // watches, because those may still train; a leader that has failed is waited for no longer than
  // until all leaders are here. failed_precondition when others wait for this rank in a round that
  // it has no part in any more: it left its loop before they did.
  Status finish(RankSignal last);
  // Ok, or why control rounds ended before the job; names the leader that failed, if one did.
  const Status& control_status() const;

  // Returns a copy of the coordinator's state on rank 0.
  std::optional<ControlState> state() const;

 private:
  ControlPlane(JobFacts job, Log log, StartFacts start, Plan first);
  Status start_loop(ControlPlaneSetup setup, Refitted refitted, const JournalHead& head);
  enum class Ending { together, each_when_done };
  bool is_hopeless();
  bool may_leave(Ending ending);
  Status check_nobody_waits() const;
  void stop_loop();
  Status set_up_marks_of(transport::Communicator& world, NodeGroup& nodes);
  void start_stall_watch(const ControlPlaneSetup& setup);

  JobFacts job_;
  Log log_;
  StartFacts start_;
  PlanBook plans_;
  std::unique_ptr<Boards> boards_;  // the link and the loop refer to them
  std::unique_ptr<ControlLink> link_;
  std::optional<NodeMarks> marks_;
  transport::MarkWriter mark_;         // of this rank, on marks_
  MarkRelay mail_;                     // reads marks_
  Seconds together_limit_{0};          // of finish(), for ranks that train
  bool mask_comes_ = false;            // down with the next control round: agreed by the ranks
  std::optional<RankSignal> waiting_;  // reports that could not leave yet
  std::vector<BlockEvidence> waiting_evidence_;

  // Rank 0.
  std::unique_ptr<JournalWriter> journal_;
  std::unique_ptr<StallWatch> stalls_;
  std::unique_ptr<ControlLoop> loop_;
  std::thread thread_;
};

}  // namespace cox::runtime
