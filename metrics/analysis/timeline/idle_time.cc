#include "metrics/analysis/timeline/idle_time.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

namespace cox::diagnosis {
namespace {

constexpr double kTogether = 1.5;  // spacings within which a sample counts for a moment

// The cause of an idle stretch.
struct Blame {
  IdleCause cause = IdleCause::unexplained;
  std::vector<std::int32_t> ranks{};  // ranks that are waited for
};

bool waits(Activity activity) {
  return activity == Activity::waiting || activity == Activity::finished;
}

bool computes(Activity activity) {
  return activity == Activity::forward || activity == Activity::backward ||
         activity == Activity::compute || activity == Activity::optimizer ||
         activity == Activity::host;
}

bool is_step_begun(Activity activity) {
  return computes(activity) || activity == Activity::data || activity == Activity::other ||
         activity == Activity::saving;
}

// Returns whether a waiting rank at `mine` waits for `other`: `other` is in an earlier step, or in
// the same step before its average.
bool is_awaited(const TrackSample& other, const TrackSample& mine) {
  if (waits(other.activity) || other.activity == Activity::unknown) return false;
  if (mine.activity == Activity::finished || other.step < mine.step) return true;
  return other.step == mine.step && other.activity != Activity::optimizer;
}

IdleCause own_cause(Activity activity) {
  switch (activity) {
    case Activity::data:
      return IdleCause::data;
    case Activity::saving:
      return IdleCause::save;
    case Activity::evaluating:
      return IdleCause::evaluation;
    case Activity::epoch:
      return IdleCause::epoch_boundary;
    default:
      return IdleCause::unexplained;
  }
}

// Returns the median distance of neighbouring samples; 0 for fewer than two.
double spacing_of(const HostTrack& track) {
  std::vector<double> distances;
  for (std::size_t i = 1; i < track.samples.size(); ++i) {
    const double distance = track.samples[i].seconds - track.samples[i - 1].seconds;
    if (distance > 0) distances.push_back(distance);
  }
  if (distances.empty()) return 0;
  const auto middle = distances.begin() + static_cast<std::ptrdiff_t>(distances.size() / 2);
  std::ranges::nth_element(distances, middle);
  return *middle;
}

// A rank's activity between two moments.
struct ActivityStretch {
  Activity activity = Activity::unknown;
  double begin = 0;
  double end = 0;

  double seconds() const { return end - begin; }
  double busy_seconds() const { return waits(activity) || computes(activity) ? seconds() : 0; }
};

// Steps through the samples of one rank and books the time before each.
class RankBooks {
 public:
  explicit RankBooks(const HostTrack& track) : track_(track) {
    out_.rank = track.rank;
    if (!track.starts.empty()) out_.node = track.starts.front().node;
  }

  const HostTrack& track() const { return track_; }
  const TrackSample& sample() const { return track_.samples[at_]; }
  bool is_done() const { return at_ == track_.samples.size(); }

  // Books the next sample, on `waiting` if the rank waited.
  void take(const Blame& waiting) {
    const TrackSample& now = sample();
    if (next_start_ < track_.starts.size() && track_.starts[next_start_].first == at_) {
      begin(track_.starts[next_start_++], now);
    } else if (at_ > 0) {
      const TrackSample& before = track_.samples[at_ - 1];
      if (now.seconds > before.seconds) judge(before, now, waiting);
      has_begun_ = has_begun_ || is_step_begun(now.activity) || now.step != first_step_;
    }
    before_ = waiting;
    ++at_;
  }

  // Returns the sample nearest to the moment among the neighbours of the next one; null if none is
  // near.
  const TrackSample* near(double moment, double most) const {
    const TrackSample* best = nullptr;
    for (std::size_t i = at_ > 0 ? at_ - 1 : 0; i < std::min(at_ + 2, track_.samples.size()); ++i) {
      const TrackSample& each = track_.samples[i];
      const double distance = std::fabs(each.seconds - moment);
      if (distance <= most && (!best || distance < std::fabs(best->seconds - moment))) best = &each;
    }
    return best;
  }

  RankIdle finish() { return std::move(out_); }

 private:
  void begin(const HostTrackStart& start, const TrackSample& now) {
    has_begun_ = is_step_begun(now.activity);
    first_step_ = now.step;
    const double seconds = now.seconds - start.started_seconds;
    if (!(seconds > 0)) return;
    out_.watched_seconds += seconds;
    const double idle = std::max(0.0, seconds - now.cpu_seconds);
    if (idle > 0) book(start.started_seconds, start.started_seconds + idle, {IdleCause::startup});
  }

  // Splits the time into two stretches: the old activity and the new one. CPU time counts first for
  // the stretch that computes or polls.
  void judge(const TrackSample& before, const TrackSample& now, const Blame& waiting) {
    out_.watched_seconds += now.seconds - before.seconds;
    const double change = std::clamp(now.since, before.seconds, now.seconds);
    const ActivityStretch first{before.activity, before.seconds, change};
    const ActivityStretch second{now.activity, change, now.seconds};
    const double cpu = now.cpu_seconds - before.cpu_seconds;
    judge(first, cpu - second.busy_seconds(), before_);
    judge(second, cpu - first.busy_seconds(), waiting);
  }

