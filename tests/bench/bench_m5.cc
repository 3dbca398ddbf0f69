// M5: time that plans over operator graphs add, against Dynamic Tensor Rematerialization's at equal
// budgets.   bench_m5 [--quick] FOLDER
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "coordinator/io/operator_files.h"
#include "tests/bench/line.h"
#include "tests/planner/step_referee.h"

namespace {

using namespace cox;
using bench::Effort;
using bench::Line;
using planner::StepGraph;

// What a method does to a step under one budget.
struct Added {
  std::int64_t budget_bytes = 0;
  double ours = 0;  // of the step's time
  double dtr = 0;
};

std::optional<double> dtr_overhead(const StepGraph& graph, std::int64_t budget) {
  const auto schedule = test::dtr(graph, budget);
  if (!schedule) return std::nullopt;
  const test::RefereedStep step = test::execute(graph, *schedule);
  if (!step.error.empty() || step.peak_bytes > budget) {
    std::fprintf(stderr, "bench_m5: DTR: %s\n", step.error.c_str());
    std::exit(2);
  }
  const auto all = static_cast<double>(planner::step_ns(graph));
  return static_cast<double>(step.ns) / all - 1;
}

// The least budget that DTR gets by with, to a thousandth of the range.
std::int64_t least_of_dtr(const StepGraph& graph, std::int64_t high) {
  std::int64_t low = graph.base_bytes;
  const std::int64_t close = std::max<std::int64_t>(1, (high - low) / 1000);
  while (high - low > close) {
    const std::int64_t middle = low + (high - low) / 2;
    (dtr_overhead(graph, middle) ? high : low) = middle;
  }
  return high;
}

std::vector<Added> compare(const StepGraph& graph, std::int64_t count,
                           const planner::StepLimits& limits) {
  const std::int64_t high = planner::keep_all(graph).peak_bytes;
  const std::int64_t low = least_of_dtr(graph, high);
  std::vector<std::int64_t> budgets;
  for (std::int64_t b = 0; b < count; ++b) budgets.push_back(low + (high - low) * b / count);
  const auto plans = planner::plan_step(graph, budgets, limits);
  std::vector<Added> rows;
  for (std::size_t b = 0; b < budgets.size(); ++b) {
    const auto dtr = dtr_overhead(graph, budgets[b]);
    if (!dtr) continue;  // it is not monotone
    const test::RefereedStep step = test::execute(graph, plans[b].schedule);
    if (!step.error.empty() || step.peak_bytes > budgets[b]) {
      std::fprintf(stderr, "bench_m5: %s: a plan of ours is wrong or too large: %s\n",
                   graph.name.c_str(), step.error.c_str());
      std::exit(2);
    }
    const auto all = static_cast<double>(planner::step_ns(graph));
    rows.push_back({budgets[b], static_cast<double>(step.ns) / all - 1, *dtr});
  }
  return rows;
}

void tell(const StepGraph& graph, const std::vector<Added>& rows) {
  if (rows.empty()) return;
  double ours = 0;
  double dtr = 0;
  std::vector<double> ratios;
  for (const Added& it : rows) {
    ours += it.ours;
    dtr += it.dtr;
    if (it.dtr > 0) ratios.push_back(it.ours / it.dtr);
    std::fprintf(stderr, "%s: %lld bytes: ours %.4f, DTR %.4f\n", graph.name.c_str(),
                 static_cast<long long>(it.budget_bytes), it.ours, it.dtr);
  }
  const auto count = static_cast<double>(rows.size());
  Line("M5", dtr > 0 ? ours / dtr : 0, "ratio")
      .limit(0.5)
      .with("model", graph.name)
      .with("figure", "time added by our plans over DTR's, mean of all budgets")
      .with("operators", static_cast<double>(graph.operators.size()))
      .with("budgets", count)
      .with("ours, % of the step", 100 * ours / count)
      .with("DTR, % of the step", 100 * dtr / count)
      .print();
  const std::int64_t least = planner::plan_step(graph, {graph.base_bytes}).front().peak_bytes;
  Line("M5", static_cast<double>(least) / static_cast<double>(rows.front().budget_bytes), "ratio")
      .with("model", graph.name)
      .with("figure", "least peak of ours over the least budget that DTR gets by with")
      .with("ours, bytes", static_cast<double>(least))
      .with("everything kept, bytes", static_cast<double>(planner::keep_all(graph).peak_bytes))
      .print();
  if (ratios.empty()) return;
  Line("M5", bench::quantile(ratios, 1), "ratio")
      .with("model", graph.name)
      .with("figure", "the same at the budget where it is largest")
      .print();
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_quick = bench::effort_of(argc, argv) == Effort::quick;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(argv[argc - 1]))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::ranges::sort(files);
  for (const auto& file : files) {
    std::ifstream stream(file);
    std::stringstream text;
    text << stream.rdbuf();
    const auto graph = io::read_operator_graph(text.str());
    if (!graph.ok()) {
      std::fprintf(stderr, "bench_m5: %s\n", graph.status().message().c_str());
      return 2;
    }
    tell(*graph, compare(*graph, is_quick ? 4 : 24,
                         {is_quick ? std::size_t{10'000'000} : std::size_t{100'000'000}}));
  }
  return 0;
}
