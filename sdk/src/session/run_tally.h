// RunTally: what the whole run came to, for the summary at its end. A StepSink on rank 0 that sums
// what each rank spent in each phase and hands every record on to the next sink. Recorded on the
// coordinator's thread, read on any.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <vector>

#include "coordinator/core/record.h"
#include "coxswain/session.h"

namespace cox::detail {

class RunTally final : public StepSink {
 public:
  // `next` may be null and must outlive this.
  RunTally(std::int32_t world_size, StepSink* next);

  void record(const StepRecord& record) override;

  // The rank that worked longest, and the phase in which it lost most against the fastest rank.
  SessionReport report() const;

 private:
  void add(const StepRecord& record);

  using Sums = std::array<double, kPhases>;

  StepSink* next_;
  mutable std::mutex mutex_;   // guards what follows
  std::vector<Sums> seconds_;  // by rank
  SessionReport totals_;
};

}  // namespace cox::detail
