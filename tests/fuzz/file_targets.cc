// Files written by people and other programs: configurations, JSON, profiles, safetensors,
// manifests of saves, run directories.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "coordinator/core/config.h"
#include "coordinator/io/content_hash.h"
#include "coordinator/io/gzip.h"
#include "coordinator/io/json.h"
#include "coordinator/io/safetensors_header.h"
#include "coordinator/io/save_folder.h"
#include "coordinator/planner/front.h"
#include "metrics/analysis/findings/own_rules.h"
#include "metrics/analysis/findings/published_rules.h"
#include "metrics/analysis/findings/run_diff.h"
#include "metrics/analysis/timeline/rank_lanes.h"
#include "metrics/analysis/whatif/run_model.h"
#include "metrics/analysis/whatif/trace_model.h"
#include "metrics/analysis/whatif/what_if.h"
#include "metrics/records/kernel_trace_file.h"
#include "metrics/records/operator_table_file.h"
#include "metrics/records/pipeline_file.h"
#include "metrics/records/planning_files.h"
#include "metrics/records/run_format.h"
#include "metrics/records/run_reader.h"
#include "metrics/records/step_lines.h"
#include "metrics/records/trace_file.h"
#include "tests/fuzz/targets.h"

namespace cox::fuzz {
namespace {

std::vector<std::string> lines_of(std::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    const std::string_view line = bytes.substr(0, bytes.find('\n'));
    lines.emplace_back(line);
    bytes.remove_prefix(std::min(line.size() + 1, bytes.size()));
  }
  return lines;
}

// An accepted configuration survives writing and reading.
void check_config(const Config& config) {
  const std::string written = text(config);
  Config again;
  for (const auto& [policy, mode] : config.policy_modes) again.policy_modes[policy] = mode;
  expect(apply_text(again, written, "again").ok(), "settings that were written to be read again");
  expect(text(again) == written, "settings to be the same after they were written");
  expect(fingerprint(again) == fingerprint(config), "an equal fingerprint of equal settings");
}

void write(io::JsonWriter& out, const io::Json& value) {
  switch (value.kind) {
    case io::JsonKind::null:
      out.null();
      break;
    case io::JsonKind::boolean:
      out.value(value.boolean);
      break;
    case io::JsonKind::number:
      out.value(value.number);
      break;
    case io::JsonKind::string:
      out.value(value.string);
      break;
    case io::JsonKind::array:
      out.begin_array();
      for (const io::Json& item : value.items) write(out, item);
      out.end_array();
      break;
    case io::JsonKind::object:
      out.begin_object();
      for (const io::JsonMember& member : value.members) {
        out.key(member.name);
        write(out, member.value);
      }
      out.end_object();
      break;
  }
}

std::string written(const io::Json& value) {
  io::JsonWriter out;
  write(out, value);
  return out.take();
}

void check_figures(const diagnosis::JobModel& model) {
  std::size_t members = 0;
  for (const diagnosis::OperationGroup& group : model.graph.groups) members += group.members.size();
  expect(members == model.operations.size(), "each operation in one group");
  const auto figures = diagnosis::what_if(model);
  if (!figures.ok()) return;
  expect(figures->actual_seconds > 0 && figures->ideal_seconds > 0, "steps that take time");
  expect(figures->of_workers.size() == model.ranks.size(), "a figure for each worker");
  expect(2 * figures->culprits.ranks.size() <= model.ranks.size(),
         "at most half of the ranks named");
}

bool is_small(const MemoryProblem& problem) {
  return problem.stages.size() <= 8;
}

}  // namespace

Taken fuzz_config(std::string_view bytes) {
  Config from_file;
  from_file.policy_modes["speed_shares"] = PolicyMode::observe;
  const bool is_file = apply_text(from_file, bytes, "file").ok() && validate(from_file).ok();
  if (is_file) check_config(from_file);
  const std::vector<std::string> lines = lines_of(bytes);
  Config from_flags;
  const auto flags = apply_flags(from_flags, lines);
  const bool has_flags = flags.ok() && flags->rest.size() < lines.size();
  if (has_flags && validate(from_flags).ok()) check_config(from_flags);
  static_cast<void>(config_file(lines, lines));
  Config from_environment;
  static_cast<void>(apply_environment(from_environment, lines).ok());
  return is_file ? Taken::yes : Taken::no;
}

