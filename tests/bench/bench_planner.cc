// M1, M2, M3: the quality of the memory planner's answers, whether plans keep their budgets, and
// the cost of a plan.
//
//   bench_planner M1|M2|M3 [--quick] [INSTANCES]
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>

#include "coordinator/planner/front.h"
#include "coordinator/planner/memory_problem.h"
#include "metrics/records/planning_files.h"
#include "tests/bench/line.h"
#include "tests/planner/random_problem.h"

namespace {

using namespace cox;
using bench::Better;
using bench::Line;

constexpr std::int64_t kMiB = 1 << 20;

// Measures this thread's CPU time: the goal is for one core, and the machine may be busy.
double cpu_milliseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e3 * static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_nsec);
}

std::int64_t step_us(const MemoryProblem& problem) {
  std::int64_t sum = 0;
  for (const Stage& s : problem.stages) sum += s.forward_us + s.backward_us;
  return sum;
}

// The actions of an instance's stages.
struct Actions {
  const char* text;
  test::Copies copies = test::Copies::none;
  test::Levels levels = test::Levels::none;
};
constexpr Actions kOnDevice = {"keep, recompute, tile"};
constexpr Actions kCopied = {"keep, recompute, offload, tile", test::Copies::some};
constexpr Actions kLeveled = {"keep, 3 to 7 levels of recompute, recompute, tile",
                              test::Copies::none, test::Levels::some};
constexpr Actions kLeveledCopied = {"keep, 3 to 7 levels of recompute, recompute, offload, tile",
                                    test::Copies::some, test::Levels::some};

// M1, on random chains: counts budgets solved to a proof.
void proven(const Actions& actions, int chains) {
  testing::Random random(31);
  std::vector<double> ms;
  double exact = 0;
  double over = 0;  // plans above their budget
  double worst_gap = 0;
  for (int i = 0; i < chains; ++i) {
    const MemoryProblem problem =
        test::block_chain(random, 4 + random.below(37), actions.copies, actions.levels);
    const std::int64_t low = problem.base_bytes;
    const std::int64_t high =
        planner::schedule(problem, std::vector<MemoryAction>(problem.stages.size())).peak_bytes;
    for (int b = 1; b <= 5; ++b) {
      const std::int64_t budget = low + (high - low) * b / 6;
      const double start = cpu_milliseconds();
      const auto answer = planner::solve_budget(problem, budget, 1 << 13, planner::TieBreak::any);
      ms.push_back(cpu_milliseconds() - start);
      if (!answer.ok()) continue;
      exact += answer->is_exact();
      if (!answer->best) continue;
      over += planner::schedule(problem, answer->best->actions).peak_bytes > budget;
      worst_gap =
          std::max(worst_gap, static_cast<double>(answer->best->added_us - answer->bound_us) /
                                  static_cast<double>(step_us(problem)));
    }
  }
  const auto told = [&](Line line, const char* figure) {
    line.with("figure", figure)
        .with("actions", actions.text)
        .with("budgets", static_cast<double>(ms.size()));
    line.print();
  };
  told(Line("M1", exact / static_cast<double>(ms.size()), "ratio").limit(0.99, Better::higher),
       "answers proven optimal, random chains of 4 to 40 blocks");
  told(Line("M1", 100 * worst_gap, "% of the step").limit(1), "largest proven gap of the others");
  told(Line("M1", over, "plans").limit(0), "plans whose simulated peak is above their budget");
  told(Line("M1", bench::quantile(ms, 0.5), "ms"), "CPU time of an answer, p50");
  told(Line("M1", bench::quantile(ms, 1), "ms"), "CPU time of an answer, longest");
}

// M2: the memory of a looked-up plan in simulation.
void law(int graphs) {
  testing::Random random(32);
  double over = 0;
  double slower = 0;
  double lookups = 0;
  for (int g = 0; g < graphs; ++g) {
    const auto copies = g % 4 == 0 ? test::Copies::some : test::Copies::none;
    const auto levels = g % 8 < 4 ? test::Levels::none : test::Levels::some;
    const MemoryProblem problem = test::block_chain(random, 4 + random.below(21), copies, levels);
    const auto solved = planner::solve_front(problem, {512, 8, 256, 2'000'000});
    if (!solved.ok()) continue;
    const MemoryFront& front = solved->front;
    std::int64_t allowed = front.front().added_us;
    for (std::int64_t b = 0; b < 200; ++b, ++lookups) {
      const std::int64_t low = front.front().peak_bytes;
      const std::int64_t budget = low + (front.back().peak_bytes - low) * b / 199;
      const auto step =
          planner::schedule(problem, front[lookup(front, budget).value_or(0)].actions);
      over += step.peak_bytes > budget;
      slower += step.added_us > allowed;
      allowed = std::min(allowed, step.added_us);
    }
  }
  const auto told = [&](double value, const char* figure) {
    Line("M2", value, "violations")
        .limit(0)
        .with("figure", figure)
        .with("graphs", graphs)
        .with("lookups", lookups)
        .print();
  };
  told(over, "simulated peak above the budget");
  told(slower, "more bytes, more time");
}

