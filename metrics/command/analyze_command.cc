#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "coordinator/core/operator_table.h"
#include "coordinator/core/plan.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/runtime/journal_reader.h"
#include "metrics/analysis/findings/published_rules.h"
#include "metrics/command/analysis_report.h"
#include "metrics/command/commands.h"
#include "metrics/records/host_lines.h"
#include "metrics/records/kernel_trace_file.h"
#include "metrics/records/operator_table_file.h"
#include "metrics/records/pipeline_file.h"
#include "metrics/records/run_reader.h"

namespace cox::tools {
namespace {

namespace fs = std::filesystem;
using diagnosis::PlanEvent;
using diagnosis::PlanHistory;

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

// Picks the colours. The command line's option wins, then FORCE_COLOR and NO_COLOR.
Terminal terminal_of(ColourWish wish) {
  Terminal out{columns_of_terminal(), Terminal::Colour::none};
  const bool is_wanted = !variable("FORCE_COLOR").empty() ||
                         (variable("NO_COLOR").empty() && isatty(STDOUT_FILENO) == 1);
  if (wish == ColourWish::always || (wish == ColourWish::automatic && is_wanted))
    out.colour = Terminal::Colour::ansi;
  return out;
}

// Returns the first of the named files that exists in the run directory; empty if none exists.
std::string file_in(const std::string& run, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const fs::path path = fs::path(run) / name;
    std::error_code error;
    if (fs::is_regular_file(fs::symlink_status(path, error))) return path.string();
  }
  return {};
}

std::string pipeline_file(const AnalyzeRequest& request) {
  if (!request.pipeline.empty()) return request.pipeline;
  return file_in(request.run, {"pipeline.json", "pipeline.json.gz"});
}

std::string trace_file(const AnalyzeRequest& request) {
  if (!request.trace.empty()) return request.trace;
  return file_in(request.run, {"trace.json", "trace.json.gz", "kineto.json", "kineto.json.gz"});
}

Result<std::optional<diagnosis::Pipeline>> pipeline_of(const AnalyzeRequest& request) {
  const std::string path = pipeline_file(request);
  if (path.empty()) {
    if (!request.microbatches) return std::optional<diagnosis::Pipeline>();
    return invalid_argument(
        "--microbatches: expected --pipeline FILE or pipeline.json in the run "
        "directory, found neither");
  }
  const auto file = io::read_pipeline(path);
  if (!file.ok()) return file.status();
  return diagnosis::pipeline_of(file->intervals,
                                request.microbatches ? request.microbatches : file->microbatches);
}

Result<std::optional<diagnosis::KernelTrace>> trace_of(const AnalyzeRequest& request) {
  const std::string path = trace_file(request);
  if (path.empty()) return std::optional<diagnosis::KernelTrace>();
  auto kernels = io::read_kernel_trace(path);
  if (!kernels.ok()) return kernels.status();
  return diagnosis::kernel_trace_of(*std::move(kernels));
}

// DevicePeak is a device's peak rate in dense 16-bit matrix products, from the vendors' data sheets
// as of June 2026.
struct DevicePeak {
  std::string_view name;  // lower case
  double teraflops;       // dense bf16, or fp16 where the device has no bf16
};
constexpr std::array<DevicePeak, 28> kPeaks = {
    {{"b200", 2250},     {"b100", 1750},    {"gb200", 2500}, {"h200", 989}, {"h100", 989},
     {"h100 pcie", 756}, {"h100 nvl", 835}, {"h800", 989},   {"h20", 148},  {"a100", 312},
     {"a800", 312},      {"a40", 149.7},    {"a30", 165},    {"a10", 125},  {"a10g", 70},
     {"a6000", 155},     {"l40", 181},      {"l40s", 362},   {"l4", 121},   {"v100", 125},
     {"t4", 65},         {"4090", 165},     {"4080", 98},    {"3090", 71},  {"mi300x", 1307},
     {"mi250", 362},     {"mi250x", 383},   {"mi210", 181}}};

// Returns the entry with the longest name that is part of `name`, in upper or lower case. "NVIDIA
// L40S" therefore matches neither L40 nor L4. Returns null if no entry matches.
const DevicePeak* device_peak(std::string_view name) {
  const std::string lower = lower_case(name);
  const DevicePeak* best = nullptr;
  for (const DevicePeak& each : kPeaks) {
    const bool is_part = lower.find(each.name) != std::string::npos;
    if (is_part && (best == nullptr || each.name.size() > best->name.size())) best = &each;
  }
  return best;
}

// Returns the FLOPs of a mean step, as the operator stream counted them; nullopt without
// operators.json.
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

// Completes the record's facts about FLOPs: the count from operators.json, and the peak from the
// settings or the device's name.
void find_flops(const AnalyzeRequest& request, const diagnosis::RankRecord& rank,
                diagnosis::BudgetOptions& options, std::string& source) {
  options = {request.flops_per_step, request.peak_flops, request.recompute};
  if (!options.flops_per_step && !rank.info.flops_per_step) {
    options.flops_per_step = counted_flops(request, rank.rank);
    if (options.flops_per_step) source = "FLOPs as operators.json counts them";
  }
  if (options.peak_flops || rank.info.peak_flops) return;
  const double peak_setting =
      number_setting(rank.info, "run.peak_flops_per_device").value_or(0);  // FLOP/s of the device
  if (peak_setting > 0) options.peak_flops = peak_setting;
  if (options.peak_flops) return;
  const DevicePeak* const peak = device_peak(device_name(rank.info));
  if (peak == nullptr) return;
  options.peak_flops = peak->teraflops * 1e12;
  source += fmt::format("{}peak of {}: {:.0f} TFLOP/s", source.empty() ? "" : ", ", peak->name,
                        peak->teraflops);
}

Result<Analysis> analysis_of(const AnalyzeRequest& request, const diagnosis::RunRecord& run) {
  Analysis out;
  out.rules = request.rules;
  out.run = &run;
  auto trace = trace_of(request);
  if (!trace.ok()) return trace.status();
  auto pipeline = pipeline_of(request);
  if (!pipeline.ok()) return pipeline.status();
  const bool is_own = request.rules == RuleSet::coxswain;
  if (is_own) out.view = diagnosis::view_of(run, request.warmup);
  // Coxswain's own rules leave the warm-up out of the figures too.
  const std::size_t warmup = is_own ? out.view.warmup : request.warmup.value_or(0);
  out.figures = figures_of(run, {warmup, request.flops_per_step, request.peak_flops});
  out.figures.trace = *std::move(trace);
  out.figures.pipeline = *std::move(pipeline);
  if (!is_own) {
    out.findings = published_findings(out.figures);
    return out;
  }
  diagnosis::BudgetOptions options;
  find_flops(request, run.lowest(), options, out.flops_source);
  out.budget = diagnosis::budget_of(out.view, options);
  if (!out.has_steps() && out.figures.trace)
    out.budget.wall_seconds = out.figures.trace->wall_seconds;
  out.findings =
      diagnosis::own_findings({&out.view, &out.budget, out.figures.trace, out.figures.pipeline});
  return out;
}

// ---- Contents of the journal: reasons for the rules, plans for pages and comparisons.

// quick: skips a journal of more than 256 MiB, which takes seconds to read.
enum class JournalSize : std::uint8_t { quick, any };

constexpr std::uintmax_t kMaxQuickBytes = std::uintmax_t{256} << 20;
constexpr std::size_t kMostLines = 12;  // most changes, and most reasons, of an event

std::vector<std::string> shortened(std::vector<std::string> lines) {
  if (lines.size() <= kMostLines) return lines;
  const std::size_t more = lines.size() - kMostLines;
  lines.resize(kMostLines);
  lines.push_back("and " + std::to_string(more) + " more");
  return lines;
}

std::vector<std::string> sentences_of(const std::vector<Reason>& reasons) {
  std::vector<std::string> out;
  for (const Reason& reason : reasons)
    out.push_back(concat(reason.policy, ": ", reason.text, " (", reason.outcome, ")"));
  return out;
}

std::uint64_t newest_step(const StepSignals& signals) {
  std::int64_t step = 0;
  for (const RankSignal& report : signals.reports)
    step = std::max(step, static_cast<std::int64_t>(report.step.value()));
  return static_cast<std::uint64_t>(step);
}

// PlanCollector reads the entries of a journal in order and keeps the changes of plans.
class PlanCollector {
 public:
  void take(const wire::JournalStart& start) {
    // A second start before the first round describes the job anew. The first start's answer was
    // never used.
    std::vector<PlanEvent>& events = history_.events;
    const bool is_anew =
        rounds_ == 0 && !events.empty() && events.back().incarnation == start.job.incarnation;
    if (is_anew) events.pop_back();
    rounds_ = 0;
    plan_ = start.state.plan;
    incarnation_ = start.job.incarnation;
    if (start.first && start.first->plan) add(*start.first, 0, 0);
  }
  void take(const wire::JournalRound& round) {
    ++rounds_;
    if (!round.decision.plan) return;
    add(round.decision, round.signals.round.value(), newest_step(round.signals));
  }
  PlanHistory finish(std::string gap) {
    history_.gap = std::move(gap);
    return std::move(history_);
  }

