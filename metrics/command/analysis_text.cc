#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "metrics/command/analysis_report.h"
#include "metrics/records/statistics.h"

namespace cox::tools {
namespace {

using diagnosis::BudgetLine;
using diagnosis::Finding;
using diagnosis::Severity;

constexpr std::size_t kLeastColumns = 40;
constexpr std::size_t kMostColumns = 120;

// Page writes lines for a terminal. Widths count characters, not bytes: all texts are printable
// UTF-8.
class Page {
 public:
  explicit Page(const Terminal& terminal)
      : terminal_(terminal), columns_(std::clamp(terminal.columns, kLeastColumns, kMostColumns)) {}

  std::size_t columns() const { return columns_; }
  void line(std::string_view text = {}) { out_ += std::string(text) + "\n"; }
  void heading(const std::string& text) {
    line();
    title(text);
  }
  void title(const std::string& text) {
    for (const std::string& row : rows_of(text, 0, 0)) line(painted(row, "1"));
  }
  void paragraph(const std::string& text, std::size_t indent) { item(text, indent, indent); }
  // Adds a paragraph whose first line begins with `first` blanks.
  void item(const std::string& text, std::size_t first, std::size_t indent) {
    for (const std::string& row : rows_of(text, first, indent)) line(row);
  }
  std::string painted(const std::string& text, const char* code) const {
    if (terminal_.colour == Terminal::Colour::none) return text;
    return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
  }
  std::string bar(double share, std::size_t width) const {
    const auto full = static_cast<std::size_t>(
        std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(width)));
    std::string out;
    for (std::size_t i = 0; i < width; ++i) out += i < full ? "█" : "░";
    return out;
  }
  std::string take() { return std::move(out_); }

  // Returns the number of visible characters. Continuation bytes and colours do not count.
  static std::size_t width_of(std::string_view text) {
    std::size_t width = 0;
    bool is_colour = false;
    for (const char c : text) {
      is_colour = is_colour || c == '\x1b';
      if (!is_colour && (static_cast<unsigned char>(c) & 0xC0) != 0x80) ++width;
      if (c == 'm') is_colour = false;
    }
    return width;
  }

 private:
  // Breaks a text at blanks.
  std::vector<std::string> rows_of(const std::string& text, std::size_t first,
                                   std::size_t indent) const {
    std::vector<std::string> out;
    std::string row(first, ' ');
    std::size_t start = first;  // of the words in this row
    std::size_t width = first;
    std::size_t begin = 0;
    while (begin < text.size()) {
      const std::size_t end = std::min(text.find(' ', begin), text.size());
      const std::string word = text.substr(begin, end - begin);
      const std::size_t letters = width_of(word);
      if (width > start && width + 1 + letters > columns_) {
        out.push_back(row);
        row.assign(indent, ' ');
        start = width = indent;
      }
      if (width > start) row += ' ';
      width += letters + (width > start ? 1 : 0);
      row += word;
      begin = end + 1;
    }
    out.push_back(row);
    return out;
  }

  Terminal terminal_;
  std::size_t columns_;
  std::string out_;
};

// Returns a curve of one character a column. Each shows the median of a stretch of values, between
// the least and the largest median.
std::string sparkline(std::vector<double> values, std::size_t columns) {
  static constexpr std::array<const char*, 8> kLevels = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.size() < 2) return {};
  const std::size_t cells = std::min(columns, values.size());
  std::vector<double> means;
  for (std::size_t c = 0; c < cells; ++c) {
    const auto at = [&](std::size_t k) {
      return values.begin() + static_cast<std::ptrdiff_t>(k * values.size() / cells);
    };
    means.push_back(diagnosis::median_of({at(c), at(c + 1)}));
  }
  const auto [least, most] = std::ranges::minmax(means);
  std::string out;
  for (const double value : means) {
    const double part = most > least ? (value - least) / (most - least) : 0;
    out += kLevels[static_cast<std::size_t>(std::lround(part * 7))];
  }
  return out;
}

// Prints a name and its bar; a narrow terminal has the name on a line of its own.
void put_bar(Page& page, const std::string& name, double share, double seconds) {
  constexpr std::size_t kName = 22;
  constexpr std::size_t kNumbers = 22;  // with the blanks around the numbers
  const bool is_narrow = page.columns() < kName + kNumbers + 8;
  const std::size_t width =
      std::min<std::size_t>(40, page.columns() - kNumbers - (is_narrow ? 0 : kName));
  if (is_narrow) page.line("  " + name);
  const std::string begin =
      is_narrow ? std::string(1, ' ') : fmt::format("  {:<22}", name.substr(0, kName));
  page.line(fmt::format("{} {} {:>6} {:>10}", begin, page.bar(share, width), percent_text(share, 1),
                        seconds_text(seconds)));
}

