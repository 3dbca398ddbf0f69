#include "coordinator/estimates/speeds.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "coordinator/core/columns.h"
#include "coordinator/core/hash.h"
#include "coordinator/core/selection.h"
#include "coordinator/estimates/bounds.h"
#include "coordinator/estimates/cusum.h"
#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

constexpr double kLevelRounds = 64;  // most reports behind a level
constexpr double kNoiseRounds = 64;  // behind a variance
constexpr double kNoisy = 2;         // times the pooled variance, above which a rank has its own
constexpr double kSmallestVariance = 1e-8;
constexpr double kFalseAlarms = 1e-8;       // per rank, report and direction
constexpr std::uint32_t kSureOfChange = 4;  // newest reports at an alarm, after the change
constexpr double kScaleRounds = 8;
constexpr std::uint32_t kFixedRounds = 8;   // after a change of shares, before the fit
constexpr std::uint32_t kLeastReports = 4;  // before and after that change
constexpr double kLeastMove = 0.1;          // of the samples, for a rank to count in the fit
constexpr double kLeastPart = 0.02;         // of the mean samples: the first number tried
constexpr double kStep = 1.15;              // factor to the next number
constexpr int kSteps = 44;                  // the last number is about nine times the mean
constexpr double kLargest = 1e18;
constexpr std::uint32_t kMostSeen = 1u << 30;  // a multiple of kRecentTimes

// Returns the mean of the rank's newest `count` times without the smallest and the largest.
// REQUIRES: 1 <= count <= kRecentTimes; the rank has as many times.
double trimmed_mean(const RankSpeed& rank, std::uint32_t count) {
  std::array<double, kRecentTimes> newest{};
  for (std::uint32_t i = 0; i < count; ++i) {
    newest[i] = rank.recent[(rank.seen + kRecentTimes - 1 - i) % kRecentTimes];
  }
  const auto end = newest.begin() + count;
  std::sort(newest.begin(), end);
  const std::uint32_t cut = count > 2 ? 1 : 0;
  double sum = 0;
  for (std::uint32_t i = cut; i < count - cut; ++i) sum += newest[i];
  return sum / (count - 2 * cut);
}

// ---- The counted reports of a round, column by column, with the earlier state of their ranks.
// RankSpeed is large, so loops over all ranks use these columns.

enum Column : std::size_t {
  kPerSample,     // present seconds; later divided by the common factor
  kFixedSeconds,  // of a step
  kLevel,         // of the rank; 0 = none
  kReports,       // behind the level
  kLastTime,      // 0 = none
  kSeen,
  kVariance,
  kScore,  // distance of the time from the level
  kColumns
};

struct Counted {
  std::vector<std::uint32_t> ranks;
  Columns<kColumns> columns;
  double together = 0;  // seconds of communication that all ranks share

  std::span<double> operator[](Column column) { return columns[column]; }
  std::span<const double> operator[](Column column) const { return columns[column]; }
};

double work_seconds(const Timings& timings, std::size_t i) {
  double seconds = 0;
  for (const Phase phase : {Phase::data, Phase::forward, Phase::backward, Phase::compute}) {
    seconds += timings.of(phase)[i];
  }
  return seconds;
}

void add_known(const RankSpeed& rank, std::size_t i, Counted& counted) {
  counted[kLevel][i] = rank.reports > 0 ? rank.level : 0;
  counted[kReports][i] = rank.reports;
  counted[kLastTime][i] = rank.seen > 0 ? rank.recent[(rank.seen - 1) % kRecentTimes] : 0;
  counted[kSeen][i] = rank.seen;
  counted[kVariance][i] = rank.variance;
}

Counted reports_that_count(Speeds& speeds, std::span<const RankSignal> reports,
                           const Timings& timings) {
  Counted counted;
  counted.ranks.resize(timings.ranks.size());
  counted.columns = Columns<kColumns>::unfilled(timings.ranks.size());
  const bool all_count =
      timings.watching == 0 &&
      timings.plan_applied_min >= std::max(speeds.shares_plan, speeds.actions_plan);
  const auto counts = [&](const RankSignal& report, RankId rank) {
    const auto r = static_cast<std::size_t>(rank.value());
    return !report.has(SignalFlag::watching) &&
           report.plan_applied >= std::max(speeds.shares_plan, speeds.ranks[r].actions_plan);
  };
  std::size_t count = 0;
  for (std::size_t i = 0; i < timings.ranks.size(); ++i) {
    const double samples = timings.samples[i];
    if (!(samples > 0) || !(all_count || counts(reports[timings.report[i]], timings.ranks[i])))
      continue;
    const double per_sample = work_seconds(timings, i) / (samples + speeds.fixed_samples);
    if (!(per_sample > 1e-15)) continue;
    const auto r = static_cast<std::uint32_t>(timings.ranks[i].value());
    RankSpeed& rank = speeds.ranks[r];
    if (rank.to_skip > 0) {
      --rank.to_skip;
      continue;
    }
    rank.samples = samples;
    const double communication = timings.of(Phase::communication)[i];
    counted.together = count == 0 ? communication : std::min(counted.together, communication);
    counted.ranks[count] = r;
    counted[kPerSample][count] = per_sample;
    counted[kFixedSeconds][count] = timings.of(Phase::optimizer)[i];
    add_known(rank, count, counted);
    ++count;
  }
  counted.ranks.resize(count);
  counted.columns.keep_rows(count);
  return counted;
}

