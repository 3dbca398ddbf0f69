// ControlLoop: the coordinator. Runs on a thread of its own on rank 0 and sleeps until the ranks
// have reported a round or one is late. Never calls MPI: training threads fill and empty the
// boards. While no report comes, the loop looks for stalls (StallWatch). A failing journal or sink
// is logged and does not stop the loop. An unexpected failure, such as missing memory, ends
// decisions: the plan stays, and the ranks train and leave as before.
//
//   reports -> gather -> summarize -> estimate -> decide -> encode -> publish -> every rank
//                                                       \-> record: journal, telemetry
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/log.h"
#include "coordinator/decide/decide.h"
#include "coordinator/decide/policy.h"
#include "coordinator/decide/record.h"
#include "coordinator/runtime/inbox.h"
#include "coordinator/runtime/journal.h"
#include "coordinator/runtime/stall_watch.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"
#include "coordinator/wire/frame.h"

namespace cox::runtime {

// ControlLoopParts are the parts of a loop. Pointers must outlive the loop. A pointer may be null
// only if its comment says so.
struct ControlLoopParts {
  JobFacts job;
  Config config;
  PolicySet policies;
  ControlState state;  // at the start
  transport::SignalBoard* inbox = nullptr;
  transport::MaskBoard* outbox = nullptr;
  JournalWriter* journal = nullptr;     // null = no journal
  StepSink* sink = nullptr;             // null = no telemetry
  std::vector<Reason> start_reasons{};  // passed to the sink with the first round
  std::function<UnixTime()> now;
  Log log;
  StallWatch* stalls = nullptr;  // null = no stall detection
};

class ControlLoop {
 public:
  explicit ControlLoop(ControlLoopParts parts);

  // Runs until stop(). Reports that were posted before stop() still go through the flow.
  void run();
  // Ends run(). Any thread.
  void stop();

  // Returns whether every rank of the job has sent its last report. Any thread.
  bool all_finished() const { return inbox_.all_finished(); }

  // Lets policies decide the plan of the next step from new facts about the job. The plan in the
  // state keeps its id before the first round, and gets the next number later. The sink gets the
  // reasons with the next round. Any thread. REQUIRES: the ranks get the new plan before their next
  // report.
  std::vector<Reason> begin(JobFacts job);

  // Returns a copy of the state after the last round; nothing once decisions have ended. Any
  // thread; blocks for at most one decision.
  std::optional<ControlState> state() const;

 private:
  enum class Encoding { delta, full };
  // Mask is a plan as frames, ready for publish().
  struct Mask {
    Encoding encoding;
    const Plan& plan;
    std::vector<wire::Frame> frames;
  };

  void handle_reports();
  void look_for_stalls();
  void run_round(TakenReports taken);
  StepSignals gather(TakenReports taken);
  Decision decide_round(const StepSignals& signals);
  std::optional<Mask> encode(const Decision& decision);
  void publish(const Mask& mask);
  void record(const StepSignals& signals, Decision decision);
  bool should_resend(const StepSummary& summary) const;
  void send_to_sink(const StepSignals& signals, Decision decision);
  void replace_start_reasons(const std::vector<Reason>& reasons);
  void tell(const std::vector<Reason>& reasons);

  ControlLoopParts parts_;
  Inbox inbox_;
  std::atomic<bool> stopping_{false};
  mutable std::mutex state_mutex_;      // guards state_
  std::optional<ControlState> state_;   // empty during a decision, and once decisions have ended
  Plan published_;                      // the base of the next delta
  std::uint64_t published_in_ = 0;      // counters_.rounds at that time
  std::uint64_t published_frames_ = 0;  // of that plan; a round between nodes carries one
  ControlCounters counters_;
  bool has_told_start_ = false;  // to the log
};

// Returns whether the reason is about a knob left unchanged at the start. Such a reason may become
// stale with more facts about the job (ControlLoop::begin), so the log shows it only in the first
// round.
bool is_provisional(const Reason& reason);

}  // namespace cox::runtime
