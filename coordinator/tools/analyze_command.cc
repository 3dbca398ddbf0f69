#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>

#include "coordinator/core/operator_table.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/diagnosis/device_peaks.h"
#include "coordinator/diagnosis/published_rules.h"
#include "coordinator/io/file.h"
#include "coordinator/io/kernel_trace_file.h"
#include "coordinator/io/operator_table_file.h"
#include "coordinator/io/run_reader.h"
#include "coordinator/runtime/journal_reader.h"
#include "coordinator/tools/analysis_report.h"
#include "coordinator/tools/commands.h"
#include "coordinator/tools/plan_history.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::size_t columns_of_terminal() {
  const std::string_view text = variable("COLUMNS");
  std::size_t columns = 0;
  std::from_chars(text.data(), text.data() + text.size(), columns);
  if (columns > 0) return columns;
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return is_known ? size.ws_col : Terminal().columns;
}

// A wish on the command line counts most, then the variables that many programs know.
Terminal terminal_of(ColourWish wish) {
  Terminal out{columns_of_terminal(), Terminal::Colour::none};
  const bool is_wanted = !variable("FORCE_COLOR").empty() ||
                         (variable("NO_COLOR").empty() && isatty(STDOUT_FILENO) == 1);
  if (wish == ColourWish::always || (wish == ColourWish::automatic && is_wanted))
    out.colour = Terminal::Colour::ansi;
  return out;
}

// The file that was named, or the one that lies in the run directory.
std::string trace_path(const AnalyzeRequest& request) {
  if (!request.trace.empty()) return request.trace;
  for (const char* name : {"trace.json", "trace.json.gz", "kineto.json", "kineto.json.gz"}) {
    const fs::path path = fs::path(request.run) / name;
    std::error_code error;
    if (fs::is_regular_file(fs::symlink_status(path, error))) return path.string();
  }
  return {};
}

Result<std::optional<diagnosis::KernelTrace>> trace_of(const AnalyzeRequest& request) {
  const std::string path = trace_path(request);
  if (path.empty()) return std::optional<diagnosis::KernelTrace>();
  auto kernels = io::read_kernel_trace(path);
  if (!kernels.ok()) return kernels.status();
  return diagnosis::kernel_trace_of(*std::move(kernels));
}

constexpr std::uintmax_t kMaxJournalBytes = std::uintmax_t{256} << 20;

// Adds what the policies said, where the run directory holds a journal.
void add_decisions(const fs::path& directory, diagnosis::RunRecord& run) {
  const fs::path path = directory / "journal.cox";
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) return;
  if (fs::file_size(path, error) > kMaxJournalBytes) {
    run.gaps.push_back(
        "journal.cox is larger than 256 MiB: reasons of decisions are not looked at");
    return;
  }
  auto journal = runtime::JournalReader::open(path, io::Links::refused);
  Status status = journal.status();
  while (status.ok()) {
    const auto entry = journal->next();
    status = entry.status();
    if (!status.ok() || std::holds_alternative<runtime::JournalEnd>(*entry)) break;
    if (const auto* start = std::get_if<wire::JournalStart>(&*entry); start && start->first)
      diagnosis::keep_newest(run.decisions, start->first->reasons);
    if (const auto* round = std::get_if<wire::JournalRound>(&*entry))
      diagnosis::keep_newest(run.decisions, round->decision.reasons);
  }
  if (!status.ok()) run.gaps.push_back("journal.cox: " + status.message());
}

// FLOPs of a mean step that the operator stream counted; nothing where no operators.json lies.
std::optional<double> counted_flops(const AnalyzeRequest& request, std::int32_t rank) {
  const fs::path run(request.run);
  std::error_code error;
  const fs::path folder = run / ("rank" + std::to_string(rank));
  const fs::path path = (fs::is_directory(folder, error) ? folder : run) / io::kOperatorTableName;
  const auto text = io::read_file(path, io::kMaxOperatorTableBytes, io::Links::refused);
  const auto table =
      text.ok() ? io::read_operator_table(*text) : Result<OperatorTable>(text.status());
  return table.ok() ? flops_of_step(*table) : std::nullopt;
}

std::string device_name(const diagnosis::RunInfo& info) {
  for (const diagnosis::RunSetting& setting : info.environment) {
    if (setting.key == "gpu") return setting.json;
  }
  return {};
}

