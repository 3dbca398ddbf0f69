// The text of a run directory, as docs/run-directory.md describes it: one JSON object a step, one
// for the run. Readable by tools for this layout; our own fields stand beside theirs. Also what a
// resumed run reads of it again. Pure.
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

// RunInfo is the run as run.json describes it. Keys of `environment` that tools know: platform,
// machine, node, cpu_count, torch, cuda, gpu, gpu_count, cudnn_benchmark, cudnn_deterministic. No
// tokens, no paths.
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
  std::uint64_t dropped_rows = 0;  // the ring was full, or the disk
};

std::string run_json(const RunInfo& info, const RunProgress& progress);

// What a later start of the job reads of run.json.
struct WrittenRun {
  std::string name;    // as it stands between its quotes; empty when it is missing or torn
  double started = 0;  // 0 when unknown, like wall_time
  double wall_time = 0;
};

// Reads run.json as we write it. It may be torn or altered: what is not as it should be is left
// out.
WrittenRun read_run_json(std::string_view json);

// Returns how many bytes of steps.jsonl to keep: whole lines only, without the newest ones from
// `resume_step` on.
std::size_t kept_bytes(std::string_view lines, std::optional<StepId> resume_step);

// One line with its newline. Non-finite numbers are the bare words NaN, Infinity and -Infinity.
// `buckets` of the step, where they are known, or null.
std::string step_line(const StepRow& row, const StepBuckets* buckets = nullptr);

}  // namespace cox::metrics
