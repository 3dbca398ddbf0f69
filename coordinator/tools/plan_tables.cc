#include "coordinator/tools/plan_tables.h"

#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>

namespace cox::tools {
namespace {

constexpr std::size_t kCurveRows = 16;
constexpr std::size_t kCurveWidth = 40;
constexpr std::size_t kActions = kMemoryActionNames.size();

[[gnu::format(printf, 1, 2)]] std::string formatted(const char* format, ...) {
  std::array<char, 256> line{};
  va_list values;
  va_start(values, format);
  std::vsnprintf(line.data(), line.size(), format, values);
  va_end(values);
  return line.data();
}

std::int64_t step_us(const MemoryProblem& problem) {
  std::int64_t sum = 0;
  for (const Stage& s : problem.stages) sum += s.forward_us + s.backward_us;
  return sum;
}

std::string added_text(const MemoryProblem& problem, std::int64_t added_us) {
  const double step = static_cast<double>(std::max<std::int64_t>(1, step_us(problem)));
  const double added = static_cast<double>(added_us);
  return formatted("%.3f ms (%.2f %%)", added / 1000, 100 * added / step);
}

// The fastest point that fits, else the one of least peak.
const MemoryPoint& nearest(const MemoryFront& front, std::int64_t budget) {
  return front[lookup(front, budget).value_or(0)];
}

std::string ranks_text(const std::vector<std::int32_t>& ranks) {
  if (ranks.empty()) return "ranks not named";
  std::string out = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i)
    out += (i > 0 ? ", " : " ") + std::to_string(ranks[i]);
  return ranks.size() > 8 ? out + " and " + std::to_string(ranks.size() - 8) + " more" : out;
}

}  // namespace

std::string size_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? formatted("%.0f B", value) : formatted("%.3f %s", value, kUnits[unit]);
}

std::string heading(const planner::RankProfile& profile, const planner::SolvedFront& solved,
                    std::size_t index) {
  const MemoryProblem& problem = profile.problem;
  std::string out = "profile " + std::to_string(index) + ", " + ranks_text(profile.ranks) + ": " +
                    std::to_string(problem.stages.size()) + " stages, base " +
                    size_text(problem.base_bytes) + ", " +
                    formatted("%.3f ms", static_cast<double>(step_us(problem)) / 1000) +
                    " a step with everything kept\n" + std::to_string(solved.front.size()) +
                    " plans from " + size_text(solved.front.front().peak_bytes) + " to " +
                    size_text(solved.front.back().peak_bytes) + ", ";
  if (solved.is_exact()) return out + "each the fastest within its peak\n";
  return out + "none slower than the optimum by more than " + added_text(problem, solved.gap_us) +
         "\n";
}

std::string budget_table(const planner::RankProfile& profile, const MemoryFront& front,
                         const std::vector<std::int64_t>& budgets) {
  std::string out = formatted("%-12s %-5s %-12s %-24s", "budget", "fits", "peak", "added time");
  for (const std::string_view name : kMemoryActionNames) out += formatted(" %9s", name.data());
  out += "\n";
  for (const std::int64_t budget : budgets) {
    const bool fits = lookup(front, budget).has_value();
    const MemoryPoint& point = nearest(front, budget);
    out += formatted("%-12s %-5s %-12s %-24s", size_text(budget).c_str(), fits ? "yes" : "no",
                     size_text(point.peak_bytes).c_str(),
                     added_text(profile.problem, point.added_us).c_str());
    for (std::size_t a = 0; a < kActions; ++a)
      out +=
          formatted(" %9d", static_cast<int>(std::count(point.actions.begin(), point.actions.end(),
                                                        static_cast<MemoryAction>(a))));
    out += "\n";
    if (!fits)
      out += "  nothing fits that budget; shown is the plan of least peak: give at least " +
             std::to_string(point.peak_bytes) + " B, a smaller batch, or a tier to offload to\n";
  }
  return out;
}

std::string action_table(const planner::RankProfile& profile, const MemoryFront& front,
                         const std::vector<std::int64_t>& budgets) {
  std::size_t width = 5;
  for (const std::string& name : profile.stage_names) width = std::max(width, name.size());
  width = std::min<std::size_t>(width, 60);
  const int column = static_cast<int>(width);
  std::string out = formatted("%-*s", column, "stage");
  for (const std::int64_t budget : budgets) out += formatted("  %-12s", size_text(budget).c_str());
  out += "\n";
  for (std::size_t i = 0; i < profile.problem.stages.size(); ++i) {
    const auto& options = profile.problem.stages[i].options;
    const auto choices = std::count_if(options.begin(), options.end(),
                                       [](const StageOption& o) { return o.allowed; });
    if (choices < 2) continue;
    out += formatted("%-*.60s", column, profile.stage_names[i].c_str());
    for (const std::int64_t budget : budgets)
      out += formatted("  %-12s", to_string(nearest(front, budget).actions[i]).data());
    out += "\n";
  }
  return out;
}

std::string curve(const planner::RankProfile& profile, const MemoryFront& front) {
  const std::int64_t low = front.front().peak_bytes;
  const std::int64_t high = front.back().peak_bytes;
  const std::size_t rows = low == high ? 1 : kCurveRows;
  const double most = static_cast<double>(std::max<std::int64_t>(1, front.front().added_us));
  std::string out = "time against budget\n";
  for (std::size_t row = 0; row < rows; ++row) {
    const auto part = static_cast<std::int64_t>(row);
    const auto all = static_cast<std::int64_t>(std::max<std::size_t>(1, rows - 1));
    const std::int64_t budget = low + (high - low) / all * part + (high - low) % all * part / all;
    const MemoryPoint& point = nearest(front, budget);
    const auto length = static_cast<std::size_t>(static_cast<double>(point.added_us) / most *
                                                 static_cast<double>(kCurveWidth));
    out += formatted("%12s |", size_text(budget).c_str()) + std::string(length, '#') + " " +
           added_text(profile.problem, point.added_us) + "\n";
  }
  return out;
}

}  // namespace cox::tools
