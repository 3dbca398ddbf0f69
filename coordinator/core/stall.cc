#include "coordinator/core/stall.h"

#include <algorithm>
#include <array>

#include "coordinator/core/text.h"

namespace cox {
namespace {

constexpr double kDeafSeconds = 5;  // a waiting rank moves its mark many times a second
constexpr double kHeardSeconds = 2;
constexpr std::size_t kMostNamed = 8;

bool cannot_move(const RankMark& mark) {
  return mark.process == ProcessState::stopped || mark.process == ProcessState::gone;
}

bool waits(const RankMark& mark) {
  return mark.activity == Activity::waiting && !cannot_move(mark);
}

// Holds how long a rank has waited in a round or in a later one. Linear in ranks, except for
// sorting.
class Waits {
 public:
  explicit Waits(std::span<const RankMark> marks) {
    for (const RankMark& mark : marks) {
      if (waits(mark)) waits_.push_back({mark.round, mark.waited_seconds()});
    }
    std::ranges::sort(waits_, {}, &Wait::round);
    for (std::size_t i = waits_.size(); i-- > 1;) {
      waits_[i - 1].seconds = std::max(waits_[i - 1].seconds, waits_[i].seconds);
    }
  }

  // Returns a number below 0 if no rank waits in `round` or later.
  double from(RoundId round) const {
    const auto first = std::ranges::lower_bound(waits_, round, {}, &Wait::round);
    return first == waits_.end() ? -1 : first->seconds;
  }