// FLOP/s of the device, as the settings of the run have it.
std::optional<double> peak_setting(const diagnosis::RunInfo& info) {
  const auto setting =
      std::ranges::find(info.config, "run.peak_flops_per_device", &diagnosis::RunSetting::key);
  if (setting == info.config.end()) return std::nullopt;
  const std::string& text = setting->json;
  double peak = 0;
  std::from_chars(text.data(), text.data() + text.size(), peak);
  return peak > 0 ? std::optional(peak) : std::nullopt;
}

// What the record does not say about FLOPs is counted, and looked up by the device's name.
void find_flops(const AnalyzeRequest& request, const diagnosis::RankRecord& rank,
                diagnosis::BudgetOptions& options, std::string& source) {
  options = {request.flops_per_step, request.peak_flops};
  if (!options.flops_per_step && !rank.info.flops_per_step) {
    options.flops_per_step = counted_flops(request, rank.rank);
    if (options.flops_per_step) source = "FLOPs as operators.json counts them";
  }
  if (options.peak_flops || rank.info.peak_flops) return;
  options.peak_flops = peak_setting(rank.info);
  if (options.peak_flops) return;
  const auto peak = diagnosis::device_peak(device_name(rank.info));
  if (!peak) return;
  options.peak_flops = peak->flops;
  source += fmt::format("{}peak of {}: {:.0f} TFLOP/s", source.empty() ? "" : ", ", peak->device,
                        peak->flops / 1e12);
}

Result<Analysis> analysis_of(const AnalyzeRequest& request, const diagnosis::RunRecord& run) {
  Analysis out;
  out.rules = request.rules;
  out.run = &run;
  auto trace = trace_of(request);
  if (!trace.ok()) return trace.status();
  const bool is_own = request.rules == RuleSet::coxswain;
  if (is_own) out.view = diagnosis::view_of(run, request.warmup);
  // Our own rules leave the warm-up out of the figures too.
  const std::size_t warmup = is_own ? out.view.warmup : request.warmup.value_or(0);
  out.figures = figures_of(run, {warmup, request.flops_per_step, request.peak_flops});
  out.figures.trace = *std::move(trace);
  if (!is_own) {
    out.findings = published_findings(out.figures);
    return out;
  }
  diagnosis::BudgetOptions options;
  find_flops(request, run.lowest(), options, out.flops_source);
  out.budget = diagnosis::budget_of(out.view, options);
  out.findings = diagnosis::own_findings({&out.view, &out.budget, out.figures.trace});
  return out;
}

Status write_page(const AnalyzeRequest& request, const Analysis& analysis) {
  if (request.html.empty()) return ok_status();
  return io::replace_file(request.html, analysis_page(analysis, plan_history(request.run)));
}

bool is_failure(const Analysis& analysis, const AnalyzeRequest& request) {
  for (const diagnosis::Finding& f : analysis.findings) {
    if (request.fail_on && f.severity <= *request.fail_on) return true;
  }
  return false;
}

std::string base_name(const std::string& path) {
  const fs::path whole(path);
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

}  // namespace

Result<Verdict> analyze_command(const AnalyzeRequest& request) {
  auto run = io::read_run(request.run);
  if (!run.ok()) return run.status();
  if (request.rules == RuleSet::coxswain) add_decisions(request.run, *run);
  const auto analysis = analysis_of(request, *run);
  if (!analysis.ok()) return analysis.status();
  const auto& trace = analysis->figures.trace;
  if (trace && trace->impossible_kernels > 0)
    run->gaps.push_back(concat("the trace: ", trace->impossible_kernels,
                               " kernels whose times cannot be are left out"));
  if (Status written = write_page(request, *analysis); !written.ok()) return written;
  fmt::print("{}", request.form == ReportForm::json
                       ? analysis_json(*analysis)
                       : analysis_text(*analysis, terminal_of(request.colour)));
  return is_failure(*analysis, request) ? Verdict::no : Verdict::yes;
}

Status report_command(const AnalyzeRequest& request) {
  auto run = io::read_run(request.run);
  if (!run.ok()) return run.status();
  add_decisions(request.run, *run);
  const auto analysis = analysis_of(request, *run);
  if (!analysis.ok()) return analysis.status();
  if (Status written = write_page(request, *analysis); !written.ok()) return written;
  const std::size_t count = analysis->findings.size();
  fmt::print("{}: {} finding{}{}\n", printable(request.html), count, count == 1 ? "" : "s",
             count == 0 ? "" : "; the first: " + printable(analysis->findings.front().title));
  return ok_status();
}

Result<Verdict> diff_command(const DiffRequest& request) {
  const auto a = io::read_run(request.a);
  if (!a.ok()) return a.status();
  const auto b = io::read_run(request.b);
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
