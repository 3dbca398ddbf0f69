// Stall: who keeps whom waiting, told from the marks that ranks leave of what they do. A mark is
// moved by a rank's training thread alone, so it speaks even for a rank that stands still; whoever
// can read marks (the coordinator's thread, a rank that waits) derives the same answer from them.
//
//   RankMark of every rank -- find_stall() --> Stall -- text_of() --> log, page, /livez, messages
//
// Nothing is stored: a stall is there for as long as the marks say so. Pure values and functions;
// times are ages, so that no two clocks are compared.
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

// What a rank is doing. Values travel between nodes: never renumber.
enum class Activity : std::uint8_t {
  unknown = 0,  // no mark of this rank has come
  outside = 1,  // between steps: evaluation, or the loop's own work
  data = 2,
  forward = 3,
  backward = 4,
  compute = 5,
  waiting = 6,  // in communication: it has given its part, or is about to
  optimizer = 7,
  other = 8,  // in a step, in none of its phases
  host = 9,
  saving = 10,
  finished = 11,  // it has no more steps, and gives no part of any round to come
  evaluating = 12,
  epoch = 13,  // behind the last step of an epoch, in the loop's own work
};
inline constexpr std::size_t kActivities = 14;

Activity activity_of(Phase phase);
std::string_view to_string(Activity activity);

// What the operating system says of a rank's process; unknown where nobody on its node looked.
enum class ProcessState : std::uint8_t { unknown = 0, running = 1, stopped = 2, gone = 3 };
inline constexpr std::size_t kProcessStates = 4;

// One rank's mark as it was read.
struct RankMark {
  RankId rank{};
  Activity activity = Activity::unknown;
  ProcessState process = ProcessState::unknown;
  RoundId round{};              // the one it is in: all before it are complete here
  StepId step{};                // the newest it began
  double activity_seconds = 0;  // since the activity began
  double round_seconds = 0;     // since the round before was complete here
  double silent_seconds = 0;    // since its training thread last moved the mark

  // How long the rank has waited for others in this round.
  double waited_seconds() const {
    return activity_seconds < round_seconds ? activity_seconds : round_seconds;
  }
  friend bool operator==(const RankMark&, const RankMark&) = default;
};

// A stall without culprits: all ranks wait for each other.
struct Stall {
  double seconds = 0;              // that the first of the waiting ranks has waited
  std::vector<RankMark> culprits;  // ascending ranks; those that the others wait for
  std::vector<RankId> waiting;     // ascending
  std::vector<RankId> silent;      // ascending; ranks without a mark, which may be at fault as well

  bool is_waiting(RankId rank) const;
  // All culprits save: slow, and as it should be.
  bool is_save() const;
  friend bool operator==(const Stall&, const Stall&) = default;
};

// How long a rank may wait before somebody is named.
struct StallPatience {
  double seconds = 3;           // for a rank that works
  double stopped_seconds = 1;   // for one whose process is stopped or gone, or that has finished
  double silent_seconds = 4.5;  // where all wait that are heard: letters between nodes take time
  double mutual_seconds = 30;   // where all ranks wait
};
// Three typical steps, at least 3 s: uneven steps are no stall. 0 = not known.
StallPatience patience_for(double typical_step_seconds);

// Nothing where nobody waits for long. A rank is named when it has not come to the round in which
// others wait, or cannot move: its process is stopped or gone, or it has finished before that
// round. REQUIRES: ascending ranks.
std::optional<Stall> find_stall(std::span<const RankMark> marks, const StallPatience& patience);

// The ranks that have left the loop in front of `round`, in which somebody waits for them.
std::vector<RankMark> departed_before(RoundId round, std::span<const RankMark> marks);

// "rank 1 is in backward of step 212 for 6.2 s, its process is stopped; ranks 0, 2 wait for it".
std::string text_of(const Stall& stall);
// "in backward of step 212 for 6.2 s, its process is stopped".
std::string text_of(const RankMark& mark);
// "rank 3", "ranks 0-2, 5". REQUIRES: ascending ranks.
std::string text_of(std::span<const RankId> ranks);

}  // namespace cox
