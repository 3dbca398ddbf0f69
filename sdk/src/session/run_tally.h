// RunTally sums up the whole run for the summary at its end. A StepSink on rank 0: adds up each
// rank's time in each phase and passes every record to the next sink. The coordinator's thread
// records; any thread may read.
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

// RunPrice is the price of a run.
struct RunPrice {
  UnixTime started{};          // time from which the run costs
  double per_device_hour = 0;  // for one rank; 0 = not given
};

class RunTally final : public StepSink {
 public:
  // `next` may be null. REQUIRES: `next` outlives the RunTally.
  RunTally(std::int32_t world_size, StepSink* next, RunPrice price = {});

  void record(const StepRecord& record) override;

  // Returns the totals, the rank that worked longest, and the phase in which that rank lost most
  // against the fastest rank.
  SessionReport report() const;

 private:
  void add(const StepRecord& record);
  void add_memory(const StepRecord& record);
  void add_cost(SessionReport& report) const;

  using Sums = std::array<double, kPhases>;

  StepSink* next_;
  RunPrice price_;
  mutable std::mutex mutex_;   // guards the members below
  std::vector<Sums> seconds_;  // by rank
  SessionReport totals_;
  std::shared_ptr<const SharedEffects> effects_;  // from the newest record
  std::optional<PlanId> priced_;                  // the plan of the costs in totals_
  std::size_t models_ = 0;                        // memory models of the job at the time of priced_
  UnixTime newest_{};
};

}  // namespace cox::detail
