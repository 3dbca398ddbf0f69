// ControlPlane: a rank's end of the control plane and, on rank 0, the coordinator's thread. Owns
// link, plan book, journal and loop. start() is collective: the ranks agree on incarnation, first
// round and first plan, build the link, and start the loop. Afterwards only the training thread of
// each rank calls the functions. learn() and finish() wait for other ranks; all other calls take
// microseconds and never block. None throws.
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

// StartFacts are the facts that every rank learns from rank 0.
struct StartFacts {
  std::uint32_t incarnation = 1;
  RoundId first_round{};
};

struct ControlPlaneSetup {
  JobFacts job;  // start() fills in incarnation and node_of_rank
  Config config;
  PolicySet policies;
  std::optional<ControlState> restored;  // used on rank 0 only
  // Called once on rank 0, on the starting thread, with the completed facts. May return null.
  std::function<StepSink*(const JobFacts&)> make_sink;
  std::function<UnixTime()> now;
  std::filesystem::path journal;  // rank 0; empty = none
  Log log;
  // Makes a stream of this rank's device for masks over NCCL; empty = this rank has no device.
  // `nccl_library` is an argument of dlopen().
  MakeLane make_lane{};
  std::string nccl_library = transport::NcclLibrary::kName;
  // Called on rank 0, on the coordinator's thread; both may be empty. on_stall gets the newest
  // stall while one lasts, and nothing once at its end. on_hopeless is called once, with the reason
  // for which the job must not wait any longer.
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

  // Passes rank 0's facts to the coordinator; the facts of other ranks do not count. Policies
  // decide the plan of the next step, and every rank starts from that plan. Returns the policies'
  // reasons on rank 0. May be repeated with more facts, between steps as well: decisions then begin
  // anew with a plan of the next number. Collective; blocks by polling. REQUIRES: no rank has
  // reported yet, or the ranks open no control round.
  Result<std::vector<Reason>> learn(transport::Communicator& world, MeasuredFacts facts);

  const StartFacts& start_facts() const { return start_; }
  const JobFacts& job() const { return job_; }
  // Returns "mailbox", "mpi" or "mailbox+mpi", followed by "+nccl" while masks travel over NCCL.
  std::string path() const;
  // Returns ok while masks travel over NCCL, or if NCCL was never wanted; else the reason. The code
  // is the same on all ranks; the whole reason is on the rank that failed.
  Status masks_status() const;

  // plan() returns the plan in force. plan_held() returns the number of the newest plan that this
  // rank holds.
  const Plan& plan() const { return plans_.active(); }
  std::uint64_t plan_held() const { return plans_.held_number(); }
  bool round_closed() const;

  // Fills in the rank's votes: the number of the held plan, whether the last control round is
  // closed, and whether a mask waits for other nodes.
  void cast(StepBallot& ballot);

  // Applies the merged ballot of `round`: decides whether the held plan becomes active. REQUIRES:
  // every rank calls agree() with equal arguments.
  void agree(RoundId round, const StepBallot& merged);
  // Opens the next round. An agreed plan is in force from now on.
  void begin_round() { plans_.begin_round(); }

  // Accepts the rank's report. The report leaves at once if `may_open` is yes (the ranks agreed to
  // open a control round, or the rank only watches) and the last control round is closed. Otherwise
  // the report is merged into the next one.
  void report(RankSignal signal, std::span<const BlockEvidence> evidence, MayOpen may_open);

  // Advances messages and reads masks.
  void pump();
  // Returns whether NCCL has not yet queued a mask on the rank's stream. If so, call pump() again.
  bool is_mask_setting_out() const;

  // The rank's mark, which only its training thread moves.
  transport::MarkWriter& mark() { return mark_; }
  // The board of the node's marks, and the ranks of these marks.
  const NodeMarks& node_marks() const { return *marks_; }
  // Returns the marks of the node's ranks with the state of their processes, and the marks of ranks
  // on other nodes that delay others, as the coordinator reports. Ascending ranks.
  std::vector<RankMark> marks_here() const;

  // Sends a last report with the flag `finished`, waits by polling until no other rank needs the
  // caller, and stops the coordinator. A node's leader waits for the node's ranks and for the other
  // leaders. Rank 0 waits for all ranks. A rank that only watches waits for the common end of the
  // exchange between nodes.
  //
  // Every rank calls finish(). A rank that trains calls finish() after as many rounds as the
  // others; a rank that only watches may call finish() at any time. The limit is ten minutes, at
  // most control.wait_seconds, or a day for a rank that only watches, because other ranks may still
  // train. A failed leader is waited for only until all leaders are here. Returns
  // failed_precondition if the caller left its loop early, so that other ranks wait for the caller
  // in a later round.
  Status finish(RankSignal last);
  // Returns ok, or why control rounds ended before the job, with the name of the leader that
  // failed.
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
  std::unique_ptr<Boards> boards_;  // the link and the loop refer to the boards
  std::unique_ptr<ControlLink> link_;
  std::optional<NodeMarks> marks_;
  transport::MarkWriter mark_;         // of this rank, on marks_
  MarkRelay mail_;                     // reads marks_
  Seconds together_limit_{0};          // limit of finish(), for ranks that train
  bool mask_comes_ = false;            // with the next control round: agreed by the ranks
  std::optional<RankSignal> waiting_;  // reports that could not leave yet
  std::vector<BlockEvidence> waiting_evidence_;

  // Rank 0.
  std::unique_ptr<JournalWriter> journal_;
  std::unique_ptr<StallWatch> stalls_;
  std::unique_ptr<ControlLoop> loop_;
  std::thread thread_;
};

}  // namespace cox::runtime
