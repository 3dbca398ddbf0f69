// The commands of `cox` that are more than a few lines, as cox_main.cc calls them. Each prints to
// standard output; what comes from files is printed without control characters. One thread.
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
  std::string journal;                 // or the run directory that has it
  std::optional<std::uint64_t> round;  // none: the newest start
};
// Writes the bytes of the message to standard output, unless that is a terminal.
Status journal_command(const JournalRequest& request);

// ---- `cox plan`: what memory budgets cost, of a saved profile or of each instance in a file.

// Sizes as in settings: "6GiB". REQUIRES: `profile` or `instances` is given.
struct PlanRequest {
  std::string profile;  // memory_profile.json, or the run directory that has it
  std::string instances;
  std::vector<std::string> budgets;
};

// `no` where each budget that was asked for is below the least peak of some kind of rank, or of
// each instance.
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

// ---- `cox whatif`: how much faster a job would be without stragglers, and who costs it.

struct WhatIfRequest {
  std::string path;  // a trace (records/trace_file.h) or a run directory
  std::string html;  // where a page goes too; empty = nowhere
  ReportForm form = ReportForm::text;
};
Status whatif_command(const WhatIfRequest& request);

// ---- `cox analyze`: what a run lost, why, and what to change; `cox diff`: two runs beside each
// other.

enum class ColourWish : std::uint8_t { automatic, always, never };

struct AnalyzeRequest {
  std::string run;
  RuleSet rules = RuleSet::coxswain;
  ReportForm form = ReportForm::text;
  ColourWish colour = ColourWish::automatic;
  std::optional<std::size_t> warmup;        // steps; none: found (coxswain) or 0 (pytscope)
  std::string trace;                        // else the one that lies in the run directory
  std::string pipeline;                     // likewise (records/pipeline_file.h)
  std::optional<std::size_t> microbatches;  // of the pipeline; else as its file says
  std::optional<double> flops_per_step;
  std::optional<double> peak_flops;
  diagnosis::RecomputeTime recompute = diagnosis::RecomputeTime::apart;
  std::optional<diagnosis::Severity> fail_on;
  std::string html;  // where a page goes too; empty = nowhere
};
// `no` when a finding is at least as severe as `fail_on`.
Result<Verdict> analyze_command(const AnalyzeRequest& request);

// ---- `cox report`: the page alone, at `html`, and one line that says where it is. REQUIRES:
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
// `no` when the runs differ beyond the tolerances; by the published rules, in anything but time.
Result<Verdict> diff_command(const DiffRequest& request);

// ---- `cox trace`: a run over time, as JSON for ui.perfetto.dev.

struct TraceRequest {
  std::string run;
  std::string out;    // a file; empty = standard output
  std::string steps;  // "100:200", "100:" or ":200", both ends included; empty = all
  std::string ranks;  // "0, 4-7"; empty = all
  std::string saves;  // a folder of saves, which are drawn too; empty = none
  std::uint64_t most_events = 1'000'000;
};
// Tells on standard error what is not in the picture.
Status trace_command(const TraceRequest& request);

// ---- `cox checkpoint`: what lies in a folder of saves, whether it is whole, and taking over a
// save that was made or changed by hand. They read the manifests of coordinator/io/save_folder.h.

// Prints a line for each save of the directory, from its manifest alone. `no` when one cannot be
// read.
Result<Verdict> list_saves(const std::string& directory);
// Reads all of a save, or of all saves of a directory, and prints what is wrong. `no` when anything
// is.
Result<Verdict> verify_saves(const std::string& path);
// Writes a manifest for the files that lie in the folder now.
Status seal_save(const std::string& save);
// Prints a line for each tensor that differs between two saves or two safetensors files: in how
// many elements, and by how much at most. `no` when one does.
Result<Verdict> diff_saves(const std::string& before, const std::string& after);
// Writes each kind of tensors of a save, or of Hugging Face's files, into one file: all kinds into
// a new folder, or the model alone where `to` ends in ".safetensors". failed_precondition where
// `to` exists.
Status merge_saves(const std::string& from, const std::string& to);
// Divides the tensors of a file among `files` files in a folder, with an index, as Hugging Face
// calls them.
Status split_file(const std::string& from, const std::string& to, std::uint32_t files);

}  // namespace cox::tools