// Returns the factor by which this round is slower for all ranks than the levels predict.
double common_factor(const Speeds& speeds, const Counted& counted) {
  std::vector<double> ratios;
  ratios.reserve(counted.ranks.size());
  for (std::size_t i = 0; i < counted.ranks.size(); ++i) {
    const double level = counted[kLevel][i];
    if (level > 0) ratios.push_back(counted[kPerSample][i] / level);
  }
  return ratios.empty() ? speeds.scale : std::clamp(median_of(ratios), 1e-6, 1e6);
}

// ---- Noise, learnt from the difference of successive times.

// Returns halved squares of log ratios, because each is the difference of two times. Values are
// arbitrary for ranks without an earlier time.
std::vector<double> squares_of(const Counted& counted) {
  std::vector<double> squares(counted.ranks.size());
  const std::span<const double> times = counted[kPerSample];
  const std::span<const double> last = counted[kLastTime];
  for (std::size_t i = 0; i < squares.size(); ++i) {
    const double step = log_ratio(times[i] / last[i]);
    squares[i] = step * step / 2;
  }
  return squares;
}

double median_of_known(std::span<const double> squares, std::span<const double> seen) {
  std::vector<double> known;
  for (std::size_t i = 0; i < squares.size(); ++i) {
    if (seen[i] > 0) known.push_back(squares[i]);
  }
  return median_of(known);
}

// Moves the column of variances, and the pool.
void learn_noise(Speeds& speeds, Counted& counted) {
  const std::span<const double> seen = counted[kSeen];
  const auto count =
      static_cast<double>(std::ranges::count_if(seen, [](double n) { return n > 0; }));
  if (count == 0) return;
  const std::vector<double> squares = squares_of(counted);
  double& pooled = speeds.pooled_variance;
  double& samples = speeds.pooled_samples;
  if (samples == 0) pooled = 1.4826 * 1.4826 * median_of_known(squares, seen);
  pooled = std::max(pooled, kSmallestVariance);
  const double before = pooled;
  const std::span<double> variance = counted[kVariance];
  double total = 0;
  for (std::size_t i = 0; i < squares.size(); ++i) {
    total += seen[i] > 0 ? std::min(squares[i], kSquareCut * before) : 0;
    const double own = variance[i] == 0 ? before : variance[i];
    const double cut = std::min(squares[i], kSquareCut * std::max(own, before));
    const double moved = own + std::max(1.0 / seen[i], 1 / kNoiseRounds) * (cut - own);
    variance[i] = seen[i] > 0 ? moved : variance[i];
  }
  samples = std::min(samples + count, kNoiseRounds * count);
  pooled += std::max(count / samples, 1 / kNoiseRounds) * (total / count - pooled);
  pooled = std::max(pooled, kSmallestVariance);
}

double pooled_deviation(const Speeds& speeds) {
  const double samples = std::max(speeds.pooled_samples, 1.0);
  return std::sqrt(speeds.pooled_variance * (1 + 2 * std::sqrt(2 / samples)));
}

double own_or_pooled(const RankSpeed& rank, double pooled) {
  return rank.variance > kNoisy * pooled * pooled ? std::sqrt(rank.variance) : pooled;
}

// ---- Levels.

// Sets each score to the distance of the time from the rank's level, divided by the factor that the
// level's own error adds. Sets 0 if there is no level.
void learn_scores(Counted& counted) {
  const std::span<const double> times = counted[kPerSample];
  const std::span<const double> levels = counted[kLevel];
  const std::span<const double> reports = counted[kReports];
  const std::span<double> scores = counted[kScore];
  for (std::size_t i = 0; i < scores.size(); ++i) {
    const double ratio = levels[i] > 0 ? times[i] / levels[i] : 1;
    const double spread = reports[i] > 0 ? 1 + 1.0 / reports[i] : 1;
    scores[i] = log_ratio(ratio) / std::sqrt(spread);
  }
}

