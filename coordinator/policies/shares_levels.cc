#include "coordinator/policies/shares_levels.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "coordinator/core/selection.h"

namespace cox {
namespace {

constexpr double kLevelRounds = 64;  // behind a level at most
constexpr double kNoiseRounds = 64;  // behind a variance
constexpr double kCut = 9;           // squares count as those of 3 deviations at most
constexpr double kNoisy = 2;         // a rank with that many times the variance has its own
constexpr double kSmallestVariance = 1e-8;
constexpr double kFalseAlarms = 1e-8;  // per rank, report and direction
constexpr double kSureOfChange = 4;    // newest reports at an alarm that are of the change

// Learns a round's noise from how far each time is from the one before.
class Noise {
 public:
  explicit Noise(SharesNotes& notes) : notes_(notes) {}

  void learn(const std::vector<RankTime>& times) {
    look_at(times);
    if (squares_.empty()) return;
    double& pooled = notes_.pooled_variance();
    double& samples = notes_.pooled_samples();
    if (samples == 0) pooled = 1.4826 * 1.4826 * median_of(squares_);
    pooled = std::max(pooled, kSmallestVariance);
    double total = 0;
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      total += std::min(squares_[i], kCut * pooled);
      double& own = notes_.variance()[ranks_[i]];
      if (own == 0) own = pooled;
      const double weight = std::max(1 / notes_.seen()[ranks_[i]], 1 / kNoiseRounds);
      own += weight * (std::min(squares_[i], kCut * std::max(own, pooled)) - own);
    }
    const auto count = static_cast<double>(ranks_.size());
    samples = std::min(samples + count, kNoiseRounds * count);
    pooled += std::max(count / samples, 1 / kNoiseRounds) * (total / count - pooled);
    pooled = std::max(pooled, kSmallestVariance);
  }

 private:
  void look_at(const std::vector<RankTime>& times) {
    ranks_.reserve(times.size());
    squares_.reserve(times.size());
    for (const RankTime& time : times) {
      const double seen = notes_.seen()[time.rank];
      if (seen < 1) continue;
      const auto newest = static_cast<std::size_t>(seen) + SharesNotes::kRecent - 1;
      const auto recent = notes_.recent(time.rank);
      ranks_.push_back(time.rank);
      squares_.push_back(time.per_sample / recent[newest % SharesNotes::kRecent]);
    }
    for (double& square : squares_) {  // still ratios
      const double step = log_ratio(square);
      square = step * step / 2;
    }
  }

  SharesNotes& notes_;
  std::vector<std::size_t> ranks_;
  std::vector<double> squares_;
};

double pooled_deviation(SharesNotes& notes) {
  const double samples = std::max(notes.pooled_samples(), 1.0);
  return std::sqrt(notes.pooled_variance() * (1 + 2 * std::sqrt(2 / samples)));
}

double own_or_pooled(double own_variance, double pooled) {
  return own_variance > kNoisy * pooled * pooled ? std::sqrt(own_variance) : pooled;
}

// One step of a CUSUM; true when it alarms.
bool alarms(const CusumTest& test, double score, double& sum, double& since) {
  sum = cusum_step(sum, score, test.k);
  since = sum > 0 ? since + 1 : 0;
  return sum >= test.h;
}

// How far each time is from the level of its rank, over what such a difference may be before noise;
// 0 where there is no level. In a loop of its own, which takes several ranks at once.
std::vector<double> scores_of(SharesNotes& notes, const std::vector<RankTime>& times) {
  std::vector<double> ratios;
  std::vector<double> spreads;
  ratios.reserve(times.size());
  spreads.reserve(times.size());
  for (const RankTime& time : times) {
    const double count = notes.count()[time.rank];
    ratios.push_back(count > 0 ? time.per_sample / notes.level()[time.rank] : 1);
    spreads.push_back(count > 0 ? 1 + 1 / count : 1);
  }
  std::vector<double> scores(times.size());
  for (std::size_t i = 0; i < scores.size(); ++i) {
    scores[i] = log_ratio(ratios[i]) / std::sqrt(spreads[i]);
  }
  return scores;
}

class Levels {
 public:
  Levels(SharesNotes& notes, double smallest_gain)
      : notes_(notes),
        shift_(2 * portable_log(1 + smallest_gain)),
        deviation_(pooled_deviation(notes)),
        test_(make_cusum_test(shift_, deviation_, kFalseAlarms)) {}

