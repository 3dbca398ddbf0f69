// Trace is the checked form of a training job's trace: one row for each operation that a rank ran
// in a step. The columns are those of the published straggler traces (docs/what-if.md).
//
//   file (records/trace_file.h) -> TraceRow, one an operation -> arrange() -> Trace
//   Trace -> model_of() -> JobModel -> what_if()
//
// A Trace is a full block: every step and data-parallel rank has the same operations. Other steps,
// and steps whose clocks cannot be right, are left out and named. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/status.h"

namespace cox::diagnosis {

// Sorted by name. This order decides between operations that start at the same time.
enum class OperationKind : std::uint8_t {
  backward_compute,
  backward_recv,
  backward_send,
  embedding_grads_all_reduce,
  forward_compute,
  forward_recv,
  forward_send,
  gc,
  grads_reduce_scatter,
  layernorm_grads_all_reduce,
  optimizer,
  optimizer_clip_main_grad,
  params_all_gather,
  separate_grads_all_reduce,
};

inline constexpr std::array<std::string_view, 14> kOperationKindNames = {
    "backward-compute",
    "backward-recv",
    "backward-send",
    "embedding-grads-all-reduce",
    "forward-compute",
    "forward-recv",
    "forward-send",
    "gc",
    "grads-reduce-scatter",
    "layernorm-grads-all-reduce",
    "optimizer",
    "optimizer-clip-main-grad",
    "params-all-gather",
    "separate-grads-all-reduce"};

constexpr std::string_view to_string(OperationKind kind) {
  return kOperationKindNames[static_cast<std::size_t>(kind)];
}
std::optional<OperationKind> operation_kind_of(std::string_view name);

// TraceRow is one operation. REQUIRES for arrange(): times are finite and not negative, and all
// numbers are below the limits.
struct TraceRow {
  std::int64_t step = 0;
  std::int32_t dp_rank = 0;
  std::int32_t stage = 0;
  std::int32_t rank = 0;  // in the job
  OperationKind kind{};
  std::int32_t sequence = 0;       // number within step, rank and kind, by start time
  std::int32_t chunk = -1;         // model chunk within the stage; -1 = does not apply
  std::int32_t global_chunk = -1;  // within the model
  double start_seconds = 0;        // since the step began
  double seconds = 0;
  std::uint32_t line = 0;  // in its file, for messages
};

inline constexpr std::size_t kMaxTraceRows = std::size_t{1} << 23;
inline constexpr std::int32_t kMaxTraceNumber = 1 << 20;  // dp_rank, rank, sequence, chunks
inline constexpr std::int32_t kMaxTraceStage = 1023;
inline constexpr std::int64_t kMaxTraceStep = std::int64_t{1} << 48;
inline constexpr double kMaxTraceSeconds = 1e9;
// Clock differences below this limit are ignored.
inline constexpr double kClockSeconds = 10e-3;

// TraceKey identifies one operation within a step. Every step and data-parallel rank has the same
// keys.
struct TraceKey {
  std::int32_t stage = 0;
  OperationKind kind{};
  std::int32_t sequence = 0;
  std::int32_t chunk = -1;
  std::int32_t global_chunk = -1;
};

struct Trace {
  std::size_t dp_ranks = 0;
  std::size_t stages = 0;
  std::vector<TraceKey> keys;       // sorted by stage, kind, sequence
  std::vector<std::int64_t> steps;  // ascending
  std::vector<std::int32_t> ranks;  // [dp_rank][stage]
  std::vector<double> start;        // [step][key][dp_rank], seconds since the step began
  std::vector<double> seconds;      // likewise
  std::vector<std::string> gaps;    // data left out, and why; a sentence each

  std::size_t at(std::size_t step, std::size_t key, std::size_t dp_rank) const {
    return (step * keys.size() + key) * dp_ranks + dp_rank;
  }
  double end(std::size_t place) const { return start[place] + seconds[place]; }
};

// Returns the trace of the whole steps. The order of the rows does not matter. A step is left out,
// with a sentence in `gaps`, if
//   - a rank lacks operations that most ranks have, or has others,
//   - an operation starts kClockSeconds or more before its predecessor of the same kind on the rank
//     (the clock ran backwards), or
//   - a forward or backward pass took no time at all.
// Errors (invalid_argument): no rows; a duplicate operation; a rank in two places; a missing number
// among dp ranks or stages; no whole step.
Result<Trace> arrange(std::vector<TraceRow> rows);

}  // namespace cox::diagnosis
