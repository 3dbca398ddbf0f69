// Agreement: what ranks tell each other outside of the gradients: one outcome for all of them, one
// number each, rows of numbers, and whether they are about to make the same call. Collective; waits
// by polling. Start-up, between steps, and in ManualParallel, whose calls are matched. SlowWait
// tells a person that a wait takes long. Training thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "coordinator/core/log.h"
#include "coordinator/core/status.h"
#include "coordinator/transport/communicator.h"
#include "coordinator/transport/wait.h"

namespace cox::detail {

// Gathers one number from every rank; the result has one entry a rank, on every rank.
Result<std::vector<std::uint64_t>> gather_numbers(transport::Communicator& ranks,
                                                  std::uint64_t mine);

// Returns one outcome for all ranks: ok exactly if it is ok on each, otherwise the error of the
// lowest rank that has one, naming it unless all have the same.
Status agree_on_status(transport::Communicator& ranks, const Status& mine);

// "1, 3, 7": the ranks whose number differs from rank 0's; empty when all agree. Pure.
std::string ranks_that_differ(const std::vector<std::uint64_t>& numbers);

using Row = std::vector<std::int64_t>;

// Gathers a row from every rank, each as long as that rank has it: one row a rank on rank 0,
// nothing on the others. `what`: what ranks are waited for to do, for the error after 10 minutes.
Result<std::vector<Row>> gather_rows(transport::Communicator& ranks, Row mine, const char* what);

enum class CallKind : std::uint64_t {
  sync_parameters,
  sync_buffers,
  all_reduce_gradients,
  close,
  refused,  // this rank's arguments were wrong; it takes part only to tell the others
};

// A collective call as ranks compare it: its kind, the number of its tensors, and their shapes,
// types and whether they get gradients, in order.
struct CallMark {
  CallKind kind = CallKind::close;
  std::uint64_t tensors = 0;
  std::uint64_t layout = 0;
  std::uint64_t place = 0;  // of the very same tensors among those of earlier calls; 0 = no matter
  friend bool operator==(const CallMark&, const CallMark&) = default;
};
CallMark mark_of(CallKind kind, const std::vector<at::Tensor>& tensors);

// Returns invalid_argument with the same text on every rank unless all marks are equal; it says
// what rank 0 and each other rank that differs were about to do. Pure.
Status check_matched(const std::vector<CallMark>& marks);
// Shows all ranks what this one is about to do, before it starts anything whose size depends on it:
// ranks that differ get an error with names where they would hang or mix up each other's numbers.
Status match_calls(transport::Communicator& ranks, const transport::WaitPolicy& wait,
                   const CallMark& mine);

// SlowWait warns once that this rank waits longer for the others than anybody expects. Called
// between the polls of one wait; time is passed in.
class SlowWait {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPatience{30};

  // `where`: the call that waits. `log` must outlive this.
  SlowWait(const Log& log, const char* where, Clock::time_point begin)
      : log_(log), where_(where), due_(begin + kPatience) {}

  void look(Clock::time_point now) {
    if (is_told_ || now < due_) return;
    is_told_ = true;
    log_.warning(
        std::string(where_) + " has waited " + std::to_string(kPatience.count()) +
        " s for the other ranks; one may be saving or evaluating, one whose loop has ended "
        "goes on with Reducer::join(); the status page shows which is behind");
  }

 private:
  const Log& log_;
  const char* where_;
  Clock::time_point due_;
  bool is_told_ = false;
};

}  // namespace cox::detail
