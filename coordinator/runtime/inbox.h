// Inbox: the coordinator's side of the reports. Waits until the ranks have reported a round or one
// is late, takes the reports from the board, checks each once, and assigns the reports to a round.
// Thread rule: the coordinator's thread, except for notify() and all_finished(). Does not own the
// board.
//
//   SignalBoard -- take() --> TakenReports -- gather() --> StepSignals
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "coordinator/core/evidence.h"
#include "coordinator/core/job.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/transport/shared/signal_board.h"

namespace cox::runtime {

// TakenReports are reports as read from the board.
struct TakenReports {
  std::vector<RankSignal> signals;
  std::vector<std::uint8_t> is_own;  // per signal: 1 = undamaged, and of a rank of this start
  std::vector<BlockEvidence> evidence;
};

// Checks every report, which takes time with many ranks. Later stages read is_own.
TakenReports check_reports(transport::CollectedSignals collected, const JobFacts& job);

// Returns the round of a set of reports: the newest round of own ranks that share a reduction, and
// at least `earliest`. Ranks that only watch do not count, because each has a step count of its
// own.
RoundId round_to_judge(const TakenReports& taken, RoundId earliest);

// Decides how often the coordinator polls for a round's reports. A wake-up costs the training
// thread a system call and, if the other core sleeps, an interrupt: 57 us of a step, measured in a
// virtual machine. Training rounds come at a steady pace, and the answer is needed only at the end
// of the next step, so polling twice a step loses nothing. Short steps would pay most for wake-ups,
// so a round covers all steps within 2 ms. Pure: time is an argument.
class RoundPace {
 public:
  using Clock = std::chrono::steady_clock;

  // Most polls in a row; then the reader waits to be woken, because the pace has changed.
  static constexpr int kPolls = 16;

  // Records that a round's reports were complete.
  void round_at(Clock::time_point now);
  // Returns half the shortest of the last rounds, from 2 to 50 ms. Returns 0, meaning "wait to be
  // woken", if rounds take less than 0.2 ms (no training step does) or too few are known.
  std::chrono::nanoseconds poll_interval() const;

 private:
  std::array<Clock::time_point, 5> ends_{};  // ends of the last rounds, a ring
  std::size_t rounds_ = 0;
};

// Keeps late reports, whose round was judged without them. Merges each into the rank's next report,
// so that no count and no request is lost. Each late report still counts as stale.
class LateReports {
 public:
  explicit LateReports(std::int32_t world_size);

  // Keeps the reports in `taken` that are older than `round`, the round to judge. Merges the kept
  // reports of a rank into the rank's report of `round`. Counts a report once, however often
  // received.
  void fold(RoundId round, TakenReports& taken);

 private:
  enum class Kept : std::uint8_t { no, yes };  // no: the report counted before
  Kept keep(const RankSignal& late);
  void add_to(RankSignal& report);
  void fold_evidence(std::vector<BlockEvidence>& evidence);

  std::vector<RoundId> next_;  // per rank: the first round not covered by its reports
  std::map<std::int32_t, RankSignal> kept_;
  std::vector<BlockEvidence> evidence_;  // of calls with late reports only
};

class Inbox {
 public:
  // `board` must outlive the inbox. A rank is late if its report is missing for `late` while
  // another rank's is there.
  Inbox(transport::SignalBoard& board, std::int32_t world_size, Seconds late);

  // Sleeps until every rank that will report again has reported, one is late, or notify() is
  // called. Calls `look` about twice a second while nothing comes.
  void wait(const std::function<void()>& look);
  // Ends a wait() early. Any thread.
  void notify() { board_.notify(); }

  // Takes the reports from the board, and remembers the ranks whose last report is among them.
  TakenReports take(const JobFacts& job);
  // Assigns taken reports to a round. Without fresh reports the result is empty and no round, even
  // if late ones came. Ranks that have finished are not `missing`.
  StepSignals gather(TakenReports taken, const JobFacts& job, UnixTime now);

  // Returns whether every rank of the job has sent its last report. Any thread.
  bool all_finished() const { return ranks_left_.load() == 0; }

 private:
  using Look = std::function<void()>;
  transport::BoardWake wait_for_late(std::int32_t expected, const Look& look);
  transport::BoardWake wait_looking(std::int32_t expected, const Look& look);
  void note_finished(const TakenReports& taken);

  transport::SignalBoard& board_;
  const std::chrono::nanoseconds late_after_;
  RoundPace pace_;
  LateReports late_;
  RoundId earliest_{};                    // rounds before this one are over
  std::atomic<std::int32_t> ranks_left_;  // ranks that will report again
  std::vector<std::uint8_t> finished_;    // 1 for ranks that will not report again
};

}  // namespace cox::runtime
