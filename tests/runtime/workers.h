// One rank of a job without tensors: round after round it votes, agrees and reports through a
// ControlPlane as a trainer does, and writes down which plan was in force. Runs over any transport;
// ranks are compared afterwards. Reports what went wrong as text, so ranks may be threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/core/job.h"
#include "coordinator/decide/policy.h"
#include "coordinator/decide/record.h"
#include "coordinator/runtime/mask_broadcast.h"
#include "coordinator/transport/communicator.h"

namespace cox::test {

// The plan and the loss scaler that a rank had in force in one round.
struct InForce {
  std::uint64_t number = 0;
  std::uint64_t effect = 0;  // a hash of all that the plan says
  std::uint64_t scaler = 0;  // a hash of the rank's own loss scaler
  friend bool operator==(const InForce&, const InForce&) = default;
};

struct WorkerTrace {
  std::vector<InForce> rounds;
  std::uint64_t switches = 0;
  std::string path;       // of the control plane
  std::string last_path;  // the same at the end
  Status masks;           // why masks do not go over NCCL, at the end
  std::string trouble;    // the first thing that was wrong; empty = all well
  Status control;         // of the control plane, at the end
};

struct WorkerOptions {
  std::uint64_t rounds = 100;
  ControlPath path = ControlPath::automatic;
  double late_seconds = 5;
  std::size_t blocks = 4;
  PolicySet policies{};
  StepSink* sink = nullptr;          // rank 0's, may be null
  std::filesystem::path journal{};   // rank 0's, empty = none
  std::int32_t late_rank = -1;       // posts its report of every 16th round 30 ms late
  std::string settings{};            // lines of `key = value`
  runtime::MakeLane make_lane{};     // of ranks with a device
  std::uint64_t least_switches = 0;  // goes on until so many have come, at most a thousand times
                                     // as long: all ranks see them alike
  bool leaves_nccl = false;    // rounds count from where masks go without NCCL: all see it alike
  std::string nccl_library{};  // of such ranks
  bool has_numbers = false;    // gradients overflow, and evidence says all kinds of things
};

// A job that can do everything.
JobFacts job_of_workers(std::int32_t ranks, std::size_t blocks);

// Every rank calls it. From half of the rounds on, odd ranks have no samples left.
WorkerTrace train(transport::Communicator& world, const WorkerOptions& options);

// Every rank calls it, with any number of steps of its own: a rank that only watches.
WorkerTrace watch(transport::Communicator& world, const WorkerOptions& options);

// Counts of the coordinator after its last round, and what it judged.
class TallySink final : public StepSink {
 public:
  void record(const StepRecord& record) override;

  ControlCounters counters;
  std::vector<std::uint64_t> reports_of_rank;
};

}  // namespace cox::test
