#include "coordinator/policies/stragglers/advice.h"

#include <algorithm>
#include <array>
#include <utility>

#include "coordinator/core/summary.h"
#include "coordinator/core/text.h"

namespace cox {
namespace {

// A sign that explains slowness where it is beyond its limit.
struct Sign {
  std::optional<double> HostSigns::*value;
  double limit;
  bool is_ceiling;  // what is above the limit explains; else what is below it
  SlowCause cause;
  const char* before;  // words around the value in percent
  const char* after;
};

// The surest first.
constexpr std::array<Sign, 6> kSigns = {{
    {&HostSigns::throttled_ratio, 0.02, true, SlowCause::host,
     "a CPU limit of its container held it up for ", " of the time; raise the limit"},
    {&HostSigns::steal_ratio, 0.02, true, SlowCause::host, "the hypervisor gave ",
     " of its CPU time to others; move it to another machine"},
    {&HostSigns::memory_pressure, 0.02, true, SlowCause::memory_pressure,
     "its machine waits for memory ", " of the time; free memory there"},
    {&HostSigns::io_pressure, 0.10, true, SlowCause::data,
     "its machine waits for reads and writes ", " of the time; look at its disks"},
    {&HostSigns::clock_ratio, 0.85, false, SlowCause::compute, "its clock is at ",
     " of the largest; look at cooling and power limits"},
    {&HostSigns::load_per_core, 1.2, true, SlowCause::host, "its machine has work for ",
     " of its cores; see what else runs there"},
}};

const Sign* telling_sign(const HostSigns& signs) {
  const auto found = std::ranges::find_if(kSigns, [&](const Sign& sign) {
    const std::optional<double>& value = signs.*sign.value;
    return value && (sign.is_ceiling ? *value > sign.limit : *value < sign.limit);
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

Advice advise(const SlowRank& slow, const std::optional<HostSigns>& signs) {
  Advice advice;
  const Sign* const sign = signs ? telling_sign(*signs) : nullptr;
  std::string why;
  if (sign != nullptr) {
    advice.cause = sign->cause;
    why = concat(sign->before, percent_text(*((*signs).*sign->value), 0), sign->after);
  } else {
    const PhaseCause by_phase = cause_of(slow.phase());
    advice.cause = by_phase.cause;
    why = by_phase.words;
  }
  const bool has_host = signs && !signs->host.empty();
  advice.text = concat(
      "rank ", slow.rank, has_host ? concat(" on ", signs->host) : "",
      sentence(" is still %.1f %% slow, most of it in ", 100 * (slow.slowdown_ratio - 1)),
      slow.phase(), ", and no plan makes up for it; likely cause: ", advice.cause, " (", why, ")");
  return advice;
}

std::vector<Reason> advice_of_round(const PolicyInput& input) {
  std::vector<Reason> findings;
  for (const SlowRank& slow : input.estimates.slowness.slow) {
    if (input.summary.round.value() != slow.phase_since.value() + kAdviceRounds) continue;
    const double noticeable = 1 + (slow.slowdown_ratio - 1) / 2;
    const bool is_waited_for = std::ranges::any_of(input.summary.worst, [&](const WorstRank& w) {
      return w.rank == slow.rank && w.slowdown_ratio > noticeable;
    });
    if (!is_waited_for) continue;
    findings.push_back(
        reason_of(ReasonCode::straggler_advice, advise(slow, std::nullopt).text, {}, slow.rank));
  }
  return findings;
}

}  // namespace cox