struct ChangeTest {
  double shift = 0;
  double deviation = 0;  // pooled
  CusumTest test;        // of a rank with the pooled deviation
};

// Adds one step to a CUSUM. Returns whether the test alarms.
bool alarms(const CusumTest& test, double score, double& sum, std::uint32_t& since) {
  sum = cusum_step(sum, score, test.k);
  since = sum > 0 ? since + 1 : 0;
  return sum >= test.h;
}

enum class Verdict { unchanged, may_change, changed };

// Sets the level after a change. Older reports since the alarm's start may precede the change; the
// newest ones do not.
void jump(RankSpeed& rank, std::uint32_t since, double own_deviation) {
  const std::uint32_t seen = std::min<std::uint32_t>(rank.seen, kRecentTimes);
  rank.reports = std::min(kSureOfChange, seen);
  rank.level = trimmed_mean(rank, rank.reports);
  const std::uint32_t more = std::min(since > 3 ? since - 2 : 1, seen);
  if (more > rank.reports) {
    const double wider = trimmed_mean(rank, more);
    if (std::fabs(log_ratio(wider / rank.level)) < own_deviation) {
      rank.reports = more;
      rank.level = wider;
    }
  }
  rank.slower = rank.faster = 0;
  rank.slower_since = rank.faster_since = 0;
}

Verdict test_change(RankSpeed& rank, double score, const ChangeTest& change) {
  const double own = own_or_pooled(rank, change.deviation);
  const CusumTest test =
      own > change.deviation ? make_cusum_test(change.shift, own, kFalseAlarms) : change.test;
  const double z = score / test.sigma;
  const bool slower = alarms(test, z, rank.slower, rank.slower_since);
  const bool faster = alarms(test, -z, rank.faster, rank.faster_since);
  if (slower || faster) {
    jump(rank, slower ? rank.slower_since : rank.faster_since, own);
    return Verdict::changed;
  }
  const bool is_suspect = std::max(rank.slower, rank.faster) > test.h / 2;
  return is_suspect ? Verdict::may_change : Verdict::unchanged;
}

Verdict see(RankSpeed& rank, double time, double score, const ChangeTest& change) {
  rank.recent[rank.seen % kRecentTimes] = time;
  rank.seen = rank.seen < 2 * kMostSeen ? rank.seen + 1 : kMostSeen;
  Verdict verdict = Verdict::unchanged;
  if (rank.reports >= 2) verdict = test_change(rank, score, change);
  if (verdict == Verdict::changed) return verdict;
  // A restored level has no recent times.
  rank.reports = std::min({rank.reports + 1, rank.seen, static_cast<std::uint32_t>(kLevelRounds)});
  if (rank.reports <= kRecentTimes) {
    rank.level = trimmed_mean(rank, rank.reports);
  } else {
    const double most = kMaxScore * own_or_pooled(rank, change.deviation);
    rank.level *= 1 + std::clamp(score, -most, most) / rank.reports;
  }
  return verdict;
}

// Moves a mean that must follow a change of speed within a few reports.
void follow(double& mean, std::uint32_t reports, double seen) {
  mean += (seen - mean) / std::min<double>(reports, 2);
}

// `common`: the factor by which the round is slower for all ranks.
void learn_levels(Speeds& speeds, Counted& counted, double common, double smallest_change) {
  for (double& time : counted[kPerSample]) time /= common;
  learn_noise(speeds, counted);
  learn_scores(counted);
  ChangeTest change;
  change.shift = 2 * portable_log(1 + smallest_change);
  change.deviation = pooled_deviation(speeds);
  change.test = make_cusum_test(change.shift, change.deviation, kFalseAlarms);
  speeds.changing = 0;
  for (std::size_t i = 0; i < counted.ranks.size(); ++i) {
    RankSpeed& rank = speeds.ranks[counted.ranks[i]];
    rank.variance = counted[kVariance][i];
    const Verdict verdict = see(rank, counted[kPerSample][i], counted[kScore][i], change);
    speeds.changing += verdict == Verdict::may_change;
    speeds.changed_since_shares = speeds.changed_since_shares || verdict == Verdict::changed;
    follow(rank.fixed_seconds, rank.seen, counted[kFixedSeconds][i] / common);
  }
}

// ---- The cost of a step besides its samples.

double work_of(const Speeds& speeds, double level, double samples) {
  return level * speeds.scale * (samples + speeds.fixed_samples);
}

