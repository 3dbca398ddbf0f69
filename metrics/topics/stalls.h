// The topic Stalls: the ranks that keep others waiting now, their phase and the start of the wait.
// The topic's view is a StallView. The coordinator replaces the view at each check while ranks
// wait, between rounds too. Plain values; the functions are pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/core/stall.h"
#include "coordinator/core/units.h"
#include "metrics/topic.h"

namespace cox::metrics {

// StallView is set only while some rank waits for long.
struct StallView {
  UnixTime now{};  // of the check
  Stall stall;

  // Returns a sentence: "rank 1 is in backward of step 212 for 6.2 s, its process is stopped; ranks
  // 0, 2 wait for it (since 2026-01-02 03:04:05 UTC)".
  std::string text() const;
  // Returns the time at which the first of the waiting ranks began to wait.
  UnixTime since() const { return {now.seconds - stall.seconds}; }
};

Topic stalls_topic();

}  // namespace cox::metrics
