#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "coordinator/core/settings/settings.h"
#include "coordinator/core/text.h"
#include "coordinator/core/words.h"
#include "coordinator/io/file.h"
#include "coordinator/io/json.h"
#include "coordinator/planner/front.h"
#include "metrics/command/commands.h"
#include "metrics/command/run_file.h"
#include "metrics/records/planning_files.h"

namespace cox::tools {
namespace {

constexpr std::size_t kMostLabels = 1 << 15;
constexpr std::size_t kCurveRows = 16;
constexpr std::size_t kCurveWidth = 40;
constexpr std::size_t kMostNameColumns = 60;
// Larger limits than a job's, because no step waits for this solver.
constexpr planner::FrontLimits kLimits{1024, 192, 4096, 8'000'000};

using Budgets = std::vector<std::int64_t>;

// Returns "5.983 GiB", "512 B". Budgets are compared with peaks, which needs more digits than
// bytes_text() gives.
std::string size_text(std::int64_t bytes) {
  constexpr std::array<std::string_view, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.3f} {}", value, kUnits[unit]);
}

std::int64_t step_us(const MemoryProblem& problem) {
  std::int64_t sum = 0;
  for (const Stage& s : problem.stages) sum += s.forward_us + s.backward_us;
  return sum;
}

std::string added_text(const MemoryProblem& problem, std::int64_t added_us) {
  const auto step = static_cast<double>(std::max<std::int64_t>(1, step_us(problem)));
  const auto added = static_cast<double>(added_us);
  return fmt::format("{:.3f} ms ({:.2f} %)", added / 1000, 100 * added / step);
}

// Returns the fastest point that fits the budget, or else the point of least peak.
const MemoryPoint& nearest(const MemoryFront& front, std::int64_t budget) {
  return front[lookup(front, budget).value_or(0)];
}

std::string heading(const planner::RankProfile& profile, const planner::SolvedFront& solved,
                    std::size_t index) {
  const MemoryProblem& problem = profile.problem;
  const std::vector<std::size_t> ranks(profile.ranks.begin(), profile.ranks.end());
  std::string out = fmt::format(
      "profile {}, {}: {} stages, base {}, {:.3f} ms a step with everything kept\n"
      "{} plans from {} to {}, ",
      index, ranks.empty() ? "ranks not named" : ranks_text(ranks, 0), problem.stages.size(),
      size_text(problem.base_bytes), static_cast<double>(step_us(problem)) / 1000,
      solved.front.size(), size_text(solved.front.front().peak_bytes),
      size_text(solved.front.back().peak_bytes));
  if (solved.is_exact()) return out + "each the fastest within its peak\n";
  return out + "none slower than the optimum by more than " + added_text(problem, solved.gap_us) +
         "\n";
}

// Returns "3 at 1, 9 at 4, 2 in full".
std::string levels_text(const std::vector<MemoryAction>& actions) {
  std::string out;
  for (unsigned n = 1; n <= kRecomputeLevels; ++n) {
    const auto count = std::ranges::count(actions, recompute_level(n));
    if (count > 0) out += fmt::format("{}{} at {}", out.empty() ? "" : ", ", count, n);
  }
  const auto in_full = std::ranges::count(actions, MemoryAction::recompute);
  if (in_full > 0) out += fmt::format("{}{} in full", out.empty() ? "" : ", ", in_full);
  return out.empty() ? "-" : out;
}

bool has_levels(const MemoryProblem& problem) {
  return std::ranges::any_of(problem.stages, [](const Stage& stage) {
    return std::ranges::any_of(kActionsInOrder, [&stage](MemoryAction action) {
      return level_of(action) > 0 && stage.option(action).allowed;
    });
  });
}

std::string budget_table(const planner::RankProfile& profile, const MemoryFront& front,
                         const Budgets& budgets) {
  std::string out =
      fmt::format("{:<12} {:<5} {:<12} {:<24}", "budget", "fits", "peak", "added time");
  for (const std::string_view name : kMemoryKindNames) out += fmt::format(" {:>9}", name);
  const bool shows_levels = has_levels(profile.problem);
  if (shows_levels) out += fmt::format("  recomputed at levels (of {})", kRecomputeLevels);
  out += "\n";
  for (const std::int64_t budget : budgets) {
    const bool fits = lookup(front, budget).has_value();
    const MemoryPoint& point = nearest(front, budget);
    out += fmt::format("{:<12} {:<5} {:<12} {:<24}", size_text(budget), fits ? "yes" : "no",
                       size_text(point.peak_bytes), added_text(profile.problem, point.added_us));
    for (std::size_t a = 0; a < kMemoryKinds; ++a)
      out += fmt::format(" {:>9}",
                         std::ranges::count(point.actions, static_cast<MemoryAction>(a), kind_of));
    if (shows_levels) out += "  " + levels_text(point.actions);
    out += "\n";
    if (!fits)
      out += fmt::format(
          "  nothing fits that budget; shown is the plan of least peak: give at least {} B, a "
          "smaller batch, or a tier to offload to\n",
          point.peak_bytes);
  }
  return out;
}

std::string action_table(const planner::RankProfile& profile, const MemoryFront& front,
                         const Budgets& budgets) {
  std::size_t width = 5;
  for (const std::string& name : profile.stage_names)
    width = std::max(width, printable(name).size());
  width = std::min(width, kMostNameColumns);
  std::string out = fmt::format("{:<{}}", "stage", width);
  for (const std::int64_t budget : budgets) out += fmt::format("  {:<12}", size_text(budget));
  out += "\n";
  for (std::size_t i = 0; i < profile.problem.stages.size(); ++i) {
    const auto& options = profile.problem.stages[i].options;
    const auto choices =
        std::ranges::count_if(options, [](const StageOption& o) { return o.allowed; });
    if (choices < 2) continue;
    out += fmt::format("{:<{}.60}", printable(profile.stage_names[i]), width);
    for (const std::int64_t budget : budgets)
      out += fmt::format("  {:<12}", to_string(nearest(front, budget).actions[i]));
    out += "\n";
  }
  return out;
}

std::string curve(const planner::RankProfile& profile, const MemoryFront& front) {
  const std::int64_t low = front.front().peak_bytes;
  const std::int64_t high = front.back().peak_bytes;
  const std::size_t rows = low == high ? 1 : kCurveRows;
  const auto most = static_cast<double>(std::max<std::int64_t>(1, front.front().added_us));
  std::string out = "time against budget\n";
  for (std::size_t row = 0; row < rows; ++row) {
    const auto part = static_cast<std::int64_t>(row);
    const auto all = static_cast<std::int64_t>(std::max<std::size_t>(1, rows - 1));
    const std::int64_t budget = low + (high - low) / all * part + (high - low) % all * part / all;
    const MemoryPoint& point = nearest(front, budget);
    const auto length = static_cast<std::size_t>(static_cast<double>(point.added_us) / most *
                                                 static_cast<double>(kCurveWidth));
    out += fmt::format("{:>12} |{} {}\n", size_text(budget), std::string(length, '#'),
                       added_text(profile.problem, point.added_us));
  }
  return out;
}

Result<Budgets> parse_budgets(const std::vector<std::string>& texts) {
  Budgets budgets;
  for (const std::string& text : texts) {
    const Result<std::int64_t> bytes = settings::parse_bytes(text);
    if (!bytes.ok()) return bytes.status().with_context("plan: --budget");
    budgets.push_back(*bytes);
  }
  return budgets;
}

std::string answer_line(const io::PlanInstance& instance, std::int64_t budget,
                        const planner::BudgetAnswer& answer) {
  io::JsonWriter json;
  json.begin_object().field("id", instance.id).field("budget", budget);
  json.field("feasible", answer.best.has_value());
  if (answer.best) {
    json.field("extra_us", answer.best->added_us).field("peak", answer.best->peak_bytes);
    json.field("plan", io::letters(answer.best->actions));
    if (!answer.is_exact()) json.field("at_least_us", answer.bound_us);
  } else {
    json.key("extra_us").null().key("peak").null().key("plan").null();
    json.field("least_budget", answer.least_peak_bytes);
  }
  return json.end_object().take();
}

Result<Verdict> solve_instances(const std::string& path) {
  const Result<std::string> text = io::read_file(path, io::kMaxPlanningFileBytes);
  if (!text.ok()) return text.status();
  const auto instances = io::read_instances(*text);
  if (!instances.ok()) return instances.status().with_context(path);
  std::size_t asked = 0;
  std::size_t met = 0;
  for (const io::PlanInstance& instance : *instances) {
    for (const std::int64_t budget : instance.budgets) {
      const auto answer =
          planner::solve_budget(instance.problem, budget, kMostLabels, planner::TieBreak::named);
      if (!answer.ok()) return answer.status().with_context(path + ": " + instance.id);
      fmt::print("{}\n", answer_line(instance, budget, *answer));
      ++asked;
      met += answer->best ? 1 : 0;
    }
  }
  return met > 0 || asked == 0 ? Verdict::yes : Verdict::no;
}

// Returns the front. If the front is not exact, adds the best plan for each requested budget.
Result<planner::SolvedFront> front_with(const MemoryProblem& problem, const Budgets& budgets) {
  auto solved = planner::solve_front(problem, kLimits);
  if (!solved.ok() || solved->is_exact()) return solved;
  for (const std::int64_t budget : budgets) {
    auto answer =
        planner::solve_budget(problem, budget, kLimits.most_labels, planner::TieBreak::any);
    if (answer.ok() && answer->best) solved->front.push_back(std::move(*answer->best));
  }
  solved->front = front_of(std::move(solved->front));
  return solved;
}

Result<Verdict> answer_profile(const std::string& given, const Budgets& budgets) {
  const Result<RunFile> file = file_of_run(given, "memory_profile.json");
  if (!file.ok()) return file.status();
  const std::string path = file->path.string();
  const Result<std::string> text = io::read_file(path, io::kMaxPlanningFileBytes, file->links);
  if (!text.ok()) return text.status();
  const auto profile = io::read_memory_profile(*text);
  if (!profile.ok()) return profile.status().with_context(path);
  Budgets met = budgets;  // met by every kind of rank so far
  for (std::size_t i = 0; i < profile->profiles.size(); ++i) {
    const planner::RankProfile& rank = profile->profiles[i];
    const auto solved = front_with(rank.problem, budgets);
    if (!solved.ok()) return solved.status().with_context(path);
    const MemoryFront& front = solved->front;
    fmt::print("{}{}\n{}\n{}\n{}", i > 0 ? "\n" : "", heading(rank, *solved, i),
               budget_table(rank, front, budgets), action_table(rank, front, budgets),
               curve(rank, front));
    std::erase_if(met, [&](std::int64_t budget) { return !lookup(front, budget); });
  }
  return met.empty() ? Verdict::no : Verdict::yes;
}

}  // namespace

Result<Verdict> plan_command(const PlanRequest& request) {
  const Result<Budgets> budgets = parse_budgets(request.budgets);
  if (!budgets.ok()) return budgets.status();
  return request.instances.empty() ? answer_profile(request.profile, *budgets)
                                   : solve_instances(request.instances);
}

}  // namespace cox::tools
