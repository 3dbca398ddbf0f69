// HostNotes: the newest evidence of the machines under the ranks (HostEvidence in signal.h), as
// pages and metrics show it. A part of RanksView. Written on the recording thread; notes are shared
// between snapshots and bounded in number. Host names come from outside.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/signal.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/estimates/slow_findings.h"
#include "coordinator/io/json.h"

namespace cox::metrics {

inline constexpr std::size_t kHostNotes = 1024;  // ranks; twice that with those that are named

struct HostNote {
  RankId rank{-1};
  HostEvidence evidence;
};

struct HostNotes {
  std::shared_ptr<const std::vector<HostNote>> list;  // ascending ranks; null: nothing is known

  // Takes the evidence that came in this round. Once kHostNotes ranks have some, only ranks that
  // `slow` names are added. Evidence that does not read is left out.
  void add(const StepSignals& signals, const SlowFindings& slow);
  // Returns null where nothing is known of the rank's host.
  const HostEvidence* find(RankId rank) const;
};

// Says in words what is unusual: "35 % of its cores' time goes to other virtual machines".
std::string host_words(const HostEvidence& evidence);

// The part of time, of cores or of periods that a host loses, by what it is lost to.
inline constexpr std::array<std::string_view, 5> kPressureNames = {"steal", "throttled", "cpu",
                                                                   "memory", "io"};
// Returns the largest over the hosts; 0 where nobody knows. REQUIRES: index < 5.
double worst_pressure(const HostNotes& notes, std::size_t index);
// Returns the most threads a core that run or want to; 0 where nobody knows.
double worst_load(const HostNotes& notes);
// Returns the smallest present clock over the largest possible; NaN where nobody knows.
double lowest_clock(const HostNotes& notes);

// Writes what is known of a host, null for what is not.
void put_host(io::JsonWriter& json, const HostEvidence* evidence);

}  // namespace cox::metrics
