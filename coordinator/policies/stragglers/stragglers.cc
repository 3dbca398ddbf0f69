#include "coordinator/policies/stragglers/stragglers.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "coordinator/core/slowness.h"
#include "coordinator/core/text.h"
#include "coordinator/policies/stragglers/advice.h"

namespace cox {
namespace {

struct NamedRank {
  RankId rank{};
  std::uint32_t phase_index = 0;  // into kOwnPhases

  static auto fields(auto& self) { return std::tie(self.rank, self.phase_index); }
};

struct StragglersState {
  static constexpr std::uint32_t kVersion = 2;
  std::vector<NamedRank> named;  // told to be slow; ascending ranks

  static auto fields(auto& self) { return std::tie(self.named); }
  bool is_sane() const {
    return std::ranges::is_sorted(named, {}, &NamedRank::rank) &&
           std::ranges::all_of(named, [](const NamedRank& one) {
             return one.rank.value() >= 0 && one.phase_index < kOwnPhases.size();
           });
  }
};

std::string percent(double ratio) {
  return sentence("%.1f %%", 100 * (ratio - 1));
}

Reason explain_found(const SlowRank& slow, const PolicyInput& input) {
  const bool own_past = compares_with_own_past(input.job.ranks());
  const std::uint64_t rounds = input.summary.round.value() - slow.since.value() + 1;
  return reason_of(ReasonCode::straggler_found,
                   concat("rank ", slow.rank, " is ", percent(slow.slowdown_ratio), " slower than ",
                          own_past ? "in its own past" : "the other ranks", ", most of it in ",
                          slow.phase(), ", since round ", slow.since, " (", rounds, " rounds); ",
                          sentence("noise would look like this once in 10^%.0f rank-steps",
                                   std::floor(slow.rarity))),
                   {}, slow.rank);
}

Reason explain_moved(const SlowRank& slow, Phase before) {
  return reason_of(ReasonCode::straggler_phase_moved,
                   concat("rank ", slow.rank, ", ", percent(slow.slowdown_ratio),
                          " slow, now loses most in ", slow.phase(), ", before in ", before),
                   {}, slow.rank);
}

Reason explain_gone(RankId rank, const PolicyInput& input) {
  const auto& reports = input.signals.reports;
  const auto report = std::ranges::lower_bound(reports, rank, {}, &RankSignal::rank);
  const bool finished =
      report != reports.end() && report->rank == rank && report->has(SignalFlag::finished);
  const std::string text = finished ? " has finished"
                                    : concat(" is no longer slow (",
                                             percent(slowdown_ratio(input.estimates, rank)), ")");
  return reason_of(ReasonCode::straggler_gone, concat("rank ", rank, text), {}, rank);
}

StragglersState state_before(PolicyState kept, const JobFacts& job) {
  auto state = kept.take_or_fresh<StragglersState>();
  std::erase_if(state.named,
                [&job](const NamedRank& named) { return named.rank.value() >= job.world_size; });
  return state;
}

StragglersState state_after(const PolicyInput& input) {
  StragglersState state;
  for (const SlowRank& slow : input.estimates.slowness.slow) {
    state.named.push_back({slow.rank, slow.phase_index});
  }
  return state;
}

}  // namespace

PolicyOutput Stragglers::propose(const PolicyInput& input, PolicyState state) const {
  const StragglersState before = state_before(std::move(state), input.job);
  PolicyOutput output;
  auto named = before.named.begin();
  const auto end = before.named.end();
  for (const SlowRank& slow : input.estimates.slowness.slow) {
    for (; named != end && named->rank < slow.rank; ++named) {
      output.findings.push_back(explain_gone(named->rank, input));
    }
    if (named == end || named->rank != slow.rank) {
      output.findings.push_back(explain_found(slow, input));
      continue;
    }
    if (named->phase_index != slow.phase_index) {
      output.findings.push_back(explain_moved(slow, kOwnPhases[named->phase_index]));
    }
    ++named;
  }
  for (; named != end; ++named) output.findings.push_back(explain_gone(named->rank, input));
  std::ranges::move(advice_of_round(input), std::back_inserter(output.findings));
  output.state = PolicyState::of(state_after(input));
  return output;
}

// Restored ranks were told before; those of another world are not worth a word.
PolicyOutput Stragglers::at_start(const PolicyInput& input, PolicyState) const {
  return {{}, {}, PolicyState::of(state_after(input))};
}

}  // namespace cox
