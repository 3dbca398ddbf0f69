// HostNotes: the newest evidence of the machines under the ranks (HostEvidence in signal.h), as
// pages and metrics show the evidence. A part of RanksView. Written on the recording thread.
// Snapshots share the notes, whose number is bounded. Host names are untrusted input.
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

inline constexpr std::size_t kHostNotes = 1024;  // ranks; up to twice as many with slow ranks

struct HostNote {
  RankId rank{-1};
  HostEvidence evidence;
};

struct HostNotes {
  std::shared_ptr<const std::vector<HostNote>> list;  // ascending ranks; null: no evidence yet

  // Adds the evidence of this round. Once kHostNotes ranks have evidence, only ranks in `slow` are
  // added. Evidence that does not parse is left out.
  void add(const StepSignals& signals, const SlowFindings& slow);
  // Returns null if the rank has sent no evidence.
  const HostEvidence* find(RankId rank) const;
};

// Returns a sentence about unusual values: "35 % of the cores' time goes to other virtual
// machines".
std::string host_words(const HostEvidence& evidence);

// Kinds of pressure: each takes a part of a host's time, cores or periods.
inline constexpr std::array<std::string_view, 5> kPressureNames = {"steal", "throttled", "cpu",
                                                                   "memory", "io"};
// Returns the largest value over the hosts; 0 if no host reports the value. REQUIRES: index < 5.
double worst_pressure(const HostNotes& notes, std::size_t index);
// Returns the largest number of runnable threads per core over the hosts; 0 if no host reports the
// number.
double worst_load(const HostNotes& notes);
// Returns the smallest ratio of present to largest possible clock; NaN if no host reports the
// ratio.
double lowest_clock(const HostNotes& notes);

// Writes the evidence of a host, with null for unknown values.
void put_host(io::JsonWriter& json, const HostEvidence* evidence);

}  // namespace cox::metrics