// Adds levels 1 to 6 of a block's front. Each drops more for more time, of a forward of
// `forward_us` in total. Dropping half of the interior costs a few percent.
void add_levels(const std::function<std::int64_t(double)>& about, std::int64_t inside,
                std::int64_t edge, Stage& stage) {
  constexpr std::array<double, 6> kDropped = {0.2, 0.35, 0.5, 0.65, 0.8, 0.92};
  constexpr std::array<double, 6> kTime = {0.01, 0.03, 0.06, 0.2, 0.45, 0.8};
  for (std::size_t n = 0; n < kDropped.size(); ++n) {
    StageOption option = stage.option(MemoryAction::recompute);
    option.kept_bytes = edge + about(static_cast<double>(inside) * (1 - kDropped[n]));
    option.added_us = about(static_cast<double>(stage.forward_us) * kTime[n]);
    const MemoryAction level = recompute_level(1 + static_cast<unsigned>(n));
    stage.options[static_cast<std::size_t>(level)] = option;
  }
}

// Returns a transformer of 96 layers, `parts` stages each, whose sizes and times differ by some
// percent. With levels, six of them replace tile.
MemoryProblem transformer(std::size_t parts, const Actions& actions, std::uint64_t seed) {
  testing::Random random(seed);
  const auto about = [&](double value) {
    return static_cast<std::int64_t>(value * (0.95 + 0.1 * random.uniform()));
  };
  MemoryProblem problem;
  problem.base_bytes = 20'000 * kMiB;
  const bool copies = actions.copies == test::Copies::some;
  const bool levels = actions.levels == test::Levels::some;
  problem.copy_bytes_per_ms = copies ? 20 * kMiB : 0;
  for (std::size_t i = 0; i < 96 * parts; ++i) {
    const double share = (1 + static_cast<double>(i % 4)) / 2.5 / static_cast<double>(parts);
    const std::int64_t inside = about(256 * kMiB * share);
    const std::int64_t edge = about(16 * kMiB / static_cast<double>(parts));
    Stage stage;
    stage.forward_us = about(6000 * share);
    stage.backward_us = 2 * stage.forward_us;
    stage.block = static_cast<std::int32_t>(i % 1024);
    const std::int64_t high = inside + 3 * edge;
    stage.options[0] = {true, inside + edge, high, high, 0, 0};
    stage.options[1] = {true, edge, high, high, stage.forward_us, 0};
    if (levels)
      add_levels(about, inside, edge, stage);
    else
      stage.options[3] = {true, inside / 2 + edge, high, high, stage.forward_us / 3, 0};
    if (copies) stage.options[2] = {true, edge, high, high, 10, inside};
    problem.stages.push_back(stage);
  }
  return problem;
}

// M3: times a cold front, and a plan for another budget from the front.
void speed(const char* what, std::size_t parts, const Actions& actions,
           const planner::FrontLimits& limits, int repeats) {
  std::vector<double> cold;
  std::vector<double> cached;
  double gap = 0;
  double points = 0;
  for (int r = 0; r < repeats; ++r) {
    const MemoryProblem problem = transformer(parts, actions, 40 + static_cast<std::uint64_t>(r));
    const double start = cpu_milliseconds();
    const auto solved = planner::solve_front(problem, limits);
    cold.push_back(cpu_milliseconds() - start);
    if (!solved.ok()) continue;
    const MemoryFront& front = solved->front;
    gap =
        std::max(gap, static_cast<double>(solved->gap_us) / static_cast<double>(step_us(problem)));
    points = static_cast<double>(front.size());
    const std::int64_t budget = (front.front().peak_bytes + front.back().peak_bytes) / 2;
    const double before = cpu_milliseconds();
    const std::vector<MemoryAction> plan = front[lookup(front, budget).value_or(0)].actions;
    cached.push_back(cpu_milliseconds() - before);
    if (plan.size() != problem.stages.size()) std::abort();
  }
  const auto told = [&](Line line, const char* figure) {
    line.with("figure", figure).with("what", what).with("stages", static_cast<double>(96 * parts));
    line.with("points", points).with("largest_gap_percent_of_step", 100 * gap).print();
  };
  told(Line("M3", bench::quantile(cold, 0.5), "ms").limit(50), "cold front, CPU time, p50");
  told(Line("M3", bench::quantile(cached, 1), "ms").limit(1), "another budget, longest");
}

