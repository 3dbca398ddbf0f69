#include "tests/estimates/published_rules.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <limits>

#include "coordinator/core/selection.h"

namespace cox::test {
namespace {

constexpr std::array<Phase, 5> kSections = {Phase::data, Phase::forward, Phase::backward,
                                            Phase::compute, Phase::optimizer};

// Returns the phase furthest above the median rank, for rules that name no phase.
Phase furthest_phase(const Timings& timings, std::size_t i) {
  Phase furthest = kSections[0];
  double most = -std::numeric_limits<double>::infinity();
  for (const Phase phase : kSections) {
    const double above = timings.of(phase)[i] - median_of(timings.of(phase));
    if (above > most) most = above, furthest = phase;
  }
  return furthest;
}

class RelativeScore final : public Rule {
 public:
  std::vector<NamedRank> see(const StepSignals&, const StepSummary&,
                             const Timings& timings) override {
    window_.push_back(timings);
    if (window_.size() < kWindow) return named_;
    named_.clear();
    for (const Phase section : kSections) judge(section);
    window_.clear();
    return named_;
  }

 private:
  static constexpr std::size_t kWindow = 16;

  void judge(Phase section) {
    const std::size_t ranks = window_[0].ranks.size();
    std::vector<double> medians;
    for (std::size_t i = 0; i < ranks; ++i) {
      std::vector<double> seconds;
      for (const Timings& timings : window_) seconds.push_back(timings.of(section)[i]);
      medians.push_back(median_of(seconds));
    }
    const double least = *std::ranges::min_element(medians);
    if (least < 0.01 * median_of(window_[0].own)) return;
    for (std::size_t i = 0; i < ranks; ++i) {
      const RankId rank = window_[0].ranks[i];
      const bool is_named = std::ranges::find(named_, rank, &NamedRank::rank) != named_.end();
      if (least / medians[i] < 0.75 && !is_named) named_.push_back({rank, section});
    }
  }

  std::vector<Timings> window_;
  std::vector<NamedRank> named_;
};

class CountTest final : public Rule {
 public:
  std::vector<NamedRank> see(const StepSignals&, const StepSummary&,
                             const Timings& timings) override {
    const std::size_t ranks = timings.ranks.size();
    counts_.resize(ranks);
    ratios_.resize(ranks);
    ++steps_;
    const double median = median_of(timings.own);
    const auto slowest = std::ranges::max_element(timings.own) - timings.own.begin();
    counts_[static_cast<std::size_t>(slowest)] += 1;
    for (std::size_t i = 0; i < ranks; ++i) ratios_[i].push_back(timings.own[i] / median);
    if (steps_ % 8 == 0) judge(timings);
    return named_;
  }

 private:
  void judge(const Timings& timings) {
    named_.clear();
    const auto steps = static_cast<double>(steps_);
    const double chance = 1 / static_cast<double>(counts_.size());
    const double deviation = std::sqrt(steps * chance * (1 - chance));
    std::vector<std::size_t> often;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if ((counts_[i] - steps * chance) / deviation >= 3) often.push_back(i);
    }
    if (often.size() != 1 || median_of(ratios_[often[0]]) - 1 < 0.05) return;
    named_.push_back({timings.ranks[often[0]], furthest_phase(timings, often[0])});
  }

  std::size_t steps_ = 0;
  std::vector<double> counts_;
  std::vector<std::vector<double>> ratios_;
  std::vector<NamedRank> named_;
};

class ChangePoint final : public Rule {
 public:
  std::vector<NamedRank> see(const StepSignals&, const StepSummary&,
                             const Timings& timings) override {
    window_.push_back(timings.own);
    if (window_.size() > kWindow) window_.pop_front();
    ++steps_;
    if (steps_ % 5 != 0 || window_.size() < 2 * kApart + 1) return named_;
    for (std::size_t i = 0; i < timings.ranks.size(); ++i) judge(timings, i);
    return named_;
  }

 private:
  static constexpr std::size_t kWindow = 64;
  static constexpr std::size_t kApart = 11;  // more than 10

  // A rank stays named until a change of 10 % for the better.
  void judge(const Timings& timings, std::size_t i) {
    const double change = surest_change(i);
    const auto at = std::ranges::find(named_, timings.ranks[i], &NamedRank::rank);
    if (change >= 0.1 && at == named_.end())
      named_.push_back({timings.ranks[i], furthest_phase(timings, i)});
    if (change <= -0.1 && at != named_.end()) named_.erase(at);
  }

  // Returns the relative change of the mean at the most likely step; 0 if the posterior of a change
  // is below 0.9.
  double surest_change(std::size_t i) const {
    const auto n = static_cast<double>(window_.size());
    double sum = 0, squares = 0;
    for (const auto& own : window_) sum += own[i], squares += own[i] * own[i];
    const double whole = squares - sum * sum / n;
    double before = 0, best = 0, change = 0, odds = 0;
    const auto steps = static_cast<double>(window_.size() - 2 * kApart + 1);
    for (std::size_t s = 0; s + kApart < window_.size(); ++s) {
      before += window_[s][i];
      if (s + 1 < kApart) continue;
      const auto left = static_cast<double>(s + 1);
      const double after = sum - before;
      const double rest = squares - before * before / left - after * after / (n - left);
      const double gain = n / 2 * std::log(whole / std::max(rest, 1e-30)) - std::log(n);
      odds += std::exp(std::min(gain, 600.0)) / steps;
      if (gain <= best) continue;
      best = gain;
      change = (after / (n - left)) / (before / left) - 1;
    }
    return odds / (1 + odds) >= 0.9 ? change : 0;
  }

  std::size_t steps_ = 0;
  std::deque<std::vector<double>> window_;
  std::vector<NamedRank> named_;
};

}  // namespace

std::string_view to_string(PublishedRule rule) {
  constexpr std::array<std::string_view, kPublishedRules> kNames = {
      "relative score below 0.75 (NVIDIA resiliency extension)",
      "count of slowest steps (pytscope)", "change point (Greyhound's thresholds)"};
  return kNames[static_cast<std::size_t>(rule)];
}

std::unique_ptr<Rule> make_rule(PublishedRule rule) {
  if (rule == PublishedRule::relative_score) return std::make_unique<RelativeScore>();
  if (rule == PublishedRule::count_test) return std::make_unique<CountTest>();
  return std::make_unique<ChangePoint>();
}

}  // namespace cox::test
