// ControlLoop: the coordinator. Runs on a thread of its own on rank 0, asleep until the ranks have
// reported a round (or one is late; round_pace.h says who wakes it), and takes their signals
// through the whole flow:
//
//   mailboxes -> StepSignals -> StepSummary -> Decision -> Plan -> mask -> every rank
//                                                 \-> journal, telemetry
//
// It never calls MPI: signals and masks lie in boards that training threads fill and empty. A
// failing journal or sink is told and never stops the loop. What nobody expects (no memory is left,
// say) ends decisions: the plan stays as it is, and the ranks train and leave as before.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/decide.h"
#include "coordinator/core/log.h"
#include "coordinator/core/policy.h"
#include "coordinator/core/record.h"
#include "coordinator/runtime/journal.h"
#include "coordinator/runtime/late_reports.h"
#include "coordinator/runtime/round_pace.h"
#include "coordinator/transport/shared/mask_board.h"
#include "coordinator/transport/shared/signal_board.h"

namespace cox::runtime {

// What a loop works with. Pointers may be null where noted and must outlive the loop.
struct ControlLoopParts {
  JobFacts job;
  Config config;
  PolicySet policies;
  ControlState state;
  transport::SignalBoard* inbox = nullptr;
  transport::MaskBoard* outbox = nullptr;
  JournalWriter* journal = nullptr;  // null = none is kept
  StepSink* sink = nullptr;          // null = no telemetry
  std::vector<Reason> begun{};       // said before the first round; the sink hears it with that one
  std::function<UnixTime()> now;
  Log log;
};

class ControlLoop {
 public:
  explicit ControlLoop(ControlLoopParts parts);

  // Until stop(). What was posted before stop() is still taken through the flow.
  void run();
  // From any thread.
  void stop();

  // Whether every rank of the job has sent its last report. From any thread.
  bool all_finished() const { return ranks_left_.load() == 0; }

  // What policies want the first step to run under, now that more is known of the job: it goes into
  // the state's plan, which keeps its id. Before any rank has reported; from any thread. The sink
  // hears the reasons with the first round.
  std::vector<Reason> begin(JobFacts job);

  // A copy of the state after the last round; nothing once decisions have ended before the job.
  // From any thread; waits for at most one decision.
  std::optional<ControlState> state() const;

 private:
  void wait_for_round();
  transport::BoardWake wait_for_late(std::int32_t expected, std::chrono::nanoseconds late);
  void turn();
  void conduct(transport::CollectedSignals collected);
  StepSignals judge(transport::CollectedSignals collected);
  void note_finished(const std::vector<RankSignal>& received);
  Decision decide_round(const StepSignals& signals);
  enum class Encoding { delta, full };
  void publish(const Plan& plan, Encoding encoding);
  bool should_resend(const StepSummary& summary) const;
  void keep_record(const StepSignals& signals, Decision decision);
  void tell_sink(const StepSignals& signals, Decision decision);
  void add_begun(Decision& first);
  void count(const StepSignals& signals);

  ControlLoopParts parts_;
  mutable std::mutex state_mutex_;  // guards parts_.state
  std::atomic<bool> stopping_{false};
  std::atomic<bool> has_failed_{false};  // also while parts_.state is away, under its mutex
  RoundPace pace_;
  std::atomic<std::int32_t> ranks_left_;  // that will report again
  RoundId earliest_{};                    // rounds before this one are over
  std::vector<std::uint8_t> finished_;    // 1 for ranks that will not report again
  LateReports late_;
  Plan published_;                      // the base of the next delta
  std::uint64_t published_in_ = 0;      // counters_.rounds then
  std::uint64_t published_frames_ = 0;  // of which one is passed on a round between nodes
  ControlCounters counters_;
};

// The round that a set of reports speaks of: the newest one of ranks of this start of the job that
// share a reduction, and at least `earliest`. Ranks that only watch have no say: they count steps
// of their own.
RoundId round_to_judge(std::span<const RankSignal> reports, const JobFacts& job, RoundId earliest);

}  // namespace cox::runtime
