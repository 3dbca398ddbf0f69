// Made-up traces of jobs: a pipeline of stages that alternates forward and backward micro-batches,
// or, with several model chunks a stage, runs all forwards before all backwards. Computes the
// timeline micro-batch by micro-batch, without the analysing code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "metrics/records/trace.h"

namespace cox::test {

struct MadeLayout {
  // Whether programs with several chunks record sends and receives without a partner.
  enum class Recorded : std::uint8_t { with_partner, all };

  int dp_ranks = 2;
  int stages = 4;
  int chunks = 1;  // model chunks in each stage
  int microbatches = 4;
  int steps = 3;
  Recorded recorded = Recorded::with_partner;
};

// An operation's own time. For communication: the transfer.
struct MadeOperation {
  diagnosis::OperationKind kind{};
  int step = 0;
  int dp_rank = 0;
  int stage = 0;
  int sequence = 0;
};
using MadeSeconds = std::function<double(const MadeOperation&)>;

// Returns about the same time for all operations of a kind; forward 10 ms, backward 20 ms.
double usual_seconds(const MadeOperation& operation);

// Returns the rows. Rank = stage * dp_ranks + dp_rank; steps are 10, 11, ... The layer norms'
// all-reduce takes no time, like gc.
std::vector<diagnosis::TraceRow> made_trace(const MadeLayout& layout,
                                            const MadeSeconds& seconds = usual_seconds);

// Returns a file for records/trace_file.h, with all digits of every number.
std::string csv_of(const std::vector<diagnosis::TraceRow>& rows);

}  // namespace cox::test