 private:
  struct Wait {
    RoundId round{};
    double seconds = 0;  // the longest in this round and the later ones
  };
  std::vector<Wait> waits_;  // by round
};

bool keeps_waiting(const RankMark& mark, const Waits& others, const StallPatience& patience) {
  if (mark.activity == Activity::unknown || waits(mark)) return false;
  const bool never_comes = cannot_move(mark) || mark.activity == Activity::finished;
  return others.from(mark.round) >= (never_comes ? patience.stopped_seconds : patience.seconds);
}

// If all ranks wait: returns the ranks whose threads no longer move their marks, if another rank's
// still does.
std::vector<RankMark> deaf_among(std::span<const RankMark> marks) {
  std::vector<RankMark> deaf;
  for (const RankMark& mark : marks) {
    if (waits(mark) && mark.silent_seconds >= kDeafSeconds) deaf.push_back(mark);
  }
  const bool is_somebody_heard = std::ranges::any_of(marks, [](const RankMark& mark) {
    return waits(mark) && mark.silent_seconds < kHeardSeconds;
  });
  return is_somebody_heard ? deaf : std::vector<RankMark>{};
}

// Shows tenths of a second below a minute.
std::string time_text(double seconds) {
  return seconds < 60 ? concat(fixed(seconds, 1), " s") : duration_text(seconds);
}

std::string where_text(const RankMark& mark) {
  const auto step = mark.step;
  switch (mark.activity) {
    case Activity::unknown:
      return "has sent no status";
    case Activity::outside:
      return concat("is outside of a step, after step ", step, ",");
    case Activity::saving:
      return concat("saves after step ", step, ",");
    case Activity::evaluating:
      return concat("evaluates after step ", step, ",");
    case Activity::epoch:
      return concat("is between two epochs, after step ", step, ",");
    case Activity::waiting:
      return concat("waits in step ", step);
    case Activity::finished:
      return concat("has left its loop after step ", step,
                    ", so the other ranks wait without end (give all ranks equally many steps, or "
                    "see docs/data-parallel.md for ranks that end earlier)");
    case Activity::other:
      return concat("is in step ", step, ", outside of its phases,");
    default:
      return concat("is in ", to_string(mark.activity), " of step ", step);
  }
}

}  // namespace

Activity activity_of(Phase phase) {
  constexpr std::array<Activity, kPhases> kOf = {
      Activity::data,    Activity::forward,   Activity::backward, Activity::compute,
      Activity::waiting, Activity::optimizer, Activity::other,    Activity::host};
  return kOf[static_cast<std::size_t>(phase)];
}

std::string_view to_string(Activity activity) {
  constexpr std::array<std::string_view, kActivities> kNames = {
      "unknown",   "outside", "data", "forward", "backward", "compute",    "waiting",
      "optimizer", "other",   "host", "saving",  "finished", "evaluating", "epoch"};
  const auto place = static_cast<std::size_t>(activity);
  return place < kNames.size() ? kNames[place] : "unknown";
}

bool Stall::is_waiting(RankId rank) const {
  return std::ranges::find(waiting, rank) != waiting.end();
}

bool Stall::is_save() const {
  return !culprits.empty() && std::ranges::all_of(culprits, [](const RankMark& mark) {
    return mark.activity == Activity::saving && !cannot_move(mark);
  });
}

StallPatience patience_for(double typical_step_seconds) {
  StallPatience patience;
  const bool is_known = typical_step_seconds > 0 && typical_step_seconds < 1e9;
  if (is_known) patience.seconds = std::max(patience.seconds, 3 * typical_step_seconds);
  patience.silent_seconds = patience.seconds + 1.5;
  patience.mutual_seconds = std::max(patience.mutual_seconds, 10 * patience.seconds);
  return patience;
}

std::optional<Stall> find_stall(std::span<const RankMark> marks, const StallPatience& patience) {
  Stall stall;
  std::size_t known = 0;
  for (const RankMark& mark : marks) {
    if (mark.activity == Activity::unknown) {
      stall.silent.push_back(mark.rank);
      continue;
    }
    ++known;
    if (!waits(mark)) continue;
    stall.waiting.push_back(mark.rank);
    stall.seconds = std::max(stall.seconds, mark.waited_seconds());
  }
  if (stall.waiting.empty()) return std::nullopt;
  const Waits others(marks);
  for (const RankMark& mark : marks) {
    if (keeps_waiting(mark, others, patience)) stall.culprits.push_back(mark);
  }
  if (!stall.culprits.empty()) return stall;
  const bool do_all_wait = stall.waiting.size() == known;
  const bool is_long = stall.seconds >= patience.seconds;
  if (!do_all_wait || !is_long) return std::nullopt;
  stall.culprits = deaf_among(marks);
  for (const RankMark& deaf : stall.culprits) std::erase(stall.waiting, deaf.rank);
  const bool is_silence = !stall.silent.empty() && stall.seconds >= patience.silent_seconds;
  const bool is_told = !stall.culprits.empty() || is_silence ||
                       (known > 1 && stall.seconds >= patience.mutual_seconds);
  return is_told ? std::optional(stall) : std::nullopt;
}

std::vector<RankMark> departed_before(RoundId round, std::span<const RankMark> marks) {
  std::vector<RankMark> departed;
  for (const RankMark& mark : marks) {
    if (mark.activity == Activity::finished && mark.round <= round) departed.push_back(mark);
  }
  return departed;
}

std::string text_of(std::span<const RankId> ranks) {
  std::vector<std::size_t> numbers;
  for (const RankId rank : ranks) numbers.push_back(static_cast<std::size_t>(rank.value()));
  return concat(numbers.size() == 1 ? "rank " : "ranks ", ranges_text(numbers, kMostNamed));
}

std::string text_of(const RankMark& mark) {
  std::string text = where_text(mark);
  if (mark.activity != Activity::unknown && mark.activity != Activity::finished) {
    // In a step of many short phases the length of the step says more than that of the newest
    // phase.
    const bool is_short = mark.activity_seconds < mark.round_seconds / 2;
    const bool is_in_step = mark.activity != Activity::outside && mark.activity != Activity::saving;
    text += is_short && is_in_step
                ? concat(" and has been in this step for ", time_text(mark.round_seconds))
                : concat(" for ", time_text(mark.activity_seconds));
  }
  if (mark.process == ProcessState::stopped) text += ", its process is stopped";
  if (mark.process == ProcessState::gone) text += ", its process is gone";
  return text;
}

std::string text_of(const Stall& stall) {
  const std::string wait = stall.waiting.size() == 1 ? " waits" : " wait";
  if (stall.culprits.empty()) {
    const std::string whom =
        stall.silent.empty()
            ? "for each other, and no rank is at work: the network fails, or some "
              "ranks did not make a call"
            : concat("for ", text_of(stall.silent), ", from which no status arrives");
    return concat(text_of(stall.waiting), wait, " for ", time_text(stall.seconds), " ", whom);
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(stall.culprits.size(), kMostNamed); ++i) {
    const RankMark& mark = stall.culprits[i];
    text += concat(i == 0 ? "rank " : "; rank ", mark.rank.value(), " ", text_of(mark));
  }
  if (stall.culprits.size() > kMostNamed)
    text += concat(" and ", stall.culprits.size() - kMostNamed, " more ranks");
  const std::string for_whom = stall.culprits.size() == 1 ? " for it" : " for them";
  text += concat("; ", stall.waiting.empty() ? "no rank waits"
                                             : concat(text_of(stall.waiting), wait, for_whom));
  if (stall.silent.empty()) return text;
  return concat(text, "; no status arrives from ", text_of(stall.silent));
}

}  // namespace cox
