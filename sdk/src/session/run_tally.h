// RunTally: what the whole run came to, for the summary at its end. A StepSink on rank 0 that sums
// what each rank spent in each phase and hands every record on to the next sink. Recorded on the
// coordinator's thread, read on any.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "coordinator/core/record.h"
#include "coxswain/session.h"

namespace cox::detail {

// What a run is paid for.
struct RunPrice {
  UnixTime started{};          // since then
  double per_device_hour = 0;  // of one rank; 0 = not given
};

class RunTally final : public StepSink {
 public:
  // `next` may be null and must outlive this.
  RunTally(std::int32_t world_size, StepSink* next, RunPrice price = {});

  void record(const StepRecord& record) override;

  // The rank that worked longest, and the phase in which it lost most against the fastest rank.
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
  std::shared_ptr<const EffectList> effects_;  // of the newest record
  std::optional<PlanId> priced_;               // the plan that totals_ speak of
  std::size_t models_ = 0;                     // of memory, then
  UnixTime newest_{};
};

}  // namespace cox::detail