std::uint32_t reports_since(const RankSpeed& rank) {
  const std::uint32_t since = rank.seen > rank.seen_before ? rank.seen - rank.seen_before : 0;
  return std::min<std::uint32_t>(since, kRecentTimes);
}

// Call when shares change, before anything is learnt under the new ones.
void remember_work(Speeds& speeds) {
  for (RankSpeed& rank : speeds.ranks) {
    const bool known = rank.reports >= kLeastReports && rank.samples > 0;
    rank.work_before = known ? work_of(speeds, rank.level, rank.samples) : 0;
    rank.samples_before = rank.samples;
    rank.seen_before = rank.seen;
  }
}

// One rank before and after a change of its samples.
struct Move {
  double before = 0;  // samples of a step
  double after = 0;
  double work_ratio = 1;  // seconds after over seconds before
};

std::vector<Move> moves_of(const Speeds& speeds) {
  std::vector<Move> moves;
  for (const RankSpeed& rank : speeds.ranks) {
    const bool known = rank.work_before > 0 && reports_since(rank) >= kLeastReports;
    if (!known || std::fabs(rank.samples / rank.samples_before - 1) < kLeastMove) continue;
    const double level = trimmed_mean(rank, reports_since(rank));
    const double work = work_of(speeds, level, rank.samples);
    moves.push_back({rank.samples_before, rank.samples, work / rank.work_before});
  }
  return moves;
}

double mean_error(const std::vector<Move>& moves, double fixed_samples) {
  double sum = 0;
  for (const Move& move : moves) {
    const double expected = (move.after + fixed_samples) / (move.before + fixed_samples);
    sum += std::fabs(log_ratio(move.work_ratio / expected));
  }
  return sum / static_cast<double>(moves.size());
}

struct Fit {
  double fixed_samples = 0;
  double error = 0;
};

Fit best_fit(const std::vector<Move>& moves) {
  double mean = 0;
  for (const Move& move : moves) mean += move.before / static_cast<double>(moves.size());
  Fit best{0, mean_error(moves, 0)};
  double fixed_samples = kLeastPart * mean;
  for (int i = 0; i < kSteps; ++i, fixed_samples *= kStep) {
    const double error = mean_error(moves, fixed_samples);
    if (error < best.error) best = {fixed_samples, error};
  }
  return best;
}

void put_on_new_terms(Speeds& speeds, double fixed_samples) {
  for (RankSpeed& rank : speeds.ranks) {
    if (rank.reports == 0 || rank.samples == 0) continue;
    const double ratio = (rank.samples + speeds.fixed_samples) / (rank.samples + fixed_samples);
    rank.level *= ratio;
    for (double& time : rank.recent) time *= ratio;
    rank.slower = rank.faster = 0;
    rank.slower_since = rank.faster_since = 0;
    if (reports_since(rank) < kLeastReports) continue;
    rank.reports = reports_since(rank);
    rank.level = trimmed_mean(rank, rank.reports);
  }
  speeds.fixed_samples = fixed_samples;
  speeds.changed_since_shares = true;
}

// Fits the fixed samples some rounds after a change of shares. Takes a new number on two
// conditions. The old one must explain the change badly: its mean error over ranks exceeds
// `least_error` and noise. The new one must explain the change at least twice as well. Then
// converts the levels.
void learn_fixed_samples(Speeds& speeds, double least_error) {
  const std::vector<Move> moves = moves_of(speeds);
  if (moves.size() < 2) return;
  const double error = mean_error(moves, speeds.fixed_samples);
  const double noise = std::sqrt(2 * speeds.pooled_variance / kLeastReports);
  if (error < std::max(least_error, noise)) return;
  const Fit fit = best_fit(moves);
  if (fit.error <= error / 2) put_on_new_terms(speeds, fit.fixed_samples);
}

// ---- Rounds.

// New shares start a new count of rounds; a new start of the job counts plans from 0 again.
void note_shares(Speeds& speeds, const Plan& plan) {
  speeds.shares_plan = std::min(speeds.shares_plan, plan.id.number);
  if (speeds.shares == plan.shares) return;
  speeds.shares = plan.shares;
  remember_work(speeds);
  speeds.shares_plan = plan.id.number;
  speeds.rounds_of_shares = 0;
  speeds.changed_since_shares = false;
  for (RankSpeed& rank : speeds.ranks) rank.to_skip = 1;
}

void begin_anew(RankSpeed& rank) {
  const std::uint64_t actions = rank.actions;
  const std::uint64_t actions_plan = rank.actions_plan;
  const double variance = rank.variance;
  rank = RankSpeed();
  rank.actions = actions;
  rank.actions_plan = actions_plan;
  rank.variance = variance;
}

