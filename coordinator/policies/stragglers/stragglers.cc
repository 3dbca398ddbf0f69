#include "coordinator/policies/stragglers/stragglers.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "coordinator/core/job_pace.h"
#include "coordinator/core/slow_hosts.h"
#include "coordinator/core/slow_rank.h"
#include "coordinator/core/text.h"
#include "coordinator/policies/stragglers/advice.h"

namespace cox {
namespace {

struct NamedRank {
  RankId rank{};
  std::uint32_t phase_index = 0;  // into kOwnPhases

  static auto fields(auto& self) { return std::tie(self.rank, self.phase_index); }
};

// A rank whose pauses were told of, and how many there were.
struct ToldPauses {
  RankId rank{};
  std::uint32_t pauses = 0;

  static auto fields(auto& self) { return std::tie(self.rank, self.pauses); }
};

struct StragglersState {
  static constexpr std::uint32_t kVersion = 4;
  std::vector<NamedRank> named;  // told to be slow; ascending ranks
  std::vector<NodeId> hosts;     // likewise; ascending
  std::vector<ToldPauses> pauses;
  bool is_job_slow = false;
  std::vector<HostOfRank> hosts_of_ranks;  // for advice

  static auto fields(auto& self) {
    return std::tie(self.named, self.hosts, self.pauses, self.is_job_slow, self.hosts_of_ranks);
  }
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

std::string since_text(RoundId since, const PolicyInput& input) {
  const std::uint64_t now = input.summary.round.value();
  const std::uint64_t rounds = now >= since.value() ? now - since.value() + 1 : 0;
  return concat("since round ", since, " (", rounds, " rounds)");
}

std::string against_text(const SlowRank& slow) {
  if (slow.against == ComparedWith::own_past) return "in its own past";
  return std::string(to_string(slow.against));
}

Reason explain_found(const SlowRank& slow, const PolicyInput& input) {
  return reason_of(ReasonCode::straggler_found,
                   concat("rank ", slow.rank, " is ", percent(slow.slowdown_ratio), " slower than ",
                          against_text(slow),
                          sentence(" (95 %% sure of %.1f to ", 100 * (slow.slowdown_low - 1)),
                          percent(slow.slowdown_high), "), most of it in ", slow.phase(), ", ",
                          since_text(slow.since, input), "; ",
                          sentence("noise would look like this once in 10^%.0f rank-steps",
                                   std::floor(slow.rarity))),
                   {}, slow.rank);
}

Reason explain_host(const SlowHost& host, const PolicyInput& input) {
  return reason_of(ReasonCode::straggler_host,
                   concat("all ", host.ranks, " ranks of host ", host.node, " are slow, by about ",
                          percent(host.slowdown_ratio), ", ", since_text(host.since, input),
                          ": look at the host, not at the ranks"));
}

Reason explain_job_slow(const SlowJob& slow, const PolicyInput& input) {
  return reason_of(
      ReasonCode::straggler_job_slow,
      concat("the job as a whole is ", percent(slow.slowdown_ratio),
             sentence(" slower than it was (95 %% sure of %.1f to ", 100 * (slow.slowdown_low - 1)),
             percent(slow.slowdown_high), "), ", since_text(slow.since, input),
             ": all ranks share it, so none is a straggler"));
}

Reason explain_pauses(const SlowRank& one) {
  return reason_of(ReasonCode::straggler_transient,
                   concat("rank ", one.rank, " was slow for a short while ", one.short_spells,
                          " times of late, the last time until round ", one.until, " in ",
                          one.phase(), ": pauses, which nothing is done about"),
                   {}, one.rank);
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
  const Slowness& slowness = input.estimates.slowness;
  for (const SlowRank& slow : slowness.slow) state.named.push_back({slow.rank, slow.phase_index});
  for (const SlowHost& host : slow_hosts(slowness, input.job.node_of_rank)) {
    state.hosts.push_back(host.node);
  }
  state.is_job_slow = slowness.pace.slow.has_value();
  return state;
}

void tell_ranks(const PolicyInput& input, const std::vector<NamedRank>& before,
                std::vector<Reason>& findings) {
  auto named = before.begin();
  for (const SlowRank& slow : input.estimates.slowness.slow) {
    for (; named != before.end() && named->rank < slow.rank; ++named) {
      findings.push_back(explain_gone(named->rank, input));
    }
    if (named == before.end() || named->rank != slow.rank) {
      findings.push_back(explain_found(slow, input));
      continue;
    }
    if (named->phase_index != slow.phase_index) {
      findings.push_back(explain_moved(slow, kOwnPhases[named->phase_index]));
    }
    ++named;
  }
  for (; named != before.end(); ++named) findings.push_back(explain_gone(named->rank, input));
}

// That a host is no longer slow follows from what is told of its ranks.
void tell_hosts(const PolicyInput& input, const std::vector<NodeId>& before,
                std::vector<Reason>& findings) {
  for (const SlowHost& host : slow_hosts(input.estimates.slowness, input.job.node_of_rank)) {
    if (std::ranges::find(before, host.node) != before.end()) continue;
    findings.push_back(explain_host(host, input));
  }
}

void tell_job(const PolicyInput& input, const StragglersState& before,
              std::vector<Reason>& findings) {
  const std::optional<SlowJob>& slow = input.estimates.slowness.pace.slow;
  if (slow && !before.is_job_slow) findings.push_back(explain_job_slow(*slow, input));
  if (slow || !before.is_job_slow) return;
  findings.push_back(reason_of(ReasonCode::straggler_job_gone,
                               "the job as a whole is no longer slower than it was, or a new plan "
                               "is in force with which that cannot be compared"));
}

// Tells of a rank's pauses when there are two, and again when there are twice as many. Returns
// what was told, of ranks that are still watched.
std::vector<ToldPauses> tell_pauses(const PolicyInput& input, const std::vector<ToldPauses>& before,
                                    std::vector<Reason>& findings) {
  constexpr std::uint32_t kMany = 2;
  std::vector<ToldPauses> told;
  for (const SlowRank& one : input.estimates.slowness.watched) {
    if (one.short_spells < kMany) continue;
    const auto same = std::ranges::find(before, one.rank, &ToldPauses::rank);
    const std::uint32_t last = same == before.end() ? 0 : same->pauses;
    const bool is_news = one.short_spells / 2 >= std::max(last, kMany / 2);
    if (is_news) findings.push_back(explain_pauses(one));
    told.push_back({one.rank, is_news ? one.short_spells : last});
  }
  return told;
}

}  // namespace

PolicyOutput Stragglers::propose(const PolicyInput& input, PolicyState state) const {
  StragglersState before = state_before(std::move(state), input.job);
  PolicyOutput output;
  StragglersState after = state_after(input);
  tell_hosts(input, before.hosts, output.findings);
  tell_ranks(input, before.named, output.findings);
  tell_job(input, before, output.findings);
  after.pauses = tell_pauses(input, before.pauses, output.findings);
  after.hosts_of_ranks = newest_hosts(input, std::move(before.hosts_of_ranks));
  std::ranges::move(advice_of_round(input, after.hosts_of_ranks),
                    std::back_inserter(output.findings));
  output.state = PolicyState::of(std::move(after));
  return output;
}

// Restored ranks were told before; those of another world are not worth a word.
PolicyOutput Stragglers::at_start(const PolicyInput& input, PolicyState) const {
  return {{}, {}, PolicyState::of(state_after(input))};
}

}  // namespace cox
