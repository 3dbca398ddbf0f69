// ControlLoop: the coordinator. Runs on a thread of its own on rank 0, asleep until the ranks have
// reported a round or one of them is late, and takes their reports through the whole flow:
//
//   reports -> gather -> summarize -> estimate -> decide -> encode -> publish -> every rank
//                                                       \-> record: journal, telemetry
//
// While nobody reports it looks at the ranks' marks for who keeps whom waiting (StallWatch).
//
// It never calls MPI: reports and masks lie on boards that training threads fill and empty. A
// failing journal or sink is logged and never stops the loop. An unexpected failure (no memory is
// left, say) ends decisions: the plan stays as it is, and the ranks train and leave as before.
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

// ControlLoopParts are the parts that a loop works with. Pointers must outlive the loop, and may be
// null only where that is noted.
struct ControlLoopParts {
  JobFacts job;
  Config config;
  PolicySet policies;
  ControlState state;  // to begin with
  transport::SignalBoard* inbox = nullptr;
  transport::MaskBoard* outbox = nullptr;
  JournalWriter* journal = nullptr;     // null = none is kept
  StepSink* sink = nullptr;             // null = no telemetry
  std::vector<Reason> start_reasons{};  // the sink gets them with the first round
  std::function<UnixTime()> now;
  Log log;
  StallWatch* stalls = nullptr;  // null = nobody looks for stalls
};

class ControlLoop {
 public:
  explicit ControlLoop(ControlLoopParts parts);

  // Runs until stop(). Reports that were posted before stop() still go through the flow.
  void run();
  // Ends run(). Any thread may call it.
  void stop();

  // Returns whether every rank of the job has sent its last report. Any thread may call it.
  bool all_finished() const { return inbox_.all_finished(); }

  // Lets policies decide what the next step runs under, now that more or something else is known of
  // the job. The result goes into the state's plan, which keeps its id before the first round and
  // gets the next number later; the sink gets the reasons with the next round. Any thread may call
  // it. REQUIRES: the ranks get that plan before they report again.
  std::vector<Reason> begin(JobFacts job);

  // Returns a copy of the state after the last round, or nothing once decisions have ended before
  // the job. Any thread may call it; it waits for at most one decision.
  std::optional<ControlState> state() const;

 private:
  enum class Encoding { delta, full };
  // Mask is a plan as frames, ready to be published.
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
  std::optional<ControlState> state_;   // empty while Decide has it, and once decisions have ended
  Plan published_;                      // the base of the next delta
  std::uint64_t published_in_ = 0;      // counters_.rounds then
  std::uint64_t published_frames_ = 0;  // of which one is passed on a round between nodes
  ControlCounters counters_;
  bool has_told_start_ = false;  // in the log
};

// Returns whether this is what a policy left alone at the start. It may be out of date as soon as
// more is known of the job (ControlLoop::begin), so the log waits with it for the first round.
bool is_provisional(const Reason& reason);

}  // namespace cox::runtime