// Restarts the levels of ranks whose blocks have other actions than in the plan before.
void note_actions(Speeds& speeds, const Plan& plan) {
  if (speeds.plan == plan.id.number && speeds.knows_actions) return;
  speeds.plan = plan.id.number;
  const bool is_first = !std::exchange(speeds.knows_actions, true);
  std::vector<std::uint64_t> hashes;
  for (const ActionProfile& profile : plan.profiles) {
    Fnv1a64 hash;
    for (const MemoryAction action : profile) hash.add(static_cast<std::uint64_t>(action));
    hashes.push_back(hash.value());
  }
  speeds.actions_plan = 0;
  for (std::size_t r = 0; r < speeds.ranks.size(); ++r) {
    RankSpeed& rank = speeds.ranks[r];
    const ProfileId profile = profile_of(plan, RankId(static_cast<std::int32_t>(r)));
    const std::uint64_t actions = profile.value() < hashes.size() ? hashes[profile.value()] : 0;
    rank.actions_plan = std::min(rank.actions_plan, plan.id.number);
    if (actions != std::exchange(rank.actions, actions) && !is_first) {
      rank.actions_plan = plan.id.number;
      if (rank.seen > 0) begin_anew(rank);
    }
    speeds.actions_plan = std::max(speeds.actions_plan, rank.actions_plan);
  }
}

bool is_sane_rank(const RankSpeed& rank) {
  const auto in_use = std::span(rank.recent).first(std::min<std::size_t>(rank.seen, kRecentTimes));
  const auto is_time = [](double time) { return time > 0 && time <= kLargest; };
  const auto is_amount = [](double amount) { return amount >= 0 && amount <= kLargest; };
  const double amounts[] = {rank.variance, rank.slower,      rank.faster,
                            rank.samples,  rank.work_before, rank.samples_before};
  return (rank.reports == 0 || is_time(rank.level)) && rank.seen <= 2 * kMostSeen &&
         rank.to_skip <= 1 && std::fabs(rank.fixed_seconds) <= kLargest &&
         std::ranges::all_of(in_use, is_time) && std::ranges::all_of(amounts, is_amount) &&
         std::ranges::all_of(rank.recent, is_amount);
}

}  // namespace

Speeds fresh_speeds(std::size_t ranks) {
  Speeds speeds;
  speeds.ranks.resize(ranks);
  return speeds;
}

bool Speeds::is_sane() const {
  const auto is_amount = [](double amount) { return amount >= 0 && amount <= kLargest; };
  return scale > 0 && is_amount(scale) && is_amount(shared_seconds) && is_amount(fixed_samples) &&
         is_amount(pooled_variance) && is_amount(pooled_samples) &&
         std::ranges::all_of(ranks, is_sane_rank);
}

Speeds after_restart(Speeds speeds) {
  speeds.shares_plan = speeds.actions_plan = 0;
  speeds.rounds_of_shares = 0;
  speeds.changed_since_shares = true;
  for (RankSpeed& rank : speeds.ranks) {
    rank.actions_plan = 0;
    rank.seen = rank.seen_before = 0;
    rank.slower = rank.faster = rank.work_before = 0;
    rank.slower_since = rank.faster_since = 0;
    rank.reports = std::min(rank.reports, 1u);
    rank.to_skip = 1;
  }
  return speeds;
}

Speeds learn_speeds(Speeds before, std::span<const RankSignal> reports, const Timings& timings,
                    const Plan& plan, double smallest_change) {
  Speeds now = std::move(before);
  note_shares(now, plan);
  note_actions(now, plan);
  Counted counted = reports_that_count(now, reports, timings);
  if (counted.ranks.empty()) return now;
  const double common = common_factor(now, counted);
  learn_levels(now, counted, common, smallest_change);
  now.rounds_of_shares = std::min(now.rounds_of_shares + 1, kMostSeen);
  const double rounds = std::min<double>(now.rounds_of_shares, kScaleRounds);
  now.scale += (common - now.scale) / rounds;
  now.shared_seconds += (counted.together - now.shared_seconds) / rounds;
  if (now.rounds_of_shares == kFixedRounds) learn_fixed_samples(now, smallest_change);
  return now;
}

double seconds_per_sample(const Speeds& speeds, std::size_t rank) {
  return speeds.ranks[rank].level * speeds.scale;
}

double level_deviation(const Speeds& speeds, std::size_t rank) {
  const RankSpeed& own = speeds.ranks[rank];
  return own_or_pooled(own, pooled_deviation(speeds)) / std::sqrt(own.reports);
}

}  // namespace cox