void put_findings(Page& page, const std::vector<Finding>& findings) {
  if (findings.empty()) {
    page.heading("Findings: none");
    return;
  }
  page.heading(fmt::format("Findings ({})", findings.size()));
  std::size_t number = 0;
  for (const Finding& f : findings) {
    const char* colour = f.severity == Severity::high     ? "1;31"
                         : f.severity == Severity::medium ? "1;33"
                                                          : "1;36";
    const std::string mark = page.painted(fmt::format("[{}]", to_string(f.severity)), colour);
    page.item(fmt::format("{}. {} {}", ++number, mark, printable(f.title)), 2, 5);
    if (f.cost_seconds)
      page.paragraph(fmt::format("costs {} ({} of wall time) · {}", seconds_text(*f.cost_seconds),
                                 percent_text(f.cost_share, 1), f.code),
                     5);
    if (!f.cost_seconds) page.paragraph(f.code, 5);
    page.paragraph(printable(f.detail), 5);
    page.paragraph("→ " + printable(f.suggestion), 5);
  }
}

void put_budget(Page& page, const Analysis& analysis) {
  const bool is_own = analysis.rules == RuleSet::coxswain;
  const auto& published = analysis.figures.efficiency;
  if (!analysis.has_steps() || (!is_own && !published)) return;
  const std::vector<BudgetLine>& lines = is_own ? analysis.budget.lines : published->lines;
  const auto mfu = is_own ? analysis.budget.mfu : published->mfu;
  const double wall = is_own ? analysis.budget.wall_seconds : published->wall_seconds;
  page.heading(fmt::format("Where {} of wall time went{}", seconds_text(wall),
                           is_own && analysis.view.ranks.size() > 1 ? " (mean of the ranks)" : ""));
  for (const BudgetLine& line : lines) {
    if (line.seconds > 0) put_bar(page, line.name, line.fraction, line.seconds);
  }
  if (mfu)
    page.paragraph(fmt::format("MFU {}{}", percent_text(*mfu, 1),
                               analysis.flops_source.empty() ? "" : ": " + analysis.flops_source),
                   2);
  if (!mfu && is_own)
    page.paragraph(
        "All that the model computes counts as useful: FLOPs of a step or the peak of the device "
        "are "
        "not known "
        "(--flops-per-step, --peak-tflops).",
        2);
}

void put_steps(Page& page, const Analysis& analysis) {
  if (!analysis.has_steps()) return;
  const diagnosis::Timing& t = analysis.figures.timing;
  const diagnosis::RankRecord& rank = analysis.run->lowest();
  page.heading(fmt::format("Steps of rank {}", rank.rank));
  page.paragraph(
      fmt::format("{} steps, {} each (median {}, 95th percentile {}), {} a second",
                  grouped(t.steps), seconds_text(t.mean_seconds), seconds_text(t.p50_seconds),
                  seconds_text(t.p95_seconds), significant(t.steps_per_second(), 3)),
      2);
  for (const auto& phase : t.phases)
    put_bar(page, printable(phase.name), phase.fraction, phase.seconds);
  const std::size_t width = page.columns() - 13;
  const std::string times =
      sparkline(row_sums(rank.phases, rank.size(), rank.size() - t.steps), width);
  if (!times.empty()) page.line("  step time  " + times);
}

void put_learning(Page& page, const Analysis& analysis) {
  const diagnosis::Convergence& c = analysis.figures.convergence;
  if (!c.has_loss) return;
  page.heading("Learning");
  page.paragraph(fmt::format("loss {}: best {}, final {}", to_string(c.trend),
                             c.best_loss ? significant(*c.best_loss, 4) : "-",
                             c.final_loss ? significant(*c.final_loss, 4) : "-"),
                 2);
  const diagnosis::RankRecord& rank = analysis.run->lowest();
  const std::string curve =
      sparkline(values_of(rank.scalars, "loss", rank.size()), page.columns() - 13);
  if (!curve.empty()) page.line("  loss       " + curve);
}

void put_memory(Page& page, const diagnosis::MemoryUse& m) {
  if (!m.is_there) return;
  const auto text = [](double bytes) {
    return bytes_text(static_cast<std::uint64_t>(std::max(0.0, bytes)));
  };
  page.heading("Memory");
  page.paragraph(fmt::format("peak {} in tensors, {} reserved; {} of what is reserved is unused",
                             text(m.peak_alloc_bytes), text(m.peak_reserved_bytes),
                             percent_text(m.fragmentation, 0)),
                 2);
}

