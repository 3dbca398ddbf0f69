// Traces of jobs that are made up: a pipeline of stages with one forward and one backward of each
// micro-batch in turn, or, with several model chunks a stage, all forwards before all backwards.
// The timeline is worked out here, micro-batch by micro-batch, without the code that analyses it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "metrics/records/trace.h"

namespace cox::test {

struct MadeLayout {
  // Programs with several chunks write down sends and receives that have no partner, or do not.
  enum class Recorded : std::uint8_t { with_partner, all };

  int dp_ranks = 2;
  int stages = 4;
  int chunks = 1;  // of the model in each stage
  int microbatches = 4;
  int steps = 3;
  Recorded recorded = Recorded::with_partner;
};

// What an operation takes by itself; of communication: its transfer.
struct MadeOperation {
  diagnosis::OperationKind kind{};
  int step = 0;
  int dp_rank = 0;
  int stage = 0;
  int sequence = 0;
};
using MadeSeconds = std::function<double(const MadeOperation&)>;

// About the same for all operations of a kind; forward 10 ms, backward 20 ms.
double usual_seconds(const MadeOperation& operation);

// Rank = stage * dp_ranks + dp_rank; steps are 10, 11, ... The layer norms' all-reduce takes no
// time, like gc.
std::vector<diagnosis::TraceRow> made_trace(const MadeLayout& layout,
                                            const MadeSeconds& seconds = usual_seconds);

// As a file of records/trace_file.h, every number with all its digits.
std::string csv_of(const std::vector<diagnosis::TraceRow>& rows);

}  // namespace cox::test
