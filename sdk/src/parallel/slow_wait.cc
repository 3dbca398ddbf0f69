#include "sdk/src/parallel/slow_wait.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "coordinator/core/text.h"
#include "coxswain/error.h"

namespace cox::detail {
namespace {

constexpr Seconds kMostBetweenLooks{2};
// The departed rank learns sooner whom it keeps waiting, so that all ranks fail together.
constexpr double kDepartedSeconds = 3;
constexpr std::size_t kMostPlaces = 4;

// Returns whether rank 0's process is stopped, so that its coordinator cannot report.
bool is_coordinator_held(const std::vector<RankMark>& marks) {
  const auto stall = find_stall(marks, {});
  return stall && std::ranges::any_of(stall->culprits, [](const RankMark& mark) {
           return mark.rank == kRoot && mark.process >= ProcessState::stopped;
         });
}

std::string places_of(const std::vector<RankMark>& marks) {
  std::string text;
  for (std::size_t i = 0; i < std::min(marks.size(), kMostPlaces); ++i)
    text += concat(i == 0 ? "rank " : ", rank ", marks[i].rank, " ", text_of(marks[i]));
  return text;
}

}  // namespace

void end_waiting(const Log& log, const std::string& why) {
  constexpr int kCode = static_cast<int>(ExitCode::waited);
  log.error(concat(why, "; the job ends here with exit code ", kCode));
  std::_Exit(kCode);
}

SlowWait::SlowWait(Setup setup, Clock::time_point begin)
    : setup_(std::move(setup)), begin_(begin), last_(begin), next_(begin + kLookEvery) {}

void SlowWait::look(Clock::time_point now) {
  if (now < next_) return;
  waited_ += std::min<Seconds>(now - last_, kMostBetweenLooks);
  last_ = now;
  next_ = now + kLookEvery;
  if (setup_.look_at_calls) require(setup_.look_at_calls(begin_), setup_.where);
  const std::vector<RankMark> marks = setup_.marks();
  if (waited_.count() >= kDepartedSeconds) check_departures(marks);
  if (!is_told_ && (now - begin_ >= kPatience || is_coordinator_held(marks))) tell(marks);
  if (!is_beyond_limit()) return;
  const auto stall = find_stall(marks, {});
  if (stall && stall->is_save()) return;  // a save waits as long as the disk takes
  const std::string whom =
      stall ? text_of(*stall) : "the cause is not on this node: " + places_of(marks);
  if (setup_.before_end) setup_.before_end();
  end_waiting(setup_.log, concat(setup_.where, " has waited beyond control.wait_seconds: ", whom));
}

void SlowWait::check_departures(const std::vector<RankMark>& marks) const {
  std::vector<RankMark> departed = departed_before(setup_.round, marks);
  std::erase_if(departed,
                [](const RankMark& mark) { return mark.activity_seconds < kDepartedSeconds; });
  if (departed.empty()) return;
  throw Error(unavailable(setup_.where, ": expected every rank in this step, found that rank ",
                          departed.front().rank, " ", text_of(departed.front())));
}

void SlowWait::tell(const std::vector<RankMark>& marks) {
  is_told_ = true;
  const auto stall = find_stall(marks, {});
  const std::string whom = stall ? text_of(*stall)
                                 : "all ranks of this node wait as well; the log of rank 0 and its "
                                   "status page name late ranks of other nodes";
  setup_.log.warning(concat(setup_.where, " has waited ", fixed(waited_.count(), 0),
                            " s for the other ranks: ", whom));
}

}  // namespace cox::detail
