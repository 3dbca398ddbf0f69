// The topic Stalls: which ranks keep the others waiting right now, in which phase and since when.
// A StallView is the topic's view, replaced at each look of the coordinator while ranks wait,
// between rounds as well. Plain values; the rest is pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "coordinator/core/stall.h"
#include "coordinator/core/units.h"
#include "metrics/topic.h"

namespace cox::metrics {

// StallView is there only while somebody waits for long.
struct StallView {
  UnixTime now{};  // of the look
  Stall stall;

  // "rank 1 is in backward of step 212 for 6.2 s, its process is stopped; ranks 0, 2 wait for it
  // (since 2026-01-02 03:04:05 UTC)".
  std::string text() const;
  // When the first of the waiting ranks began to wait.
  UnixTime since() const { return {now.seconds - stall.seconds}; }
};

Topic stalls_topic();

}  // namespace cox::metrics
