// AllocatorReport sends the probe's evidence of the device's allocator to the coordinator. Separate
// from the probe, because evidence is sent after the fragments of all other actuators. Sends
// nothing on the CPU. Training thread only.
#pragma once

#include <chrono>

#include "coordinator/core/units.h"
#include "sdk/src/blocks/actuator.h"
#include "sdk/src/memory/memory_probe.h"

namespace cox::detail {

class AllocatorReport final : public Actuator, public Reporting {
 public:
  // The probe outlives the report. Unchanged evidence is sent every `repeat_every`.
  explicit AllocatorReport(const MemoryProbe& probe, Seconds repeat_every = Seconds(30))
      : probe_(probe), repeat_every_(repeat_every) {}

  // Returns the newest evidence if it is worth a report.
  Fragment next_fragment() override;

 private:
  using Steady = std::chrono::steady_clock;

  const MemoryProbe& probe_;
  const Seconds repeat_every_;
  AllocatorEvidence sent_{};
  Steady::time_point repeat_{};
};

}  // namespace cox::detail
