#include "coordinator/policies/stragglers/stragglers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "coordinator/core/text.h"

namespace cox {
namespace {

struct NamedRank {
  RankId rank{};
  std::uint32_t phase_index = 0;  // into kOwnPhases

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit(self.rank);
    visit(self.phase_index);
  }
};

struct StragglersState {
  static constexpr std::uint32_t kVersion = 2;
  std::vector<NamedRank> named;  // told to be slow; ascending ranks

  template <class Self, class Visit>
  static void fields(Self& self, Visit&& visit) {
    visit(self.named);
  }
  bool is_sane() const {
    return std::ranges::is_sorted(named, {}, &NamedRank::rank) &&
           std::ranges::all_of(named, [](const NamedRank& one) {
             return one.rank.value() >= 0 && one.phase_index < kOwnPhases.size();
           });
  }
};

const char* phase_name(std::uint32_t phase_index) {
  return to_string(kOwnPhases[phase_index]).data();  // names are literals
}

double percent(double ratio) {
  return 100 * (ratio - 1);
}

Reason finding(ReasonCode code, RankId rank, std::string text) {
  Reason reason;
  reason.code = code;
  reason.outcome = Outcome::reported;
  reason.rank = rank;
  reason.text = std::move(text);
  return reason;
}

Reason explain_found(const SlowRank& slow, const PolicyInput& input) {
  const bool own_past = compares_with_own_past(static_cast<std::size_t>(input.job.world_size));
  const auto since = static_cast<double>(slow.since.value());
  const auto now = static_cast<double>(input.summary.round.value());
  return finding(
      ReasonCode::straggler_found, slow.rank,
      sentence("rank %d is %.1f %% slower than %s, most of it in %s, since round %.0f (%.0f "
               "rounds); noise would look like this once in 10^%.0f rank-steps",
               slow.rank.value(), percent(slow.slowdown_ratio),
               own_past ? "in its own past" : "the other ranks", phase_name(slow.phase_index),
               since, now - since + 1, std::floor(slow.rarity)));
}

Reason explain_moved(const SlowRank& slow, std::uint32_t before) {
  return finding(
      ReasonCode::straggler_phase_moved, slow.rank,
      sentence("rank %d, %.1f %% slow, now loses most in %s, before in %s", slow.rank.value(),
               percent(slow.slowdown_ratio), phase_name(slow.phase_index), phase_name(before)));
}

Reason explain_gone(RankId rank, const PolicyInput& input) {
  const auto& reports = input.signals.reports;
  const auto report = std::ranges::lower_bound(reports, rank, {}, &RankSignal::rank);
  const bool finished =
      report != reports.end() && report->rank == rank && report->has(SignalFlag::finished);
  return finding(ReasonCode::straggler_gone, rank,
                 finished ? sentence("rank %d has finished", rank.value())
                          : sentence("rank %d is no longer slow (%.1f %%)", rank.value(),
                                     percent(slowdown_ratio(input.estimates, rank))));
}

const NamedRank* find_named(const StragglersState& state, RankId rank) {
  const auto found = std::ranges::lower_bound(state.named, rank, {}, &NamedRank::rank);
  return found != state.named.end() && found->rank == rank ? &*found : nullptr;
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
  for (const NamedRank& named : before.named) {
    const bool is_over = find_slow(input.estimates, named.rank) == nullptr;
    if (is_over) output.findings.push_back(explain_gone(named.rank, input));
  }
  for (const SlowRank& slow : input.estimates.slowness.slow) {
    const NamedRank* const named = find_named(before, slow.rank);
    if (named == nullptr) {
      output.findings.push_back(explain_found(slow, input));
    } else if (named->phase_index != slow.phase_index) {
      output.findings.push_back(explain_moved(slow, named->phase_index));
    }
  }
  std::ranges::stable_sort(output.findings, {}, &Reason::rank);
  output.state = PolicyState::of(state_after(input));
  return output;
}

// What is restored was told before; what belonged to another world is not worth a word.
PolicyOutput Stragglers::at_start(const PolicyInput& input, PolicyState) const {
  return {{}, {}, PolicyState::of(state_after(input))};
}

}  // namespace cox