void put_ranks(Page& page, const Analysis& analysis) {
  const auto& d = analysis.figures.distributed;
  if (!d) return;
  constexpr std::size_t kMostRanks = 32;
  page.heading(fmt::format("Ranks ({}): own work in a step, median", d->ranks.size()));
  double most = 0;
  for (const auto& rank : d->ranks) most = std::max(most, rank.median_compute_seconds);
  constexpr std::size_t kNumbers = 40;
  const std::size_t width =
      std::min<std::size_t>(40, std::max(page.columns(), kNumbers) - kNumbers);
  std::vector<diagnosis::RankFigures> shown = d->ranks;
  if (shown.size() > kMostRanks)
    std::ranges::sort(shown, std::greater<>(), &diagnosis::RankFigures::median_compute_seconds);
  for (std::size_t r = 0; r < std::min(shown.size(), kMostRanks); ++r) {
    const double seconds = shown[r].median_compute_seconds;
    page.line(fmt::format("  rank {:<5} {} {:>10}   last in {:>4}", shown[r].rank,
                          page.bar(most > 0 ? seconds / most : 0, width), seconds_text(seconds),
                          percent_text(shown[r].slowest_fraction, 0)));
  }
  if (shown.size() > kMostRanks)
    page.line(fmt::format("  and {} more that are quicker", shown.size() - kMostRanks));
}

void put_trace(Page& page, const std::optional<diagnosis::KernelTrace>& t) {
  if (!t) return;
  page.heading("Kernels of the trace");
  page.paragraph(
      fmt::format("communication {}, of which {} is hidden by computation and {} ({} of "
                  "the time) is not",
                  seconds_text(t->communication_seconds), seconds_text(t->overlapped_seconds()),
                  seconds_text(t->exposed_seconds), percent_text(t->exposed_fraction(), 0)),
      2);
  for (const auto& [kind, seconds] : t->collective_seconds)
    page.line(fmt::format("  {:<22} {}", kind, seconds_text(seconds)));
}

void put_pipeline(Page& page, const std::optional<diagnosis::Pipeline>& p) {
  if (!p) return;
  constexpr std::size_t kMostStages = 32;
  page.heading(fmt::format("Pipeline of {} stages: idle time", p->stage_bubbles.size()));
  std::string ideal = "how many micro-batches a step has is not known (--microbatches)";
  if (p->ideal_bubble)
    ideal = fmt::format("with {} micro-batches {} is as little as can be, {} is beyond it",
                        *p->microbatches, percent_text(*p->ideal_bubble, 1),
                        percent_text(*p->excess(), 1));
  page.paragraph(
      fmt::format("{} of the stages' time is idle; {}", percent_text(p->bubble, 1), ideal), 2);
  std::size_t count = 0;
  for (const auto& [stage, bubble] : p->stage_bubbles) {
    if (++count > kMostStages) continue;
    put_bar(page, fmt::format("stage {}", stage), bubble, bubble * p->makespan_seconds);
  }
  if (count > kMostStages) page.line(fmt::format("  and {} more", count - kMostStages));
}

// Prints the ranks that others waited for, longest wait first.
void put_waited_for(Page& page, const diagnosis::IdleTime& idle) {
  constexpr std::size_t kMostNamed = 8;
  std::vector<diagnosis::IdleWait> waits = idle.longest_waits();
  for (std::size_t i = 0; i < std::min(waits.size(), kMostNamed); ++i)
    page.line(fmt::format("    for rank {:<5} {:>10} a rank", waits[i].rank,
                          seconds_text(waits[i].seconds)));
  if (waits.size() > kMostNamed)
    page.line(fmt::format("    and less for {} others", waits.size() - kMostNamed));
}

void put_idle(Page& page, const std::optional<diagnosis::IdleTime>& idle) {
  if (!idle || !(idle->watched_seconds > 0)) return;
  double sum = 0;
  for (const double seconds : idle->seconds) sum += seconds;
  page.heading(fmt::format("Idle for {} of {}, by its cause (mean of the ranks)", seconds_text(sum),
                           seconds_text(idle->watched_seconds)));
  for (std::size_t c = 0; c < diagnosis::kIdleCauses; ++c) {
    const auto cause = static_cast<diagnosis::IdleCause>(c);
    const double seconds = idle->seconds[c];
    if (!(seconds > 0)) continue;
    put_bar(page, std::string(to_string(cause)), seconds / idle->watched_seconds, seconds);
    if (cause == diagnosis::IdleCause::waiting_for_rank) put_waited_for(page, *idle);
  }
}

void put_gaps(Page& page, const char* title, const std::vector<std::string>& gaps) {
  if (!gaps.empty()) page.heading(title);
  for (const std::string& gap : gaps) page.paragraph(printable(gap), 2);
}

void put_settings(Page& page, const char* title, const std::vector<diagnosis::SettingDiff>& diffs) {
  if (diffs.empty()) return;
  page.heading(title);
  for (const auto& diff : diffs)
    page.paragraph(fmt::format("{}: {} → {}", printable(diff.key), shown(diff.a), shown(diff.b)),
                   2);
}

