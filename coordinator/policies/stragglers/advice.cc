#include "coordinator/policies/stragglers/advice.h"

#include <algorithm>
#include <array>
#include <utility>

#include "coordinator/core/summary.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"

namespace cox {
namespace {

// A sign that explains slowness where it is beyond its limit.
struct Sign {
  float HostEvidence::*value;
  float limit;
  bool is_ceiling;  // what is above the limit explains; else what is below it
  SlowCause cause;
  const char* before;  // words around the value in percent
  const char* after;
};

// The surest first.
constexpr std::array<Sign, 6> kSigns = {{
    {&HostEvidence::throttled_ratio, 0.02F, true, SlowCause::host,
     "a CPU limit of its container held it up for ", " of the time; raise the limit"},
    {&HostEvidence::steal_ratio, 0.02F, true, SlowCause::host, "the hypervisor gave ",
     " of its CPU time to others; move it to another machine"},
    {&HostEvidence::memory_pressure, 0.02F, true, SlowCause::memory_pressure,
     "its machine waits for memory ", " of the time; free memory there"},
    {&HostEvidence::io_pressure, 0.10F, true, SlowCause::data,
     "its machine waits for reads and writes ", " of the time; look at its disks"},
    {&HostEvidence::clock_ratio, 0.85F, false, SlowCause::compute, "its clock is at ",
     " of the largest; look at cooling and power limits"},
    {&HostEvidence::load_per_core, 1.2F, true, SlowCause::host, "its machine has work for ",
     " of its cores; see what else runs there"},
}};

const Sign* telling_sign(const HostEvidence& host) {
  const auto found = std::ranges::find_if(kSigns, [&](const Sign& sign) {
    const float value = host.*sign.value;
    if (value == HostEvidence::kNotKnown) return false;
    return sign.is_ceiling ? value > sign.limit : value < sign.limit;
  });
  return found == kSigns.end() ? nullptr : &*found;
}

// By the phase alone.
struct PhaseCause {
  SlowCause cause;
  const char* words;
};

PhaseCause cause_of(Phase phase) {
  switch (phase) {
    case Phase::data:
      return {SlowCause::data, "look at what reads its samples: disk, network share, workers"};
    case Phase::communication:
      return {SlowCause::link, "look at its network link"};
    case Phase::optimizer:
    case Phase::host:
    case Phase::other:
      return {SlowCause::host, "see what else runs on its machine"};
    default:
      return {SlowCause::compute, "look at its device: clocks, cooling, other users of it"};
  }
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
  advice.text = concat(
      "rank ", slow.rank, name.empty() ? "" : concat(" on ", printable(name)),
      sentence(" is still %.1f %% slow, most of it in ", 100 * (slow.slowdown_ratio - 1)),
      slow.phase(), ", and no plan makes up for it; likely cause: ", advice.cause, " (", why, ")");
  return advice;
}

std::vector<RankHost> hosts_after(std::vector<RankHost> before, const PolicyInput& input) {
  for (const RankSignal& report : input.signals.reports) {
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

}  // namespace cox
