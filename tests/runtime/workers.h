// One rank of a job without tensors. In every round it votes, agrees and reports through a
// ControlPlane like a trainer, and records the plan in force. Runs over any transport; tests
// compare the ranks afterwards. Reports errors as text, so ranks may be threads.
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

// The plan and the loss scaler in force on a rank in one round.
struct InForce {
  std::uint64_t number = 0;
  std::uint64_t effect = 0;  // a hash of the plan's content
  std::uint64_t scaler = 0;  // a hash of the rank's own loss scaler
  friend bool operator==(const InForce&, const InForce&) = default;
};

struct WorkerTrace {
  std::vector<InForce> rounds;
  std::uint64_t switches = 0;
  std::string path;       // control.path
  std::string last_path;  // control.path at the end
  Status masks;           // why masks do not use NCCL, at the end
  std::string trouble;    // the first error; empty = none
  Status control;         // the control plane's, at the end
};

struct WorkerOptions {
  std::uint64_t rounds = 100;
  ControlPath path = ControlPath::automatic;
  double late_seconds = 5;
  std::size_t blocks = 4;
  PolicySet policies{};
  StepSink* sink = nullptr;          // rank 0's, may be null
  std::filesystem::path journal{};   // rank 0's; empty = none
  std::int32_t late_rank = -1;       // posts its report of every 16th round 30 ms late
  std::string settings{};            // lines of `key = value`
  runtime::MakeLane make_lane{};     // for ranks with a device
  std::uint64_t least_switches = 0;  // runs on for so many, up to 1000 times longer
  bool leaves_nccl = false;          // rounds count from the one in which all masks leave NCCL
  std::string nccl_library{};        // for ranks with a device
  bool has_numbers = false;          // gradients overflow, and evidence varies
};

// Returns a job with all capabilities.
JobFacts job_of_workers(std::int32_t ranks, std::size_t blocks);

// Trains; every rank calls it. In the second half, odd ranks have no samples left.
WorkerTrace train(transport::Communicator& world, const WorkerOptions& options);

// Watches only; every rank calls it, with its own number of steps.
WorkerTrace watch(transport::Communicator& world, const WorkerOptions& options);

// Keeps the coordinator's judgements, and the counts after the last round.
class TallySink final : public StepSink {
 public:
  void record(const StepRecord& record) override;

  ControlCounters counters;
  std::vector<std::uint64_t> reports_of_rank;
};

}  // namespace cox::test