  void judge(const ActivityStretch& stretch, double cpu_seconds, const Blame& waiting) {
    if (!(stretch.seconds() > 0)) return;
    if (computes(stretch.activity)) return;
    const bool is_busy = cpu_seconds >= kIdleCores * stretch.seconds();
    const double used = is_busy && !waits(stretch.activity) ? cpu_seconds : 0;
    if (used >= stretch.seconds()) return;
    Blame blame{has_begun_ ? own_cause(stretch.activity) : IdleCause::startup};
    if (has_begun_ && waits(stretch.activity)) blame = waiting;
    book(stretch.begin, stretch.end - used, blame);
  }

  void book(double begin, double end, const Blame& blame) {
    out_.seconds[static_cast<std::size_t>(blame.cause)] += end - begin;
    for (const std::int32_t rank : blame.ranks)
      out_.waited_for[rank] += (end - begin) / static_cast<double>(blame.ranks.size());
    const std::int32_t whom = blame.ranks.size() == 1 ? blame.ranks.front() : -1;
    if (!out_.spans.empty()) {
      IdleSpan& last = out_.spans.back();
      if (last.cause == blame.cause && last.waits_for == whom && last.end_seconds == begin) {
        last.end_seconds = end;
        return;
      }
    }
    out_.spans.push_back({begin, end, blame.cause, whom});
  }

  const HostTrack& track_;
  RankIdle out_;
  std::size_t at_ = 0;
  std::size_t next_start_ = 0;
  std::int64_t first_step_ = 0;  // the process's first step
  bool has_begun_ = false;       // the process has begun its first step
  Blame before_;                 // blame for the last sample, if the rank waited
};

// Steps through the samples of all ranks in the order of their moments.
class Moments {
 public:
  explicit Moments(const std::vector<HostTrack>& tracks) {
    for (const HostTrack& track : tracks) {
      books_.emplace_back(track);
      spacing_ = std::max(spacing_, spacing_of(track));
    }
  }

  std::vector<RankIdle> go() {
    while (true) {
      double moment = std::numeric_limits<double>::infinity();
      for (const RankBooks& each : books_) {
        if (!each.is_done()) moment = std::min(moment, each.sample().seconds);
      }
      if (!std::isfinite(moment)) break;
      take_until(moment + spacing_ / 2);
    }
    std::vector<RankIdle> out;
    for (RankBooks& each : books_) out.push_back(each.finish());
    return out;
  }

 private:
  // Blames first and advances afterwards, so that all ranks are compared at the same moment.
  void take_until(double moment) {
    std::vector<std::size_t> due;
    for (std::size_t r = 0; r < books_.size(); ++r) {
      if (!books_[r].is_done() && books_[r].sample().seconds <= moment) due.push_back(r);
    }
    std::vector<Blame> blames;
    for (const std::size_t r : due) {
      const TrackSample& mine = books_[r].sample();
      blames.push_back(waits(mine.activity) ? blame_of(r, mine) : Blame{});
    }
    for (std::size_t i = 0; i < due.size(); ++i) books_[due[i]].take(blames[i]);
  }

  Blame blame_of(std::size_t rank, const TrackSample& mine) const {
    Blame out{IdleCause::averaging};
    std::optional<IdleCause> common;  // common to the awaited ranks' activities
    for (std::size_t r = 0; r < books_.size(); ++r) {
      if (r == rank) continue;
      const TrackSample* other = books_[r].near(mine.seconds, kTogether * spacing_);
      if (other == nullptr || !is_awaited(*other, mine)) continue;
      const IdleCause cause = own_cause(other->activity);
      common = common.value_or(cause) == cause ? cause : IdleCause::unexplained;
      out.ranks.push_back(books_[r].track().rank);
    }
    if (!common) return out;
    const bool is_told = *common == IdleCause::save || *common == IdleCause::evaluation ||
                         *common == IdleCause::epoch_boundary;
    if (is_told) return {*common};
    out.cause = IdleCause::waiting_for_rank;
    return out;
  }

  std::vector<RankBooks> books_;
  double spacing_ = 0;
};

}  // namespace

std::string_view to_string(IdleCause cause) {
  constexpr std::array<std::string_view, kIdleCauses> kNames = {
      "startup", "epoch boundary",     "save",       "evaluation", "averaging",
      "data",    "waiting for a rank", "unexplained"};
  return kNames[static_cast<std::size_t>(cause)];
}

std::string_view key_of(IdleCause cause) {
  constexpr std::array<std::string_view, kIdleCauses> kKeys = {
      "startup", "epoch_boundary",   "save",       "evaluation", "averaging",
      "data",    "waiting_for_rank", "unexplained"};
  return kKeys[static_cast<std::size_t>(cause)];
}

std::vector<IdleWait> IdleTime::longest_waits() const {
  std::vector<IdleWait> out;
  for (const auto& [rank, each] : waited_for) out.push_back({rank, each});
  std::ranges::stable_sort(out, std::greater<>(), &IdleWait::seconds);
  return out;
}

IdleTime idle_time_of(const std::vector<HostTrack>& tracks) {
  IdleTime out;
  out.ranks = Moments(tracks).go();
  const auto count = static_cast<double>(std::max<std::size_t>(1, out.ranks.size()));
  for (const RankIdle& rank : out.ranks) {
    out.watched_seconds += rank.watched_seconds / count;
    for (std::size_t c = 0; c < kIdleCauses; ++c) out.seconds[c] += rank.seconds[c] / count;
    for (const auto& [whom, seconds] : rank.waited_for) out.waited_for[whom] += seconds / count;
  }
  return out;
}

}  // namespace cox::diagnosis
