#include "coordinator/policies/stragglers/stragglers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>

#include "coordinator/core/fields.h"
#include "coordinator/core/summary.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/estimates/job_pace.h"
#include "coordinator/estimates/slow_hosts.h"
#include "coordinator/estimates/slow_rank.h"

namespace cox {
namespace {

// RankHost is the newest evidence about the machine of a rank.
struct RankHost {
  RankId rank{};
  HostEvidence evidence;

  static auto fields(auto& self) {
    return message("RankHost", field(1, "rank", self.rank), field(2, "evidence", self.evidence));
  }
};

// From this rank on, the host is kept only while the rank is slow or suspected, so that the state
// stays small. Fresh evidence arrives every half a minute.
inline constexpr std::int32_t kHostsKept = 1024;

struct NamedRank {
  RankId rank{};
  std::uint32_t phase_index = 0;  // into kOwnPhases

  static auto fields(auto& self) {
    return message("NamedRank", field(1, "rank", self.rank),
                   field(2, "phase_index", self.phase_index));
  }
};

// A rank whose pauses were reported, and the number of pauses at that report.
struct ToldPauses {
  RankId rank{};
  std::uint32_t pauses = 0;

  static auto fields(auto& self) {
    return message("ToldPauses", field(1, "rank", self.rank), field(2, "pauses", self.pauses));
  }
};

struct StragglersState {
  static constexpr std::uint32_t kVersion = 4;
  std::vector<NamedRank> named;  // reported as slow; ascending ranks
  std::vector<NodeId> hosts;     // reported as slow; ascending
  std::vector<ToldPauses> pauses;
  bool is_job_slow = false;
  std::vector<RankHost> machines;  // evidence about machines; ascending ranks

  static auto fields(auto& self) {
    return message("StragglersState", field(1, "named", self.named), field(2, "hosts", self.hosts),
                   field(3, "pauses", self.pauses), field(4, "is_job_slow", self.is_job_slow),
                   field(5, "machines", self.machines));
  }
  bool is_sane() const {
    return std::ranges::is_sorted(named, {}, &NamedRank::rank) &&
           std::ranges::is_sorted(machines, {}, &RankHost::rank) &&
           std::ranges::all_of(named, [](const NamedRank& one) {
             return one.rank.value() >= 0 && one.phase_index < kOwnPhases.size();
           });
  }
};

std::string percent(double ratio) {
  return percent_text(ratio - 1, 1);
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
  return reason_of(
      ReasonCode::straggler_found,
      concat("rank ", slow.rank, " is ", percent(slow.slowdown_ratio), " slower than ",
             against_text(slow), " (95 % sure of ", fixed(100 * (slow.slowdown_low - 1), 1), " to ",
             percent(slow.slowdown_high), "), most of it in ", slow.phase(), ", ",
             since_text(slow.since, input), "; noise would look like this once in 10^",
             fixed(std::floor(slow.rarity), 0), " rank-steps"),
      {}, slow.rank);
}

Reason explain_host(const SlowHost& host, const PolicyInput& input) {
  return reason_of(ReasonCode::straggler_host,
                   concat("all ", host.ranks, " ranks of host ", host.node, " are slow, by about ",
                          percent(host.slowdown_ratio), ", ", since_text(host.since, input),
                          ": check the host, not the ranks"));
}

Reason explain_job_slow(const SlowJob& slow, const PolicyInput& input) {
  return reason_of(
      ReasonCode::straggler_job_slow,
      concat("the job as a whole is ", percent(slow.slowdown_ratio),
             " slower than it was (95 % sure of ", fixed(100 * (slow.slowdown_low - 1), 1), " to ",
             percent(slow.slowdown_high), "), ", since_text(slow.since, input),
             ": all ranks share it, so none is a straggler"));
}

Reason explain_pauses(const SlowRank& one) {
  return reason_of(ReasonCode::straggler_transient,
                   concat("rank ", one.rank, " was slow for a short while ", one.short_spells,
                          " times of late, the last time until round ", one.until, " in ",
                          one.phase(), ": short pauses, for which no plan changes"),
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

// The end of a host's slowness follows from the findings about its ranks.
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
                               "the job as a whole is no longer slower than it was, or a new plan, "
                               "which cannot be compared with the earlier one, is in force"));
}

// Reports a rank's pauses at two, and again when there are twice as many. Returns the reports about
// ranks that are still watched.
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

// ---- Advice.

// A sign that explains slowness if its value is beyond the limit.
struct Sign {
  float HostEvidence::*value;
  float limit;
  bool is_ceiling;  // true: values above the limit explain slowness; false: values below
  SlowCause cause;
  const char* before;  // words around the value in percent
  const char* after;
};

// In descending order of certainty.
constexpr std::array<Sign, 7> kSigns = {{
    {&HostEvidence::throttled_ratio, 0.02F, true, SlowCause::host,
     "a CPU limit of its container held it up for ", " of the time; raise the limit"},
    {&HostEvidence::steal_ratio, 0.02F, true, SlowCause::host, "the hypervisor gave ",
     " of its CPU time to others; move it to another machine"},
    {&HostEvidence::memory_pressure, 0.02F, true, SlowCause::memory_pressure,
     "its machine waits for memory ", " of the time; free memory there"},
    {&HostEvidence::io_pressure, 0.10F, true, SlowCause::data,
     "its machine waits for reads and writes ", " of the time; check its disks"},
    {&HostEvidence::clock_ratio, 0.85F, false, SlowCause::compute, "its clock is at ",
     " of the largest; check cooling and power limits"},
    {&HostEvidence::cpu_pressure, 0.25F, true, SlowCause::host, "threads wait for a core ",
     " of the time; check for other programs on its machine"},
    {&HostEvidence::load_per_core, 1.2F, true, SlowCause::host, "its machine has work for ",
     " of its cores; check for other programs there"},
}};

const Sign* telling_sign(const HostEvidence& host) {
  const auto found = std::ranges::find_if(kSigns, [&](const Sign& sign) {
    const float value = host.*sign.value;
    if (value == HostEvidence::kNotKnown) return false;
    return sign.is_ceiling ? value > sign.limit : value < sign.limit;
  });
  return found == kSigns.end() ? nullptr : &*found;
}

// A cause by the phase alone.
struct PhaseCause {
  SlowCause cause;
  const char* words;
};

PhaseCause cause_of(Phase phase) {
  switch (phase) {
    case Phase::data:
      return {SlowCause::data, "check the source of its samples: disk, network share, workers"};
    case Phase::communication:
      return {SlowCause::link, "check its network link"};
    case Phase::optimizer:
    case Phase::host:
    case Phase::other:
      return {SlowCause::host, "check for other programs on its machine"};
    default:
      return {SlowCause::compute, "check its device: clocks, cooling, other users"};
  }
}

// Returns the hosts after the round's reports, ascending ranks.
std::vector<RankHost> hosts_after(std::vector<RankHost> before, const PolicyInput& input) {
  std::span<const RankSignal> reports = input.signals.reports;
  if (input.summary.fragments_of(FragmentKind::host_evidence) == 0) reports = {};
  for (const RankSignal& report : reports) {
    if (report.fragment.kind != FragmentKind::host_evidence) continue;
    const auto evidence = read_host_evidence(report.fragment);
    if (!evidence.ok()) continue;
    const auto place = std::ranges::lower_bound(before, report.rank, {}, &RankHost::rank);
    if (place != before.end() && place->rank == report.rank) {
      place->evidence = *evidence;
    } else {
      before.insert(place, {report.rank, *evidence});
    }
  }
  const Slowness& slowness = input.estimates.slowness;
  const auto is_among = [](const std::vector<SlowRank>& ranks, RankId rank) {
    return std::ranges::binary_search(ranks, rank, {}, &SlowRank::rank);
  };
  std::erase_if(before, [&](const RankHost& host) {
    if (host.rank.value() >= input.job.world_size) return true;
    return host.rank.value() >= kHostsKept && !is_among(slowness.slow, host.rank) &&
           !is_among(slowness.watched, host.rank);
  });
  return before;
}

// Returns a finding for each rank that was found slow kAdviceRounds ago and still delays the step.
std::vector<Reason> advice_of_round(const PolicyInput& input, const std::vector<RankHost>& hosts) {
  std::vector<Reason> findings;
  for (const SlowRank& slow : input.estimates.slowness.slow) {
    if (input.summary.round.value() != slow.phase_since.value() + kAdviceRounds) continue;
    const double noticeable = 1 + (slow.slowdown_ratio - 1) / 2;
    const bool is_waited_for = std::ranges::any_of(input.summary.worst, [&](const WorstRank& w) {
      return w.rank == slow.rank && w.slowdown_ratio > noticeable;
    });
    if (!is_waited_for) continue;
    const auto host = std::ranges::lower_bound(hosts, slow.rank, {}, &RankHost::rank);
    const bool is_known = host != hosts.end() && host->rank == slow.rank;
    const Advice advice = advise(slow, is_known ? &host->evidence : nullptr);
    findings.push_back(reason_of(ReasonCode::straggler_advice, advice.text, {}, slow.rank));
  }
  return findings;
}

}  // namespace

