// M4: predicted against counted bytes of a GPT-2 under plans for many budgets, and the plans' cost
// in time beside keeping everything and recomputing everything.
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "tests/bench/line.h"
#include "tests/sdk/memory/steered_gpt.h"

namespace cox::bench {
namespace {

using test::SteeredGpt;
using Actions = std::vector<MemoryAction>;

constexpr int kBudgets = 24;

test::SampleShape shape() {
  test::SampleShape shape;
  shape.model.n_layer = 8;
  shape.sequences = 4;
  return shape;
}

double mib(std::int64_t bytes) {
  return static_cast<double>(bytes) / (1024.0 * 1024.0);
}

struct Seen {
  std::int64_t peak_bytes = 0;
  std::vector<double> ratio;  // to the time of keeping everything, measured right before
};

// Runs two steps and returns the second. The first step after another plan pays for pages that
// malloc returned to the system.
SteeredGpt::Step settled(SteeredGpt& gpt, const Actions& actions) {
  gpt.run(actions);
  return gpt.run(actions);
}

// Alternates plans with keeping everything, so that drift of the machine affects both.
void take_turns(SteeredGpt& gpt, const Actions& keep, std::map<Actions, Seen>& plans, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    for (auto& [actions, seen] : plans) {
      const auto kept = settled(gpt, keep).time;
      const SteeredGpt::Step step = settled(gpt, actions);
      seen.peak_bytes = step.peak_bytes;
      seen.ratio.push_back(static_cast<double>(step.time.count()) /
                           static_cast<double>(kept.count()));
    }
  }
}

Line line_of(const char* figure, const Actions& actions, const Seen& seen) {
  const auto recomputed = std::count(actions.begin(), actions.end(), MemoryAction::recompute);
  const Median ratio = centre_of(seen.ratio);
  Line line("M4", mib(seen.peak_bytes), "MiB");
  line.with("figure", figure).with("recomputed", static_cast<double>(recomputed));
  line.with("time_ratio", ratio.value).with("time_low_95", ratio.low);
  line.with("time_high_95", ratio.high);
  return line;
}

// Returns budgets in even distances, from the least that any plan takes to keeping everything.
std::vector<std::int64_t> budgets_of(const MemoryFront& front) {
  const std::int64_t least = front.front().peak_bytes;
  const std::int64_t most = front.back().peak_bytes;
  std::vector<std::int64_t> budgets;
  for (int i = 0; i < kBudgets; ++i) budgets.push_back(least + (most - least) * i / (kBudgets - 1));
  return budgets;
}

void tell_totals(const MemoryFront& front, std::map<Actions, Seen>& plans) {
  double worst = 0;
  int over = 0;
  for (const std::int64_t budget : budgets_of(front)) {
    const MemoryPoint& plan = front[*lookup(front, budget)];
    const std::int64_t real = plans[plan.actions].peak_bytes;
    const auto predicted = static_cast<double>(plan.peak_bytes);
    worst = std::max(worst, 100 * std::abs(static_cast<double>(real) - predicted) / predicted);
    over += real > budget + SteeredGpt::held_by_trial();
  }
  Line("M4", worst, "%")
      .limit(0.2)
      .with("figure", "largest distance of predicted and real peak")
      .with("budgets", kBudgets)
      .print();
  Line("M4", over, "budgets")
      .limit(0)
      .with("figure", "budgets that a real step went over")
      .with("budgets", kBudgets)
      .print();
}

int run(Effort effort) {
  at::set_num_threads(1);
  SteeredGpt gpt(shape());
  const MemoryModel known = gpt.measure();
  const std::size_t blocks = known.front.back().actions.size();
  const Actions keep(blocks, MemoryAction::keep);
  const Actions all(blocks, MemoryAction::recompute);
  std::map<Actions, Seen> plans;
  plans[keep];
  plans[all];
  for (const std::int64_t budget : budgets_of(known.front))
    plans[known.front[*lookup(known.front, budget)].actions];
  take_turns(gpt, keep, plans, effort == Effort::quick ? 3 : 25);
  tell_totals(known.front, plans);
  for (const MemoryPoint& point : known.front) {
    if (!plans.contains(point.actions)) continue;
    const double added = static_cast<double>(point.added_us) / static_cast<double>(known.step_us);
    line_of("real peak of a plan that a budget chooses", point.actions, plans[point.actions])
        .with("predicted_mib", mib(point.peak_bytes))
        .with("predicted_time_ratio", 1 + added)
        .print();
  }
  line_of("real peak with every block recomputed", all, plans[all]).print();
  return 0;
}

}  // namespace
}  // namespace cox::bench

int main(int argc, char** argv) {
  return cox::bench::run(cox::bench::effort_of(argc, argv));
}