 private:
  void add(const Decision& decision, std::uint64_t round, std::uint64_t step) {
    PlanEvent event{incarnation_, decision.plan->id.number, round, step, {}, {}};
    event.changes = shortened(diff(plan_, *decision.plan));
    event.reasons = shortened(sentences_of(decision.reasons));
    plan_ = *decision.plan;
    std::vector<PlanEvent>& events = history_.events;
    if (events.size() == PlanHistory::kMost) {
      events.erase(events.begin() + PlanHistory::kFirst);
      ++history_.left_out;
    }
    events.push_back(std::move(event));
  }

  PlanHistory history_;
  Plan plan_;
  std::uint32_t incarnation_ = 0;
  std::uint64_t rounds_ = 0;  // since the newest start
};

bool is_passed_over(const fs::path& path, JournalSize size) {
  std::error_code error;
  return size == JournalSize::quick && fs::is_regular_file(fs::symlink_status(path, error)) &&
         fs::file_size(path, error) > kMaxQuickBytes;
}

// Reads journal.cox of the run directory once. Adds the newest reasons of the policies and the
// plans to `run`. A directory without a journal adds nothing. A journal that is skipped, or cannot
// be read to the end, adds a gap.
void read_decisions(const std::string& directory, JournalSize size, diagnosis::RunRecord& run) {
  const fs::path path = fs::path(directory) / "journal.cox";
  if (!io::is_there(path)) return;
  if (is_passed_over(path, size)) {
    run.gaps.push_back("journal.cox is larger than 256 MiB, so its decisions are left out");
    return;
  }
  PlanCollector plans;
  const Status read =
      runtime::read_journal(path, io::Links::refused,
                            {.start =
                                 [&](const wire::JournalStart& start) {
                                   plans.take(start);
                                   if (start.first)
                                     diagnosis::keep_start(run.decisions, start.first->reasons);
                                 },
                             .round =
                                 [&](const wire::JournalRound& round) {
                                   plans.take(round);
                                   diagnosis::keep_newest(run.decisions, round.decision.reasons);
                                 }});
  if (!read.ok()) run.gaps.push_back("journal.cox: " + read.message());
  run.plans = plans.finish(read.ok() ? std::string() : read.message());
}

Status write_page(const AnalyzeRequest& request, const Analysis& analysis) {
  if (request.html.empty()) return ok_status();
  return io::replace_file(request.html, analysis_page(analysis));
}

// A directory without steps may still have a trace or a schedule, which is then analysed alone.
Result<diagnosis::RunRecord> record_of(const AnalyzeRequest& request) {
  auto read = io::read_run(request.run);
  std::error_code error;
  const bool is_alone = !read.ok() && read.status().code() == StatusCode::not_found &&
                        fs::is_directory(request.run, error) &&
                        (!trace_file(request).empty() || !pipeline_file(request).empty());
  if (!is_alone) return read;
  diagnosis::RunRecord run;
  run.name = io::folder_name(request.run);
  run.ranks.emplace_back();
  run.gaps = {read.status().message() + ". Step times, ranks, memory and losses are not known."};
  return run;
}

// Reads the requested run into `run`, which must outlive the analysis.
Result<Analysis> look_at(const AnalyzeRequest& request, diagnosis::RunRecord& run) {
  auto read = record_of(request);
  if (!read.ok()) return read.status();
  run = *std::move(read);
  const bool is_paged = !request.html.empty();
  if (is_paged || request.rules == RuleSet::coxswain)
    read_decisions(request.run, is_paged ? JournalSize::any : JournalSize::quick, run);
  auto analysis = analysis_of(request, run);
  if (!analysis.ok()) return analysis;
  if (request.rules == RuleSet::coxswain) {
    const auto folders = io::folders_of_run(request.run);
    const auto tracks = folders.ok() ? io::read_host_tracks(*folders, run.gaps)
                                     : std::vector<diagnosis::HostTrack>();
    if (!tracks.empty()) analysis->idle = diagnosis::idle_time_of(tracks);
  }
  const auto& trace = analysis->figures.trace;
  if (trace && trace->impossible_kernels > 0)
    run.gaps.push_back(concat("the trace: ", trace->impossible_kernels,
                              " kernels with impossible times are left out"));
  return analysis;
}

bool is_failure(const Analysis& analysis, const AnalyzeRequest& request) {
  for (const diagnosis::Finding& f : analysis.findings) {
    if (request.fail_on && f.severity <= *request.fail_on) return true;
  }
  return false;
}

Result<diagnosis::RunRecord> record_of(const std::string& directory, RuleSet rules) {
  auto run = io::read_run(directory);
  if (run.ok() && rules == RuleSet::coxswain) read_decisions(directory, JournalSize::quick, *run);
  return run;
}

// Refuses a warm-up that leaves no steps to compare.
Status check_warmup(const char* name, const diagnosis::RunRecord& run, std::size_t warmup) {
  std::size_t steps = run.lowest().size();
  for (const diagnosis::RankRecord& rank : run.ranks) steps = std::min(steps, rank.size());
  if (warmup == 0 || warmup < steps) return ok_status();
  return invalid_argument("--warmup: expected fewer than the ", steps, " steps that each rank of ",
                          name, " has, found ", warmup);
}

}  // namespace