std::string_view to_string(SlowCause cause) {
  constexpr std::array<std::string_view, 5> kNames = {"compute", "data", "link", "host",
                                                      "memory pressure"};
  return kNames[static_cast<std::size_t>(cause)];
}

Advice advise(const SlowRank& slow, const HostEvidence* host) {
  Advice advice;
  const Sign* const sign = host != nullptr ? telling_sign(*host) : nullptr;
  std::string why;
  if (sign != nullptr) {
    advice.cause = sign->cause;
    why = concat(sign->before, percent_text(host->*sign->value, 0), sign->after);
  } else {
    const PhaseCause by_phase = cause_of(slow.phase());
    advice.cause = by_phase.cause;
    why = by_phase.words;
  }
  const std::string_view name = host != nullptr ? host_name(*host) : std::string_view();
  advice.text =
      concat("rank ", slow.rank, name.empty() ? "" : concat(" on ", printable(name)), " is still ",
             percent(slow.slowdown_ratio), " slow, most of it in ", slow.phase(),
             ", and no plan makes up for it; likely cause: ", advice.cause, " (", why, ")");
  return advice;
}

PolicyOutput Stragglers::propose(const PolicyInput& input, PolicyState state) const {
  StragglersState before = state_before(std::move(state), input.job);
  PolicyOutput output;
  StragglersState after = state_after(input);
  after.machines = hosts_after(std::move(before.machines), input);
  tell_hosts(input, before.hosts, output.findings);
  tell_ranks(input, before.named, output.findings);
  tell_job(input, before, output.findings);
  after.pauses = tell_pauses(input, before.pauses, output.findings);
  std::ranges::move(advice_of_round(input, after.machines), std::back_inserter(output.findings));
  output.state = PolicyState::of(std::move(after));
  return output;
}

// Restored ranks were reported before. Ranks of another world are not worth a finding.
PolicyOutput Stragglers::at_start(const PolicyInput& input, PolicyState) const {
  return {{}, {}, PolicyState::of(state_after(input))};
}

}  // namespace cox
