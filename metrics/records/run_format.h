// Formats the text of a run directory (docs/run-directory.md): one JSON object for each step, one
// for the run. The layout suits other tools; our own fields stand beside theirs. Also parses the
// parts that a resumed run needs. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "coordinator/core/units.h"
#include "metrics/records/step_row.h"

namespace cox::metrics {

using FieldValue = std::variant<std::string, double, std::int64_t, bool>;
struct NamedField {
  std::string name;
  FieldValue value;
};

// RunInfo is the run as run.json describes it. Tools know these keys of `environment`: platform,
// machine, node, cpu_count, torch, cuda, gpu, gpu_count, cudnn_benchmark, cudnn_deterministic.
// Holds no tokens and no paths.
struct RunInfo {
  std::string name;
  RankId rank{};
  std::int32_t world_size = 1;
  double started = 0;  // Unix time
  std::vector<NamedField> config;
  std::vector<NamedField> environment;
  std::vector<NamedField> variables;  // environment.env
};

struct RunProgress {
  double wall_time = 0;  // seconds of running, all starts together
  std::uint64_t n_steps = 0;
  std::uint64_t dropped_rows = 0;  // the ring or the disk was full
};

std::string run_json(const RunInfo& info, const RunProgress& progress);

// The part of run.json that a later start of the job reads.
struct WrittenRun {
  std::string name;    // as between the quotes in the file; empty if missing or torn
  double started = 0;  // 0 when unknown, like wall_time
  double wall_time = 0;
};

// Parses run.json as written by run_json(). Leaves out members that are torn, altered or missing.
WrittenRun read_run_json(std::string_view json);

// Returns how many bytes of steps.jsonl to keep: whole lines only, without the newest ones from
// `resume_step` on.
std::size_t kept_bytes(std::string_view lines, std::optional<StepId> resume_step);

// Returns one line with its newline. Non-finite numbers are the bare words NaN, Infinity and
// -Infinity. `buckets` are those of the step; null if unknown.
std::string step_line(const StepRow& row, const StepBuckets* buckets = nullptr);

}  // namespace cox::metrics
