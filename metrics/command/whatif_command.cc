#include <fmt/core.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "coordinator/io/file.h"
#include "metrics/analysis/whatif/run_model.h"
#include "metrics/analysis/whatif/trace_model.h"
#include "metrics/command/commands.h"
#include "metrics/command/whatif_report.h"
#include "metrics/records/run_reader.h"
#include "metrics/records/trace_file.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;

using diagnosis::JobModel;
using Source = WhatIfReport::Source;

Result<JobModel> model_of_trace(const fs::path& path) {
  const auto text = io::read_trace_text(path);
  if (!text.ok()) return text.status();
  auto rows = io::parse_trace(*text);
  if (!rows.ok()) return rows.status().with_context(path.string());
  const auto trace = diagnosis::arrange(*std::move(rows));
  if (!trace.ok()) return trace.status().with_context(path.string());
  auto model = diagnosis::model_of(*trace);
  if (!model.ok()) return model.status().with_context(path.string());
  return model;
}

Result<JobModel> model_of_run(const fs::path& path) {
  const auto run = io::read_whole_run(path);
  if (!run.ok()) return run.status();
  auto model = diagnosis::model_of(*run);
  if (!model.ok()) return model.status().with_context(path.string());
  return model;
}

// Returns "ST" for data/trace-ST.csv.gz, "my-run" for runs/my-run/.
std::string name_of(const fs::path& path, Source source) {
  std::string name = io::folder_name(path);
  if (source == Source::run) return name;
  for (const std::string end : {".gz", ".csv"}) {
    if (name.ends_with(end)) name.resize(name.size() - end.size());
  }
  return name.starts_with("trace-") ? name.substr(6) : name;
}

}  // namespace

Status whatif_command(const WhatIfRequest& request) {
  const fs::path path(request.path);
  std::error_code error;
  const Source source = fs::is_directory(path, error) ? Source::run : Source::trace;
  auto model = source == Source::run ? model_of_run(path) : model_of_trace(path);
  if (!model.ok()) return model.status();
  auto figures = diagnosis::what_if(*model);
  if (!figures.ok()) return figures.status().with_context(path.string());
  const WhatIfReport report{name_of(path, source), source, *std::move(model), *std::move(figures)};
  fmt::print("{}", request.form == ReportForm::json ? whatif_json(report) : whatif_text(report));
  if (request.html.empty()) return ok_status();
  return io::replace_file(request.html, whatif_page(report));
}

}  // namespace cox::tools
