// Seeded random values of the core for property tests: valid plans of a job, signals with every
// field in use, control states. The same seed gives the same values.
#pragma once

#include <cstdint>
#include <random>

#include "coordinator/core/job.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/step_signals.h"
#include "coordinator/decide/decide.h"

namespace cox::test {

class RandomValues {
 public:
  explicit RandomValues(std::uint64_t seed) : engine_(seed) {}

  std::uint64_t below(std::uint64_t limit) { return engine_() % limit; }
  bool chance(unsigned percent) { return below(100) < percent; }
  std::uint64_t bits() { return engine_(); }
  double number();  // also NaN, infinities, -0 and denormals

  Plan plan(const JobFacts& job, std::uint64_t number);
  // Returns a valid plan that differs from `base` in a few places, with the next number.
  Plan next_plan(const JobFacts& job, const Plan& base);
  RankSignal signal(const JobFacts& job, RankId rank, RoundId round);
  StepSignals signals(const JobFacts& job, RoundId round);
  Reason reason();
  MemoryFacts memory(const JobFacts& job);
  PrecisionFacts precision(const JobFacts& job);  // valid for the job
  ControlState state(const JobFacts& job);

 private:
  // Draws from the first `kinds` actions: all, or those that are no levels.
  std::vector<MemoryAction> actions(std::size_t blocks, std::uint64_t kinds);
  std::vector<ProfileId> rank_profile(std::size_t ranks, std::size_t profiles);

  std::mt19937_64 engine_;
};

// Returns a job with all capabilities.
JobFacts capable_job(std::int32_t ranks, std::size_t blocks);

// Compares bit for bit, so that NaN equals itself and 0 differs from -0.
bool same_bits(double a, double b);
bool same_bits(const RankSignal& a, const RankSignal& b);
bool same_bits(const StepSignals& a, const StepSignals& b);
bool same_bits(const ControlState& a, const ControlState& b);

}  // namespace cox::test