Taken fuzz_json(std::string_view bytes) {
  const auto read = io::parse_json(bytes);
  if (!read.ok()) return Taken::no;
  const std::string once = written(*read);
  const auto again = io::parse_json(once);
  expect(again.ok(), "JSON that was written to be read again");
  expect(written(*again) == once, "JSON to be the same after it was written");
  return Taken::yes;
}

Taken fuzz_gzip(std::string_view bytes) {
  constexpr std::size_t kMost = 4096;
  const auto text = io::gunzip(bytes, kMost);
  expect(!text.ok() || text->size() <= kMost, "no more bytes than were allowed");
  return text.ok() ? Taken::yes : Taken::no;
}

// Returns the record of two ranks whose steps.jsonl has these bytes.
diagnosis::RunRecord run_of(std::string_view bytes) {
  diagnosis::RunRecord run;
  run.ranks.resize(2);
  for (diagnosis::RankRecord& rank : run.ranks) {
    io::StepLines lines(rank);
    lines.take(bytes);
    lines.finish();
  }
  return run;
}

Taken fuzz_phases(std::string_view bytes) {
  const auto model = diagnosis::model_of(run_of(bytes));
  if (!model.ok()) return Taken::no;
  check_figures(*model);
  return Taken::yes;
}

// For any steps, every span has a length, and none lies beyond the picture.
void draw_steps(std::string_view bytes) {
  const diagnosis::TraceSink sink = [](const diagnosis::TraceEvent& event) {
    expect(event.start_ns >= 0 && event.duration_ns >= 0, "spans that have a beginning and an end");
    expect(event.start_ns + event.duration_ns <= diagnosis::kMostTraceNs, "spans in the picture");
  };
  diagnosis::RankLanes lanes(0, {});
  io::StepLineReader lines([&](const diagnosis::StepLine& line) { lanes.draw(line, sink); });
  lines.take(bytes);
  lines.finish();
  lanes.finish(sink);
}

// For any steps, no rule fails, and the budget adds up.
Taken fuzz_steps(std::string_view bytes) {
  const diagnosis::RunRecord run = run_of(bytes);
  if (run.lowest().size() == 0) return Taken::no;
  draw_steps(bytes);
  diagnosis::published_findings(figures_of(run, {}));
  diagnosis::diff_of(run, run, {});
  const diagnosis::RunView view = diagnosis::view_of(run, std::nullopt);
  const diagnosis::Budget budget = diagnosis::budget_of(view, {});
  diagnosis::own_findings({&view, &budget, std::nullopt});
  return Taken::yes;
}

Taken fuzz_kernels(std::string_view bytes) {
  auto kernels = io::parse_kernel_trace(bytes);
  if (!kernels.ok()) return Taken::no;
  const auto trace = diagnosis::kernel_trace_of(*std::move(kernels));
  expect(!trace || trace->exposed_seconds <= trace->communication_seconds * 1.000001,
         "no more exposed communication than there is");
  return Taken::yes;
}

Taken fuzz_pipeline(std::string_view bytes) {
  const auto file = io::parse_pipeline(bytes);
  if (!file.ok()) return Taken::no;
  const auto pipeline = diagnosis::pipeline_of(file->intervals, file->microbatches);
  expect(pipeline && pipeline->bubble >= 0 && pipeline->bubble <= 1, "a bubble that can be");
  diagnosis::published_findings(*pipeline);
  return Taken::yes;
}

Taken fuzz_trace(std::string_view bytes) {
  auto rows = io::parse_trace(bytes);
  if (!rows.ok()) return Taken::no;
  const std::size_t count = rows->size();
  const auto trace = diagnosis::arrange(*std::move(rows));
  if (!trace.ok()) return Taken::no;
  expect(trace->start.size() <= count, "no more operations than rows");
  expect(trace->ranks.size() == trace->dp_ranks * trace->stages, "a rank for each place");
  const auto model = diagnosis::model_of(*trace);
  if (!model.ok()) return Taken::no;
  check_figures(*model);
  return Taken::yes;
}

Taken fuzz_memory_profile(std::string_view bytes) {
  const auto read = io::read_memory_profile(bytes);
  if (!read.ok()) return Taken::no;
  const std::string once = io::to_json(*read);
  const auto again = io::read_memory_profile(once);
  expect(again.ok() && io::to_json(*again) == once,
         "a profile to be the same after it was written");
  for (const planner::RankProfile& rank : read->profiles) {
    if (!is_small(rank.problem)) continue;
    const auto solved = planner::solve_front(rank.problem, {8, 4, 32, 2000});
    expect(!solved.ok() || !solved->front.empty(), "a front of a valid problem");
  }
  return Taken::yes;
}