Result<Verdict> analyze_command(const AnalyzeRequest& request) {
  diagnosis::RunRecord run;
  const auto analysis = look_at(request, run);
  if (!analysis.ok()) return analysis.status();
  if (Status written = write_page(request, *analysis); !written.ok()) return written;
  fmt::print("{}", request.form == ReportForm::json
                       ? analysis_json(*analysis)
                       : analysis_text(*analysis, terminal_of(request.colour)));
  return is_failure(*analysis, request) ? Verdict::no : Verdict::yes;
}

Status report_command(const AnalyzeRequest& request) {
  diagnosis::RunRecord run;
  const auto analysis = look_at(request, run);
  if (!analysis.ok()) return analysis.status();
  if (Status written = write_page(request, *analysis); !written.ok()) return written;
  const std::size_t count = analysis->findings.size();
  fmt::print("{}: {} finding{}{}\n", printable(request.html), count, count == 1 ? "" : "s",
             count == 0 ? "" : "; the first: " + printable(analysis->findings.front().title));
  return ok_status();
}

Result<Verdict> diff_command(const DiffRequest& request) {
  const auto a = record_of(request.a, request.rules);
  if (!a.ok()) return a.status();
  const auto b = record_of(request.b, request.rules);
  if (!b.ok()) return b.status();
  const std::size_t warmup = request.tolerance.warmup_steps;
  if (Status fits = check_warmup("A", *a, warmup); !fits.ok()) return fits;
  if (Status fits = check_warmup("B", *b, warmup); !fits.ok()) return fits;
  const diagnosis::RunDiff diff = diff_of(*a, *b, request.tolerance);
  fmt::print("{}", request.form == ReportForm::json
                       ? diff_json(diff, request.rules, io::folder_name(request.a),
                                   io::folder_name(request.b))
                       : diff_text(diff, request.rules, terminal_of(request.colour)));
  const bool is_equal = request.rules == RuleSet::pytscope
                            ? diff.is_identical && diff.config.empty() && diff.environment.empty()
                            : diff.differences.empty();
  return is_equal ? Verdict::yes : Verdict::no;
}

}  // namespace cox::tools
