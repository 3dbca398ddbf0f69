// A trace of a training job, one row for each operation that a rank ran in a step, and its checked
// form. The columns are those of the published straggler traces (docs/what-if.md).
//
//   file (records/trace_file.h) -> TraceRows -> arrange() -> Trace -> model_of() -> JobModel ->
//   what_if()
//
// A Trace is a full block: every step and data-parallel rank has the same operations. Steps that
// break this, or whose clocks cannot be right, are left out and named; where nothing is left, or a
// rank is missing altogether, there is no Trace. Pure; any thread.
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

// In the order of their names, which decides between operations that start at the same time.
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

// REQUIRES of arrange(): times are finite and not negative, all numbers below the limits.
struct TraceRow {
  std::int64_t step = 0;
  std::int32_t dp_rank = 0;
  std::int32_t stage = 0;
  std::int32_t rank = 0;  // in the job
  OperationKind kind{};
  std::int32_t sequence = 0;       // of this kind in this step on this rank, by start time
  std::int32_t chunk = -1;         // of the model, within the stage; -1 = does not apply
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
// By less than this clocks may disagree without a word.
inline constexpr double kClockSeconds = 10e-3;

// One operation as every step and data-parallel rank has it.
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
  std::vector<std::string> gaps;    // what was left out, and why; a sentence each

  std::size_t at(std::size_t step, std::size_t key, std::size_t dp_rank) const {
    return (step * keys.size() + key) * dp_ranks + dp_rank;
  }
  double end(std::size_t place) const { return start[place] + seconds[place]; }
};

// Returns the trace of the steps that are whole. The order of the rows does not matter.
//
// A step is left out, with a sentence in `gaps`, when a rank lacks operations that most have or has
// others, when an operation on a rank starts kClockSeconds or more before the one before it of its
// kind (its clock ran backwards), and when a forward or backward pass took no time at all.
// Errors (invalid_argument): no rows; an operation that is there twice; a rank in two places; a
// number missing among dp ranks or stages; no step that is whole.
Result<Trace> arrange(std::vector<TraceRow> rows);

}  // namespace cox::diagnosis
