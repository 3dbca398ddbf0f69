#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>

#include "coordinator/core/json.h"
#include "coordinator/core/settings/settings.h"
#include "coordinator/planner/front.h"
#include "coordinator/planner/json_fields.h"
#include "coordinator/planner/memory_profile.h"
#include "coordinator/planner/plan_instances.h"
#include "coordinator/tools/commands.h"
#include "coordinator/tools/plan_tables.h"

namespace cox::tools {
namespace {

constexpr std::size_t kMostLabels = 1 << 15;
constexpr std::size_t kMostBudgets = 16;
// Nobody waits for a step here, so these are larger than a job's.
constexpr planner::FrontLimits kLimits{1024, 192, 4096, 8'000'000};

struct PlanArguments {
  std::string profile;
  std::string instances;
  std::vector<std::int64_t> budgets;
};

Status take_budget(const std::string& text, PlanArguments& read) {
  const Result<std::int64_t> bytes = settings::parse_bytes(text);
  if (!bytes.ok()) return bytes.status().with_context("plan: --budget");
  read.budgets.push_back(*bytes);
  if (read.budgets.size() <= kMostBudgets) return ok_status();
  return invalid_argument("plan: expected at most " + std::to_string(kMostBudgets) +
                          " budgets in one call, found more; call it again for the others");
}

// The value of `flag` at `at`, as `--flag=value` or as the next argument; then `at` moves on.
std::optional<std::string> value_of(std::string_view flag, Arguments arguments, std::size_t& at) {
  const std::string& argument = arguments[at];
  if (argument == flag && at + 1 < arguments.size()) return arguments[++at];
  if (argument.starts_with(std::string(flag) + "=")) return argument.substr(flag.size() + 1);
  return std::nullopt;
}

Result<PlanArguments> understand(Arguments arguments) {
  PlanArguments read;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    if (const auto budget = value_of("--budget", arguments, i)) {
      if (const Status status = take_budget(*budget, read); !status.ok()) return status;
    } else if (const auto file = value_of("--instances", arguments, i)) {
      read.instances = *file;
    } else if (argument.starts_with("-")) {
      return invalid_argument("plan: unknown option or missing value: '" + argument +
                              "'; see cox help");
    } else if (read.profile.empty()) {
      read.profile = argument;
    } else {
      return invalid_argument("plan: expected one profile, found also '" + argument + "'");
    }
  }
  const bool has_profile = !read.profile.empty() && !read.budgets.empty();
  const bool has_instances = !read.instances.empty();
  if (has_profile == has_instances || (has_instances && !read.profile.empty()))
    return invalid_argument(
        "plan: expected a profile and a --budget, or --instances FILE; see cox help");
  return read;
}

Result<std::string> file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return not_found(path + ": expected a file to read, found none that opens");
  std::string text(planner::kMaxPlanFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.gcount() == 0 && !file.eof()))
    return not_found(path + ": expected a file to read, found one that cannot be read");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() <= planner::kMaxPlanFileBytes) return text;
  return resource_exhausted(path + ": expected at most " +
                            std::to_string(planner::kMaxPlanFileBytes) + " bytes, found more");
}

std::string answer_line(const planner::PlanInstance& instance, std::int64_t budget,
                        const planner::BudgetAnswer& answer) {
  std::string out = "{\"id\": " + json_quote(instance.id) +
                    ", \"budget\": " + std::to_string(budget) +
                    ", \"feasible\": " + (answer.best ? "true" : "false");
  if (!answer.best)
    return out + ", \"extra_us\": null, \"peak\": null, \"plan\": null, \"least_budget\": " +
           std::to_string(answer.least_peak_bytes) + "}";
  out += ", \"extra_us\": " + std::to_string(answer.best->added_us) +
         ", \"peak\": " + std::to_string(answer.best->peak_bytes) + ", \"plan\": \"" +
         planner::letters(answer.best->actions) + "\"";
  if (!answer.is_exact()) out += ", \"at_least_us\": " + std::to_string(answer.bound_us);
  return out + "}";
}

Status solve_instances(const std::string& path) {
  const Result<std::string> text = file_text(path);
  if (!text.ok()) return text.status();
  const auto instances = planner::read_instances(*text);
  if (!instances.ok()) return instances.status().with_context(path);
  for (const planner::PlanInstance& instance : *instances) {
    for (const std::int64_t budget : instance.budgets) {
      const auto answer =
          planner::solve_budget(instance.problem, budget, kMostLabels, planner::TieBreak::named);
      if (!answer.ok()) return answer.status().with_context(path + ": " + instance.id);
      std::puts(answer_line(instance, budget, *answer).c_str());
    }
  }
  return ok_status();
}

// The front, with the best plan for each budget that was asked for among its points.
Result<planner::SolvedFront> front_with(const MemoryProblem& problem,
                                        const std::vector<std::int64_t>& budgets) {
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

Status answer_profile(const PlanArguments& arguments) {
  const Result<std::string> text = file_text(arguments.profile);
  if (!text.ok()) return text.status();
  const auto profile = planner::read_memory_profile(*text);
  if (!profile.ok()) return profile.status().with_context(arguments.profile);
  for (std::size_t i = 0; i < profile->profiles.size(); ++i) {
    const planner::RankProfile& rank = profile->profiles[i];
    const auto solved = front_with(rank.problem, arguments.budgets);
    if (!solved.ok()) return solved.status().with_context(arguments.profile);
    const MemoryFront& front = solved->front;
    std::printf("%s%s\n%s\n%s\n%s", i > 0 ? "\n" : "", heading(rank, *solved, i).c_str(),
                budget_table(rank, front, arguments.budgets).c_str(),
                action_table(rank, front, arguments.budgets).c_str(), curve(rank, front).c_str());
  }
  return ok_status();
}

}  // namespace

int plan_command(Arguments arguments) {
  const auto read = understand(arguments);
  if (!read.ok()) return complain(read.status().message());
  const Status done =
      read->instances.empty() ? answer_profile(*read) : solve_instances(read->instances);
  return done.ok() ? kDone : complain(done.message());
}

}  // namespace cox::tools
