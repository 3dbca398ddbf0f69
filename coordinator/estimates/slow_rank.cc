#include "coordinator/estimates/slow_rank.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "coordinator/estimates/bounds.h"
#include "coordinator/estimates/portable_math.h"

namespace cox {
namespace {

constexpr double kRatioRounds = 32;  // behind the mean of a rank's slowness
constexpr double kSpellRounds = 7;   // a shorter slowness is a pause
constexpr double kMostRounds = 4096;
constexpr double kSchedulerSeconds = 0.05;
constexpr double kShortRoundMargin = 3;  // largest extra factor over pauses with short rounds
constexpr double kShortSpells = 4;       // times the required rounds: longest short spell
constexpr double kMemory = 4096;         // rounds
constexpr double kMostlySlow = 0.6;      // least ratio of slow rounds in a spell

constexpr std::array<std::string_view, 3> kStateNames = {"suspected", "confirmed", "recovered"};
constexpr std::array<std::string_view, 2> kCourseNames = {"transient", "persistent"};
constexpr std::array<std::string_view, 3> kReferenceNames = {"the other ranks", "its own past",
                                                             "the other rank"};

void put_interval(SlowRank& entry, double mean, double variance) {
  const double error = k95 * std::sqrt(variance / std::max(entry.rounds, 1.0));
  entry.slowdown_ratio = bounded_exp(mean);
  entry.slowdown_low = bounded_exp(mean - error);
  entry.slowdown_high = bounded_exp(mean + error);
}

}  // namespace

std::string_view to_string(SlowState state) {
  return kStateNames[static_cast<std::size_t>(state)];
}

std::string_view to_string(SlowCourse course) {
  return kCourseNames[static_cast<std::size_t>(course)];
}

std::string_view to_string(ComparedWith reference) {
  return kReferenceNames[static_cast<std::size_t>(reference)];
}

bool SlowRank::is_sane() const {
  const double ratios[] = {slowdown_ratio, slowdown_low, slowdown_high};
  const double amounts[] = {rounds, recovery, surely_slow};
  const RoundId marks[] = {since, suspected_at, phase_since, until};
  return rank.value() >= 0 && phase_index < kOwnPhases.size() && is_bounded(rarity) &&
         is_bounded(slow_balance) && std::ranges::all_of(ratios, is_ratio) &&
         std::ranges::all_of(amounts, is_amount) &&
         std::ranges::all_of(marks, [](RoundId round) { return round.value() <= kLastRound; });
}

bool Spells::is_sane() const {
  return is_amount(longest) && is_amount(count) && is_amount(round_seconds);
}

double Spells::least_rounds(const StragglerConfig& settings) const {
  const double seconds = std::max(round_seconds, 1e-9);
  const double short_by = std::max(kSchedulerSeconds / seconds, 1.0);
  const double rounds = std::max(kSpellRounds, std::min(kSpellRounds * short_by * short_by,
                                                        settings.persistent_seconds / seconds));
  const double margin = (2 + portable_log(1 + count)) *
                        std::clamp(2 * kSchedulerSeconds / seconds, 1.0, kShortRoundMargin);
  return std::min(std::max(rounds, margin * longest), kMostRounds);
}

// One long round does not make long rounds: the running median moves slowly.
void Spells::pass_round(double seconds) {
  constexpr double kMove = 1.02;
  longest *= 1 - 1 / kMemory;
  count *= 1 - 1 / kMemory;
  const double seen = std::max(seconds, 1e-9);
  const bool is_near = std::max(round_seconds / seen, seen / std::max(round_seconds, 1e-9)) < kMove;
  if (round_seconds == 0 || is_near) {
    round_seconds = seen;
  } else {
    round_seconds *= seen > round_seconds ? kMove : 1 / kMove;
  }
}

void Spells::learn(const SlowRank& recovered, double wanted) {
  const auto since = static_cast<double>(recovered.since.value());
  const double rounds = static_cast<double>(recovered.until.value()) - since + 1;
  if (rounds > kShortSpells * wanted) return;
  count = std::min(count + 1, kMostRounds);
  longest = std::max(longest, rounds);
}

RoundId round_id(double number) {
  return RoundId(
      static_cast<std::uint64_t>(std::clamp(number, 0.0, static_cast<double>(kLastRound))));
}

// A sum at its threshold proves only a minimum number of slow rounds. If each round stands out from
// noise, the slowness is that many rounds old. If only all rounds together stand out, the slowness
// began when the sum left 0.
void begin_evidence(SlowRank& entry, const ReachedTest& reached, double mean, double variance) {
  const CusumTest& test = reached.test;
  const auto now = static_cast<double>(entry.suspected_at.value());
  const double age = now - static_cast<double>(entry.since.value()) + 1;
  const double at_least = std::min(age, std::ceil(reached.sum / (kMaxScore - test.k)));
  const bool stands_out = mean > kMaxScore * test.sigma;
  entry.surely_slow = reached.slow_rounds.value_or(stands_out ? at_least : age);
  if (stands_out) entry.since = round_id(now - at_least + 1);
  entry.rounds = std::clamp(entry.rounds, 1.0, kRatioRounds);
  entry.rarity = cusum_rarity(reached.sum, test.k);
  put_interval(entry, mean, variance);
}

void add_recovery(SlowRank& entry, double score, double k) {
  entry.recovery = std::max(0.0, entry.recovery + k - std::clamp(score, -kMaxScore, kMaxScore));
}

void add_round(SlowRank& entry, const SpellRound& round, const SpellEvidence& evidence) {
  entry.rounds = std::min(entry.rounds + 1, kRatioRounds);
  const double before = portable_log(std::clamp(entry.slowdown_ratio, 1e-4, 1e4));
  put_interval(entry, before + (evidence.excess - before) / entry.rounds, evidence.variance);
  // A round of the control plane may cover several steps. Count rounds as they are observed; their
  // numbers do not tell how many there were.
  const bool is_slow = evidence.excess > round.shift / 2;
  entry.slow_balance += is_slow ? 1 - kMostlySlow : -kMostlySlow;
  const bool is_suspected = entry.state == SlowState::suspected;
  const bool is_back = is_suspected && entry.recovery > 0 && evidence.level < round.shift / 4;
  if (entry.recovery >= evidence.threshold || is_back) {
    entry.short_spells += is_suspected && entry.short_spells < ~0u;
    entry.state = SlowState::recovered;
    entry.recovery = 0;
  } else if (entry.recovery == 0) {
    entry.until = round_id(round.number);
  }
}

void confirm(SlowRank& entry, const SpellRound& round, double level) {
  if (entry.state != SlowState::suspected || entry.recovery > 0) return;
  const double watched = round.number - static_cast<double>(entry.suspected_at.value());
  if (entry.surely_slow + watched < round.least_rounds || level < round.shift / 2) return;
  if (entry.slow_balance < 0) return;
  entry.state = SlowState::confirmed;
  entry.course = SlowCourse::persistent;
}

}  // namespace cox
