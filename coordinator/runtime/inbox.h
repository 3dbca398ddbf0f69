// Inbox: the coordinator's side of the reports. It waits until the ranks have reported a round or
// one of them is late, takes the reports from the board, checks each once, and judges which round
// they are of:
//
//   SignalBoard -- take() --> TakenReports -- gather() --> StepSignals
//
// Thread rule: the coordinator's thread, but for notify() and all_finished(). Owns nothing of the
// board.
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

// TakenReports are reports as they lay on the board.
struct TakenReports {
  std::vector<RankSignal> signals;
  std::vector<std::uint8_t> is_own;  // per signal: 1 = undamaged, and of a rank of this job's start
  std::vector<BlockEvidence> evidence;
};

// Checks every report, which takes time with many ranks; later stages read is_own.
TakenReports check_reports(transport::CollectedSignals collected, const JobFacts& job);

// Returns the round that a set of reports is about: the newest one of own ranks that share a
// reduction, and at least `earliest`. Ranks that only watch do not count, because they count steps
// of their own.
RoundId round_to_judge(const TakenReports& taken, RoundId earliest);

// Decides how often the coordinator looks whether a round's reports are there. Being woken is a
// system call on the thread that trains, and where the other core sleeps an interrupt to it: 57 us
// of a step, measured in a virtual machine. But rounds of training come at a steady pace and their
// answer is not needed before the next step ends, so a reader that looks twice a step loses
// nothing. Pure: time is an argument.
class RoundPace {
 public:
  using Clock = std::chrono::steady_clock;

  // The reader polls at most this often in a row, then it asks to be woken: something has changed.
  static constexpr int kPolls = 16;

  // Notes that a round's reports were complete.
  void round_at(Clock::time_point now);
  // Returns half the shortest of the last rounds, at most 50 ms. Returns 0, which means "be woken",
  // when rounds come in less than 4 ms or too few are known.
  std::chrono::nanoseconds poll_interval() const;

 private:
  std::array<Clock::time_point, 5> ends_{};  // the last ones, in turn
  std::size_t rounds_ = 0;
};

// Keeps reports whose round was judged without them. The rank's next report, where one follows,
// takes them in, so that nothing it counted or asked for is lost; each still counts as stale.
class LateReports {
 public:
  explicit LateReports(std::int32_t world_size);

  // Keeps what in `taken` is older than `round`, the one to judge, and merges into each rank's
  // report of `round` what was kept of that rank. A report counts once, however often it comes.
  void fold(RoundId round, TakenReports& taken);

 private:
  enum class Kept : std::uint8_t { no, yes };  // no: it counted before
  Kept keep(const RankSignal& late);
  void add_to(RankSignal& report);
  void fold_evidence(std::vector<BlockEvidence>& evidence);

  std::vector<RoundId> next_;  // per rank, the first round that none of its reports has covered
  std::map<std::int32_t, RankSignal> kept_;
  std::vector<BlockEvidence> evidence_;  // of turns that brought late reports only
};

class Inbox {
 public:
  // `board` must outlive the inbox. A rank is late when its report is missing this long while
  // another rank's is there.
  Inbox(transport::SignalBoard& board, std::int32_t world_size, Seconds late);

  // Sleeps until every rank that will report again has, one is late, or notify(). Calls `look`
  // about twice a second while nothing comes.
  void wait(const std::function<void()>& look);
  // Ends a wait() early. Any thread.
  void notify() { board_.notify(); }

  // Takes what lies on the board, and remembers the ranks whose last report is there.
  TakenReports take(const JobFacts& job);
  // Judges taken reports. Without fresh ones the result has no reports and is no round, even if
  // there were late ones. Ranks that have finished are not `missing`.
  StepSignals gather(TakenReports taken, const JobFacts& job, UnixTime now);

  // Returns whether every rank of the job has sent its last report. Any thread may call it.
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
  std::atomic<std::int32_t> ranks_left_;  // that will report again
  std::vector<std::uint8_t> finished_;    // 1 for ranks that will not report again
};

}  // namespace cox::runtime