  void see(std::size_t rank, double time, double score) {
    double& level = notes_.level()[rank];
    double& count = notes_.count()[rank];
    double& seen = notes_.seen()[rank];
    notes_.recent(rank)[static_cast<std::size_t>(seen) % SharesNotes::kRecent] = time;
    seen += 1;
    if (count >= 2 && has_changed(rank, score)) return;
    count = std::min({count + 1, seen, kLevelRounds});  // of a restored level nothing is recent
    if (count <= static_cast<double>(SharesNotes::kRecent)) {
      level = trimmed_mean(notes_, rank, static_cast<std::size_t>(count));
    } else {
      const double most = kMaxScore * own_deviation(rank);
      level *= 1 + std::clamp(score, -most, most) / count;
    }
  }

 private:
  double own_deviation(std::size_t rank) {
    return own_or_pooled(notes_.variance()[rank], deviation_);
  }

  bool has_changed(std::size_t rank, double score) {
    const double own = own_deviation(rank);
    const CusumTest test = own > deviation_ ? make_cusum_test(shift_, own, kFalseAlarms) : test_;
    const double z = score / test.sigma;
    const bool slower = alarms(test, z, notes_.up()[rank], notes_.up_since()[rank]);
    const bool faster = alarms(test, -z, notes_.down()[rank], notes_.down_since()[rank]);
    if (!slower && !faster) {
      const double sum = std::max(notes_.up()[rank], notes_.down()[rank]);
      notes_.suspects() += sum > test.h / 2 ? 1 : 0;
      return false;
    }
    jump(rank, slower ? notes_.up_since()[rank] : notes_.down_since()[rank]);
    return true;
  }

  // The older reports of a change may be from before it; the newest ones are not.
  void jump(std::size_t rank, double since) {
    const double seen = std::min(notes_.seen()[rank], static_cast<double>(SharesNotes::kRecent));
    std::size_t count = static_cast<std::size_t>(std::min(kSureOfChange, seen));
    double level = trimmed_mean(notes_, rank, count);
    const auto more = static_cast<std::size_t>(std::min(std::max(since - 2, 1.0), seen));
    const double wider = trimmed_mean(notes_, rank, more);
    if (more > count && std::fabs(log_ratio(wider / level)) < own_deviation(rank)) {
      count = more;
      level = wider;
    }
    notes_.count()[rank] = static_cast<double>(count);
    notes_.level()[rank] = level;
    notes_.up()[rank] = notes_.up_since()[rank] = 0;
    notes_.down()[rank] = notes_.down_since()[rank] = 0;
    notes_.has_news() = 1;
  }

  SharesNotes& notes_;
  const double shift_;
  const double deviation_;
  const CusumTest test_;
};

}  // namespace

void learn_levels(SharesNotes& notes, const std::vector<RankTime>& times, double smallest_gain) {
  Noise(notes).learn(times);
  const std::vector<double> scores = scores_of(notes, times);
  Levels levels(notes, smallest_gain);
  notes.suspects() = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    levels.see(times[i].rank, times[i].per_sample, scores[i]);
  }
}

double trimmed_mean(SharesNotes& notes, std::size_t rank, std::size_t count) {
  std::array<double, SharesNotes::kRecent> newest{};
  const auto seen = static_cast<std::size_t>(notes.seen()[rank]);
  for (std::size_t i = 0; i < count; ++i) {
    newest[i] = notes.recent(rank)[(seen + SharesNotes::kRecent - 1 - i) % SharesNotes::kRecent];
  }
  const auto end = newest.begin() + static_cast<std::ptrdiff_t>(count);
  std::sort(newest.begin(), end);
  const std::size_t cut = count > 2 ? 1 : 0;
  double sum = 0;
  for (std::size_t i = cut; i < count - cut; ++i) sum += newest[i];
  return sum / static_cast<double>(count - 2 * cut);
}

double time_deviation(SharesNotes& notes, std::size_t rank) {
  return own_or_pooled(notes.variance()[rank], pooled_deviation(notes));
}

double level_deviation(SharesNotes& notes, std::size_t rank) {
  return time_deviation(notes, rank) / std::sqrt(notes.count()[rank]);
}

}  // namespace cox