// Returns a number with as many digits as `width` allows.
std::string number_or_dash(const std::optional<double>& value, std::size_t width) {
  if (!value) return "-";
  const bool is_whole = *value == std::trunc(*value) && std::fabs(*value) < 1e9;
  std::string out = is_whole ? fixed(*value, 0) : significant(*value, 5);
  for (int digits = 4; out.size() > width && digits > 0; --digits)
    out = significant(*value, digits);
  return out;
}

void put_figures(Page& page, const std::vector<diagnosis::MetricDiff>& metrics) {
  constexpr std::size_t kName = 18;  // with all blanks of a row
  const std::size_t width = std::clamp<std::size_t>((page.columns() - kName) / 3, 7, 13);
  const auto row = [&](const std::string& name, const std::string& a, const std::string& b,
                       const std::string& delta) {
    page.line(
        fmt::format("  {:<13} {:>{w}} {:>{w}} {:>{w}}", name, a, b, delta, fmt::arg("w", width)));
  };
  page.heading("Figures of the lowest ranks");
  row("", "A", "B", "B - A");
  for (const auto& metric : metrics)
    row(metric.key, number_or_dash(metric.a, width), number_or_dash(metric.b, width),
        number_or_dash(metric.delta(), width));
}

void put_plans(Page& page, const std::optional<diagnosis::PlanDifference>& plans) {
  if (!plans) return;
  page.heading("Where the plans part");
  const auto put = [&](const char* name, const std::optional<diagnosis::PlanEvent>& event) {
    if (!event) {
      page.paragraph(fmt::format("{}: the plan changed no more", name), 2);
      return;
    }
    page.paragraph(fmt::format("{}: plan {}, after step {}", name, event->plan, event->step), 2);
    for (const std::string& change : event->changes) page.item("- " + printable(change), 4, 6);
    for (const std::string& reason : event->reasons) page.item("→ " + printable(reason), 4, 6);
  };
  put("A", plans->a);
  put("B", plans->b);
}

}  // namespace

std::string size_text(const Analysis& analysis) {
  if (!analysis.has_steps()) return "no steps recorded";
  const std::size_t ranks = analysis.run->ranks.size();
  const std::size_t warmup = analysis.view.warmup;
  return fmt::format("{} rank{}, {} steps{}", ranks, ranks == 1 ? "" : "s",
                     grouped(analysis.figures.timing.steps),
                     warmup > 0 ? fmt::format(" after {} of warm-up", warmup) : "");
}

std::string analysis_text(const Analysis& analysis, const Terminal& terminal) {
  Page page(terminal);
  page.title(printable(analysis.run->name) + ": " + size_text(analysis));
  put_findings(page, analysis.findings);
  put_budget(page, analysis);
  put_idle(page, analysis.idle);
  put_steps(page, analysis);
  put_ranks(page, analysis);
  put_trace(page, analysis.figures.trace);
  put_pipeline(page, analysis.figures.pipeline);
  put_learning(page, analysis);
  put_memory(page, analysis.figures.memory);
  put_gaps(page, "About the record", analysis.run->gaps);
  return page.take();
}

std::string diff_text(const diagnosis::RunDiff& diff, RuleSet rules, const Terminal& terminal) {
  Page page(terminal);
  page.title(fmt::format("A: {}   B: {}", printable(diff.name_a), printable(diff.name_b)));
  const bool is_own = rules == RuleSet::coxswain;
  const std::vector<std::string>& says = is_own ? diff.differences : diff.published_notes;
  if (is_own && says.empty()) page.heading("Equal within the tolerances");
  if (!says.empty()) page.heading(is_own ? "They differ" : "Reproducibility");
  for (const std::string& text : says) page.paragraph("- " + printable(text), 2);
  if (is_own && !diff.explanation.empty()) page.heading("Why, the likeliest first");
  for (std::size_t i = 0; is_own && i < diff.explanation.size(); ++i)
    page.paragraph(fmt::format("{}. {}", i + 1, printable(diff.explanation[i])), 2);
  put_figures(page, diff.metrics);
  if (is_own && diff.time)
    page.paragraph(
        fmt::format("step time of B by A: {} (95 % sure: {} to {})", fixed(diff.time->ratio, 4),
                    fixed(diff.time->low, 4), fixed(diff.time->high, 4)),
        2);
  if (is_own && diff.loss)
    page.paragraph(
        fmt::format("first different loss: step {} of rank {}, {} and {}", diff.loss->step,
                    diff.loss->rank, significant(diff.loss->a, 9), significant(diff.loss->b, 9)),
        2);
  if (is_own) put_plans(page, diff.plans);
  put_settings(page, "Configuration", diff.config);
  put_settings(page, "Environment", diff.environment);
  if (is_own) put_gaps(page, "About the records", diff.gaps);
  return page.take();
}

}  // namespace cox::tools
