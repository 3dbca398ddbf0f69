// Liveness and readiness, each with a sentence. Live: the control loop closes rounds or is idle;
// the sentence names the ranks that keep others waiting. Ready: every rank has reported. Pure.
#pragma once

#include <string>

#include "metrics/snapshot.h"

namespace cox::metrics {

struct Health {
  enum class Verdict { good, bad } verdict = Verdict::good;
  std::string reason;
  bool good() const { return verdict == Verdict::good; }
};

// Returns the seconds without a round after which a training job counts as stalled: 20 typical
// steps, at least 30 s.
double stall_after_seconds(const Snapshot& snapshot);

Health liveness(const Snapshot& snapshot, UnixTime now);
Health readiness(const Snapshot& snapshot);

}  // namespace cox::metrics
