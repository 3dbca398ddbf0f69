// StepReport is one step of one rank: the use of its time, and the loop's notes. The rank's signal
// for the coordinator and its row in the run directory are derived from the report:
//
//   StepRecorder -> StepReport -> RankSignal
//                        \-> StepRow
//
// Plain values and pure functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/phase.h"
#include "coordinator/core/signal.h"
#include "coordinator/core/units.h"
#include "metrics/records/step_row.h"

namespace cox::detail {

struct UserScalar {
  std::array<char, 24> name{};  // NUL-terminated
  double value = 0;
};
inline constexpr std::size_t kUserScalars = 8;

// StepNotes is the loop's notes on a step.
struct StepNotes {
  double loss = std::numeric_limits<double>::quiet_NaN();  // weighted mean; NaN = not reported
  double weight = 0;
  double loss_sum = 0;  // sum of loss x weight
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;
  double gradient_norm = std::numeric_limits<double>::quiet_NaN();  // norm of the averaged gradient
  bool has_gradient_norm = false;
  std::uint32_t nonfinite_values = 0;
  float reduction_seconds = 0;          // gradient buckets, from launch to result
  float reduction_exposed_seconds = 0;  // the part of reduction_seconds after the end of backward
  std::uint16_t flags = 0;              // SignalFlag bits
  std::array<UserScalar, kUserScalars> scalars{};
  std::size_t scalar_count = 0;

  bool has(SignalFlag flag) const { return (flags & static_cast<std::uint16_t>(flag)) != 0; }
  void set(SignalFlag flag) { flags |= static_cast<std::uint16_t>(flag); }
  void add_loss(double mean, double weight_of_mean);
  void set_gradient_norm(double value);
  void set_reduction(double seconds, double exposed_seconds);
  // Sets a scalar. A repeated name replaces the value; a ninth name is dropped.
  void log(std::string_view name, double value);
};

// ScalarNames are the names of scalars that a loop has logged. A row of the run directory keeps the
// first 15 bytes of each name.
class ScalarNames {
 public:
  enum class Verdict { distinct, ambiguous, newly_ambiguous };
  // Returns whether the name differs from all earlier ones in a row. The first of several such
  // names is kept.
  Verdict look_at(std::string_view name);

 private:
  struct Known {
    std::string name;
    std::vector<std::string> ambiguous;  // names with the same first bytes
  };
  std::vector<Known> known_;
};

struct StepReport : StepNotes {
  StepId step{};
  std::array<double, kPhases> phase_seconds{};  // all phases but `host` sum to wall_seconds
  double wall_seconds = 0;
  // The part of communication before the last rank arrived; 0 without the flag waiting_measured.
  double waiting_seconds = 0;
  double save_seconds = 0;  // between the step before and this one
  // False if no device times of any step have arrived since the last report.
  bool has_times = true;
};

// Returns the signal with the report's fields. The session adds ids, and actuators add their
// fields.
RankSignal signal_from(const StepReport& report);

// Returns the signal without its times, so that a warm-up step enters no statistics.
RankSignal without_times(RankSignal signal);

// Returns the row of a step with the report's fields. Actuators add their fields.
metrics::StepRow row_from(const StepReport& report, RoundId round, UnixTime now);

}  // namespace cox::detail
