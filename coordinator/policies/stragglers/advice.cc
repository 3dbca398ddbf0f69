#include "coordinator/policies/stragglers/advice.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "coordinator/core/estimates.h"
#include "coordinator/core/summary.h"
#include "coordinator/core/text.h"

namespace cox {
namespace {

// A sign that explains slowness where it is beyond its limit.
struct Sign {
  float HostEvidence::*value;
  double limit;
  bool is_ceiling;  // what is above the limit explains; else what is below it
  SlowCause cause;
  const char* before;  // words around the value in percent
  const char* after;
};

// The surest first.
constexpr std::array<Sign, 7> kSigns = {{
    {&HostEvidence::throttled_ratio, 0.02, true, SlowCause::host,
     "a CPU limit of its container held it up for ", " of the time; raise the limit"},
    {&HostEvidence::steal_ratio, 0.02, true, SlowCause::host, "the hypervisor gave ",
     " of its CPU time to others; move it to another machine"},
    {&HostEvidence::memory_pressure, 0.02, true, SlowCause::memory_pressure,
     "its machine waits for memory ", " of the time; free memory there"},
    {&HostEvidence::io_pressure, 0.10, true, SlowCause::data,
     "its machine waits for reads and writes ", " of the time; look at its disks"},
    {&HostEvidence::clock_ratio, 0.85, false, SlowCause::compute, "its clock is at ",
     " of the largest; look at cooling and power limits"},
    {&HostEvidence::cpu_pressure, 0.25, true, SlowCause::host, "threads wait for a core ",
     " of the time; see what else runs on its machine"},
    {&HostEvidence::load_per_core, 1.2, true, SlowCause::host, "its machine has work for ",
     " of its cores; see what else runs there"},
}};

const Sign* telling_sign(const HostEvidence& host) {
  const auto found = std::ranges::find_if(kSigns, [&](const Sign& sign) {
    const double value = host.*sign.value;
    return value >= 0 && (sign.is_ceiling ? value > sign.limit : value < sign.limit);
  });
  return found == kSigns.end() ? nullptr : &*found;
}

std::string_view name_of(const HostEvidence& host) {
  const auto end = std::ranges::find(host.host, '\0');
  return {host.host.data(), static_cast<std::size_t>(end - host.host.begin())};
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

std::optional<HostEvidence> host_of(std::span<const HostOfRank> hosts, RankId rank) {
  const auto known = std::ranges::find(hosts, rank, &HostOfRank::rank);
  if (known == hosts.end() || known->payload.size() > sizeof(Fragment::payload)) return {};
  Fragment fragment{
      FragmentKind::host_evidence, static_cast<std::uint16_t>(known->payload.size()), {}};
  std::memcpy(fragment.payload.data(), known->payload.data(), known->payload.size());
  const Result<HostEvidence> read = read_host_evidence(fragment);
  return read.ok() ? std::optional<HostEvidence>(*read) : std::nullopt;
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
  const std::string name = host != nullptr ? valid_utf8(name_of(*host)) : std::string();
  advice.text = concat(
      "rank ", slow.rank, name.empty() ? "" : " on " + name,
      sentence(" is still %.1f %% slow, most of it in ", 100 * (slow.slowdown_ratio - 1)),
      slow.phase(), ", and no plan makes up for it; likely cause: ", advice.cause, " (", why, ")");
  return advice;
}

std::vector<HostOfRank> newest_hosts(const PolicyInput& input, std::vector<HostOfRank> before) {
  const Slowness& slowness = input.estimates.slowness;
  const auto is_of_interest = [&](RankId rank) {
    return std::ranges::binary_search(slowness.slow, rank, {}, &SlowRank::rank) ||
           std::ranges::binary_search(slowness.watched, rank, {}, &SlowRank::rank);
  };
  std::erase_if(before, [&](const HostOfRank& known) { return !is_of_interest(known.rank); });
  for (const RankSignal& report : input.signals.reports) {
    const Fragment& fragment = report.fragment;
    if (fragment.kind != FragmentKind::host_evidence || !is_of_interest(report.rank)) continue;
    std::erase_if(before, [&](const HostOfRank& known) { return known.rank == report.rank; });
    const auto* const bytes = reinterpret_cast<const char*>(fragment.payload.data());
    const std::size_t size = std::min<std::size_t>(fragment.size, fragment.payload.size());
    before.push_back({report.rank, std::string(bytes, size)});
  }
  return before;
}

std::vector<Reason> advice_of_round(const PolicyInput& input, std::span<const HostOfRank> hosts) {
  std::vector<Reason> findings;
  for (const SlowRank& slow : input.estimates.slowness.slow) {
    if (input.summary.round.value() != slow.phase_since.value() + kAdviceRounds) continue;
    const double noticeable = 1 + (slow.slowdown_ratio - 1) / 2;
    const bool is_waited_for = std::ranges::any_of(input.summary.worst, [&](const WorstRank& w) {
      return w.rank == slow.rank && w.slowdown_ratio > noticeable;
    });
    if (!is_waited_for) continue;
    const std::optional<HostEvidence> host = host_of(hosts, slow.rank);
    findings.push_back(reason_of(ReasonCode::straggler_advice,
                                 advise(slow, host ? &*host : nullptr).text, {}, slow.rank));
  }
  return findings;
}

}  // namespace cox