Taken fuzz_instances(std::string_view bytes) {
  const auto read = io::read_instances(bytes);
  if (!read.ok()) return Taken::no;
  for (const io::PlanInstance& instance : *read) {
    if (!is_small(instance.problem) || instance.budgets.empty()) continue;
    const std::int64_t budget = instance.budgets.front();
    const auto answer =
        planner::solve_budget(instance.problem, budget, 64, planner::TieBreak::named);
    expect(answer.ok(), "an answer to a valid problem");
    expect(!answer->best || answer->best->peak_bytes <= budget, "a plan within its budget");
  }
  return Taken::yes;
}

Taken fuzz_operators(std::string_view bytes) {
  const auto read = io::read_operator_table(bytes);
  if (!read.ok()) return Taken::no;
  const auto again = io::read_operator_table(io::to_json(*read));
  expect(again.ok() && *again == *read, "a table to be the same after it was written");
  OperatorTable twice = *read;
  for (const OperatorRow& row : read->rows) add_row(twice, row.name, row.block, row);
  expect(twice.rows.size() == read->rows.size(), "no new rows of the same operators");
  expect(sum_of(by_operator(*read, "*")).calls == sum_of(read->rows).calls,
         "as many calls by operator as in all");
  expect(by_block(*read).size() <= read->blocks.size(), "at most a row for each block");
  return Taken::yes;
}

// The first two bytes are the size of the data behind the header.
Taken fuzz_safetensors(std::string_view bytes) {
  if (bytes.size() < 2) return Taken::no;
  const auto low = static_cast<unsigned char>(bytes[0]);
  const auto high = static_cast<unsigned char>(bytes[1]);
  const std::uint64_t data_bytes = low + 256u * high;
  const auto read = io::parse_safetensors_header(bytes.substr(2), data_bytes);
  if (!read.ok()) return Taken::no;
  std::uint64_t covered = 0;
  for (const io::SafetensorsEntry& entry : read->entries) {
    expect(entry.begin == covered && entry.end >= entry.begin, "tensors without a gap");
    covered = entry.end;
  }
  expect(covered == data_bytes, "tensors that cover the data");
  const std::string once = io::format_safetensors_header(*read);
  const auto again = io::parse_safetensors_header(once, data_bytes);
  expect(again.ok(), "a header that was written to be read again");
  expect(io::format_safetensors_header(*again) == once, "the same header after it was written");
  return Taken::yes;
}

std::string repaired_manifest(std::string_view bytes) {
  constexpr std::string_view kStart = ",\n  \"hash\": \"";
  const std::string body(bytes.substr(0, bytes.rfind(kStart)));
  return body + std::string(kStart) + io::to_hex(io::content_hash(body)) + "\"\n}\n";
}

Taken fuzz_manifest(std::string_view bytes) {
  static_cast<void>(io::parse_manifest(bytes).ok());
  const auto read = io::parse_manifest(repaired_manifest(bytes));
  if (!read.ok()) return Taken::no;
  for (const io::SavePiece& piece : read->pieces) {
    const auto file = std::ranges::find(read->files, piece.file, &io::SaveFile::name);
    expect(file != read->files.end(), "pieces in files that are listed");
    expect(piece.offset + piece.bytes <= file->bytes, "pieces within their files");
  }
  for (const io::SaveFile& file : read->files)
    expect(file.name.find('/') == std::string::npos, "names of files in the save's own folder");
  const std::string once = io::to_json(*read);
  const auto again = io::parse_manifest(once);
  expect(again.ok(), "a manifest that was written to be read again");
  expect(io::to_json(*again) == once, "the same manifest after it was written");
  return Taken::yes;
}

Taken fuzz_run(std::string_view bytes) {
  const metrics::WrittenRun run = metrics::read_run_json(bytes);
  expect(run.started >= 0 && run.wall_time >= 0, "times of a run from 0 on");
  const std::size_t whole = metrics::kept_bytes(bytes, std::nullopt);
  const std::size_t kept = metrics::kept_bytes(bytes, StepId(3));
  expect(kept <= whole && whole <= bytes.size(), "a resumed run to keep no more than there is");
  expect(kept == 0 || bytes[kept - 1] == '\n', "a resumed run to keep whole lines");
  return Taken::yes;
}

}  // namespace cox::fuzz
