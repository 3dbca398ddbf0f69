// RunTally sums up the whole run for the summary at its end. On rank 0, a StepSink: adds up what
// each rank spent in each phase and hands every record on to the next sink. The coordinator's
// thread records; any thread may read.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "coordinator/core/phase.h"
#include "coordinator/core/units.h"
#include "coordinator/decide/record.h"
#include "coxswain/session.h"

namespace cox::detail {

// RunPrice says what a run costs.
struct RunPrice {
  UnixTime started{};          // the time from which on it costs
  double per_device_hour = 0;  // of one rank; 0 = not given
};

class RunTally final : public StepSink {
 public:
  // `next` may be null and must outlive this.
  RunTally(std::int32_t world_size, StepSink* next, RunPrice price = {});

  void record(const StepRecord& record) override;

  // Returns the totals, with the rank that worked longest and the phase in which it lost most
  // against the fastest rank.
  SessionReport report() const;

 private:
  void add(const StepRecord& record);
  void add_memory(const StepRecord& record);
  void add_cost(SessionReport& report) const;

  using Sums = std::array<double, kPhases>;

  StepSink* next_;
  RunPrice price_;
  mutable std::mutex mutex_;   // guards what follows
  std::vector<Sums> seconds_;  // by rank
  SessionReport totals_;
  std::shared_ptr<const SharedEffects> effects_;  // of the newest record
  std::optional<PlanId> priced_;                  // the plan that totals_ speak of
  std::size_t models_ = 0;                        // memory models of the job at that time
  UnixTime newest_{};
};

}  // namespace cox::detail
