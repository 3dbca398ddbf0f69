// The longer commands of `cox`, which cox_main.cc calls. Each command prints to standard output.
// Text from files is printed without control characters. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/core/operator_table.h"
#include "coordinator/core/status.h"
#include "metrics/analysis/findings/finding.h"
#include "metrics/analysis/findings/run_diff.h"
#include "metrics/command/analysis_report.h"

namespace cox::tools {

enum class ReportForm : std::uint8_t { text, json };
enum class Verdict : std::uint8_t { yes, no };

// ---- `cox journal`: one record of a journal as a message of coordinator/wire/control.proto.

struct JournalRequest {
  std::string journal;                 // the journal, or the run directory that has it
  std::optional<std::uint64_t> round;  // none: the newest start
};
// Writes the bytes of the message to standard output, unless that is a terminal.
Status journal_command(const JournalRequest& request);

// ---- `cox plan`: the cost of memory budgets, for a saved profile or for each instance in a file.

// Sizes are written as in settings: "6GiB". REQUIRES: `profile` or `instances` is given.
struct PlanRequest {
  std::string profile;  // memory_profile.json, or the run directory that has it
  std::string instances;
  std::vector<std::string> budgets;
};

// Returns `no` if every requested budget is below the least peak of some kind of rank, or of each
// instance.
Result<Verdict> plan_command(const PlanRequest& request);

// ---- `cox ops`: the operators of a run's forward passes by time, bytes and FLOPs.

struct OpsRequest {
  std::string run;  // a run directory, a rank's folder in it, or the file of coordinator/io
  std::int32_t rank = 0;
  std::string block = "*";  // a pattern of blocks
  OperatorOrder order = OperatorOrder::time;
  ReportForm form = ReportForm::text;
};
Status ops_command(const OpsRequest& request);

// ---- `cox whatif`: the speed of a job without stragglers, and the causes of the loss.

struct WhatIfRequest {
  std::string path;  // a trace (records/trace_file.h) or a run directory
  std::string html;  // file for a page; empty = no page
  ReportForm form = ReportForm::text;
};
Status whatif_command(const WhatIfRequest& request);

// ---- `cox analyze`: the losses of a run, their causes, and remedies. `cox diff`: a comparison of
// two runs.

enum class ColourWish : std::uint8_t { automatic, always, never };

struct AnalyzeRequest {
  std::string run;
  RuleSet rules = RuleSet::coxswain;
  ReportForm form = ReportForm::text;
  ColourWish colour = ColourWish::automatic;
  std::optional<std::size_t> warmup;        // steps; none: detected (coxswain) or 0 (pytscope)
  std::string trace;                        // empty: the trace in the run directory
  std::string pipeline;                     // empty: likewise (records/pipeline_file.h)
  std::optional<std::size_t> microbatches;  // of the pipeline; none: as in the pipeline's file
  std::optional<double> flops_per_step;
  std::optional<double> peak_flops;
  diagnosis::RecomputeTime recompute = diagnosis::RecomputeTime::apart;
  std::optional<diagnosis::Severity> fail_on;
  std::string html;  // file for a page; empty = no page
};
// Returns `no` if a finding is at least as severe as `fail_on`.
Result<Verdict> analyze_command(const AnalyzeRequest& request);

// ---- `cox report`: writes only the page, at `html`, and prints one line with the place. REQUIRES:
// `html` is given.
Status report_command(const AnalyzeRequest& request);

struct DiffRequest {
  std::string a;
  std::string b;
  RuleSet rules = RuleSet::coxswain;
  ReportForm form = ReportForm::text;
  ColourWish colour = ColourWish::automatic;
  diagnosis::DiffTolerance tolerance;
};
// Returns `no` if the runs differ beyond the tolerances, or by the published rules in anything but
// time.
Result<Verdict> diff_command(const DiffRequest& request);

// ---- `cox trace`: a run over time, as JSON for ui.perfetto.dev.

struct TraceRequest {
  std::string run;
  std::string out;    // a file; empty = standard output
  std::string steps;  // "100:200", "100:" or ":200", both ends included; empty = all
  std::string ranks;  // "0, 4-7"; empty = all
  std::string saves;  // a folder of saves to draw too; empty = none
  std::uint64_t most_events = 1'000'000;
};
// Prints on standard error the parts that the picture leaves out.
Status trace_command(const TraceRequest& request);

// ---- `cox checkpoint`: lists, verifies, compares, merges and splits saves, and seals a save that
// was made or changed by hand. The commands read the manifests of coordinator/io/save_folder.h.

// Prints a line for each save of the directory, from the save's manifest alone. Returns `no` if a
// manifest cannot be read.
Result<Verdict> list_saves(const std::string& directory);
// Reads all of a save, or of all saves of a directory, and prints each fault. Returns `no` on a
// fault.
Result<Verdict> verify_saves(const std::string& path);
// Writes a manifest for the present files of the folder.
Status seal_save(const std::string& save);
// Prints a line for each tensor that differs between two saves or two safetensors files, with the
// number of different elements and the largest distance. Returns `no` if any tensor differs.
Result<Verdict> diff_saves(const std::string& before, const std::string& after);
// Writes each kind of tensors of a save, or of Hugging Face's files, into one file. The result is a
// new folder with all kinds, or the model alone if `to` ends in ".safetensors". Returns
// failed_precondition if `to` exists.
Status merge_saves(const std::string& from, const std::string& to);
// Divides the tensors of a file among `files` files in a folder, with an index. Names follow
// Hugging Face.
Status split_file(const std::string& from, const std::string& to, std::uint32_t files);

}  // namespace cox::tools
