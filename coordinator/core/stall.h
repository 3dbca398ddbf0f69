// Stall: which ranks delay which, derived from the marks of the ranks' activities. Only a rank's
// training thread moves its mark, so a mark describes even a rank that stands still. Every reader
// of marks (the coordinator's thread, a waiting rank) derives the same answer. A stall is not
// stored: it lasts as long as the marks show it. Pure values and functions; times are ages, so that
// no two clocks are compared.
//
//   RankMark of every rank -- find_stall() --> Stall -- text_of() --> log, page, /livez, messages
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/phase.h"
#include "coordinator/core/units.h"

namespace cox {

// The activity of a rank. Values travel between nodes: never renumber.
enum class Activity : std::uint8_t {
  unknown = 0,  // no mark of the rank has come
  outside = 1,  // between steps: evaluation, or the loop's own work
  data = 2,
  forward = 3,
  backward = 4,
  compute = 5,
  waiting = 6,  // in communication: the rank has given its part, or is about to
  optimizer = 7,
  other = 8,  // in a step, in none of its phases
  host = 9,
  saving = 10,
  finished = 11,  // no more steps, and no part in any later round
  evaluating = 12,
  epoch = 13,  // behind the last step of an epoch, in the loop's own work
};
inline constexpr std::size_t kActivities = 14;

Activity activity_of(Phase phase);
std::string_view to_string(Activity activity);

// The state of a rank's process by the operating system; unknown if no rank on its node looked.
enum class ProcessState : std::uint8_t { unknown = 0, running = 1, stopped = 2, gone = 3 };
inline constexpr std::size_t kProcessStates = 4;

// One rank's mark, as read.
struct RankMark {
  RankId rank{};
  Activity activity = Activity::unknown;
  ProcessState process = ProcessState::unknown;
  RoundId round{};              // the rank's present round: all earlier ones are complete there
  StepId step{};                // the newest step that the rank began
  double activity_seconds = 0;  // since the activity began
  double round_seconds = 0;     // since the rank completed the round before
  double silent_seconds = 0;    // since the training thread last moved the mark

  // Returns how long the rank has waited for others in this round.
  double waited_seconds() const {
    return activity_seconds < round_seconds ? activity_seconds : round_seconds;
  }
  friend bool operator==(const RankMark&, const RankMark&) = default;
};

// Stall is a wait of ranks for other ranks. Without culprits, all ranks wait for each other.
struct Stall {
  double seconds = 0;              // the longest wait
  std::vector<RankMark> culprits;  // ascending ranks that the others wait for
  std::vector<RankId> waiting;     // ascending
  std::vector<RankId> silent;      // ascending ranks without a mark, which may be at fault as well

  bool is_waiting(RankId rank) const;
  // Returns whether all culprits save, which is slow but in order.
  bool is_save() const;
  friend bool operator==(const Stall&, const Stall&) = default;
};

// The time that a rank may wait before another one is named.
struct StallPatience {
  double seconds = 3;           // for a rank that works
  double stopped_seconds = 1;   // for a rank that is stopped, gone or finished
  double silent_seconds = 4.5;  // if all known ranks wait: letters between nodes take time
  double mutual_seconds = 30;   // if all ranks wait
};
// Returns at least three typical steps and 3 s, because uneven steps are no stall. 0 = not known.
StallPatience patience_for(double typical_step_seconds);

// Returns nothing if no rank waits for long. A rank is named if it has not reached the round in
// which others wait, or if it cannot: its process is stopped or gone, or it has finished before
// that round. REQUIRES: ascending ranks.
std::optional<Stall> find_stall(std::span<const RankMark> marks, const StallPatience& patience);

// Returns the ranks that have left the loop before `round`, in which another rank waits for them.
std::vector<RankMark> departed_before(RoundId round, std::span<const RankMark> marks);

// Returns "rank 1 is in backward of step 212 for 6.2 s, its process is stopped; ranks 0, 2 wait for
// it".
std::string text_of(const Stall& stall);
// Returns "in backward of step 212 for 6.2 s, its process is stopped".
std::string text_of(const RankMark& mark);
// Returns "rank 3" or "ranks 0-2, 5". REQUIRES: ascending ranks.
std::string text_of(std::span<const RankId> ranks);

}  // namespace cox
