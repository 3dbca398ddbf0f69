#include <fmt/core.h>

#include <filesystem>
#include <string>

#include "coordinator/diagnosis/run_diff.h"
#include "coordinator/io/run_reader.h"
#include "coordinator/tools/analysis_report.h"
#include "coordinator/tools/commands.h"
#include "coordinator/tools/journal_decisions.h"

namespace cox::tools {
namespace {

std::string base_name(const std::string& path) {
  const std::filesystem::path whole(path);
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

Result<diagnosis::RunRecord> record_of(const std::string& directory, RuleSet rules) {
  auto run = io::read_run(directory);
  if (run.ok() && rules == RuleSet::coxswain) read_decisions(directory, JournalSize::quick, *run);
  return run;
}

}  // namespace

Result<Verdict> diff_command(const DiffRequest& request) {
  const auto a = record_of(request.a, request.rules);
  if (!a.ok()) return a.status();
  const auto b = record_of(request.b, request.rules);
  if (!b.ok()) return b.status();
  const diagnosis::RunDiff diff = diff_of(*a, *b, request.tolerance);
  fmt::print("{}", request.form == ReportForm::json
                       ? diff_json(diff, request.rules, base_name(request.a), base_name(request.b))
                       : diff_text(diff, request.rules, terminal_of(request.colour)));
  const bool is_equal = request.rules == RuleSet::pytscope
                            ? diff.is_identical && diff.config.empty() && diff.environment.empty()
                            : diff.differences.empty();
  return is_equal ? Verdict::yes : Verdict::no;
}

}  // namespace cox::tools