// M3 with copies: times one cold plan at a middle budget, searched with so many labels a stage.
void one_plan(const Actions& actions, std::size_t labels, int repeats) {
  std::vector<double> cold;
  double gap = 0;
  for (int r = 0; r < repeats; ++r) {
    const MemoryProblem problem = transformer(1, actions, 40 + static_cast<std::uint64_t>(r));
    const std::int64_t high =
        planner::schedule(problem, std::vector<MemoryAction>(problem.stages.size())).peak_bytes;
    const double start = cpu_milliseconds();
    const auto answer = planner::solve_budget(problem, (problem.base_bytes + high) / 2, labels,
                                              planner::TieBreak::any);
    cold.push_back(cpu_milliseconds() - start);
    if (!answer.ok() || !answer->best) std::abort();
    gap = std::max(gap, static_cast<double>(answer->best->added_us - answer->bound_us) /
                            static_cast<double>(step_us(problem)));
  }
  Line("M3", bench::quantile(cold, 0.5), "ms")
      .limit(50)
      .with("figure", "cold plan for one budget, CPU time, p50")
      .with("what", actions.levels == test::Levels::some
                        ? "keep, 6 levels of recompute, recompute, offload"
                        : actions.text)
      .with("stages", 96)
      .with("labels_per_stage", static_cast<double>(labels))
      .with("largest_gap_percent_of_step", 100 * gap)
      .print();
}

// M1, on a file of recorded optima.
int recorded(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  const auto instances = io::read_instances(text.str());
  if (!instances.ok()) {
    std::fprintf(stderr, "M1: %s: %s\n", path.c_str(), instances.status().message().c_str());
    return 1;
  }
  double answers = 0;
  double exact = 0;
  const double start = cpu_milliseconds();
  for (const io::PlanInstance& instance : *instances) {
    for (const std::int64_t budget : instance.budgets) {
      const auto answer =
          planner::solve_budget(instance.problem, budget, 1 << 15, planner::TieBreak::any);
      exact += answer.ok() && answer->is_exact();
      ++answers;
    }
  }
  Line("M1", exact / std::max(1.0, answers), "ratio")
      .limit(0.99, Better::higher)
      .with("figure", "answers proven optimal, file of instances")
      .with("budgets", answers)
      .with("cpu_ms_in_all", cpu_milliseconds() - start)
      .print();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool is_quick = bench::effort_of(argc, argv) == bench::Effort::quick;
  const std::string goal = argc > 1 ? argv[1] : "";
  const std::string last = argc > 2 ? argv[argc - 1] : "--";
  if (goal == "M1") {
    proven(kOnDevice, is_quick ? 20 : 200);
    proven(kCopied, is_quick ? 10 : 100);
    proven(kLeveled, is_quick ? 20 : 200);
    proven(kLeveledCopied, is_quick ? 5 : 50);
    return last.starts_with("--") ? 0 : recorded(last);
  }
  if (goal == "M2") {
    law(is_quick ? 40 : 500);
    return 0;
  }
  if (goal != "M3") return 2;
  const int repeats = is_quick ? 3 : 15;
  speed("blocks; keep, recompute, tile", 1, kOnDevice, {}, repeats);
  speed("blocks; keep, 6 levels of recompute, recompute", 1, kLeveled, {}, repeats);
  speed("operators as stages; keep, recompute, tile", 26, kOnDevice, {192, 48, 1024, 2'000'000},
        repeats);
  speed("blocks; keep, recompute, offload, tile", 1, kCopied, {256, 8, 32, 2'000'000}, repeats);
  one_plan(kCopied, 128, repeats);
  one_plan(kLeveledCopied, 128, repeats);
  return 0;
}
