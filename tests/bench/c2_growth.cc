#include "tests/bench/c2_growth.h"

#include <malloc.h>
#include <time.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "coxswain/trainer.h"
#include "sdk/src/session/session_state.h"
#include "tests/bench/averaging.h"
#include "tests/bench/small_gpt.h"

namespace cox::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The order of programs in a group. Step times vary by a tenth, neighbours less, so neighbours are
// compared. Programs change after every step but two of a group. One exception follows a step of
// the trainer and one a plain step, which shows the trainer's effect on the next step. Plain and
// other change places in every other group.
enum Program { kOn, kPlain, kOther, kPrograms };
constexpr std::array<Program, 8> kOrder = {kOn, kPlain, kOn, kOther, kPlain, kOn, kOther, kOn};
constexpr std::size_t kTurns = kOrder.size();
constexpr int kStepsWith = 4;  // in a group

Program program_of(std::size_t turn) {
  const Program program = kOrder[turn % kTurns];
  const bool is_swapped = turn / kTurns % 2 == 1;
  if (program == kOn || !is_swapped) return program;
  return program == kPlain ? kOther : kPlain;
}

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Returns the CPU time of this process outside the training thread.
double helpers_cpu_seconds() {
  return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
}

// Wall time, and the training thread's CPU time, which excludes time of other programs on the core.
struct StepSeconds {
  double wall = 0;
  double cpu = 0;
};

using Step = std::function<void()>;

StepSeconds timed(const Step& step) {
  const auto start = Clock::now();
  const double cpu = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  step();
  return {Seconds(Clock::now() - start).count(), cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - cpu};
}

struct Measured {
  const char* name;
  StepWork work;
  int groups;
  bool is_judged;  // the goal is for the demo's step
};

Measured measured(GrowingStep which, int ranks, Effort effort) {
  const bool is_quick = effort == Effort::quick;
  if (which == GrowingStep::small) {
    return {"4 sequences a rank, no clipping", {}, is_quick ? 6 : ranks == 1 ? 300 : 250, false};
  }
  const StepWork work{.sequences = 16 / ranks, .clip_norm = 1};
  return {"16 sequences over all ranks, clipped at 1 (scripts/demo)", work, is_quick ? 3 : 900,
          true};
}

// Ratios of neighbouring steps.
struct Percents {
  std::vector<double> growth;      // a step with Coxswain against a plain one
  std::vector<double> difference;  // a step of the second plain loop against the first one's
  std::vector<double> after;       // a step after one with Coxswain against one after a plain one
};

struct Growth {
  std::vector<StepSeconds> steps;  // in the order of turns
  double helpers_us = 0;           // for a step of the trainer
};

// Returns the logarithmic ratio of the step at `turn` to that at `other`. Exchanging the two steps
// changes the sign of the ratio, so outliers cancel.
double percent(const Growth& growth, double StepSeconds::*clock, std::size_t turn,
               std::size_t other) {
  return 100 * std::log(growth.steps[turn].*clock / (growth.steps[other].*clock));
}

Percents compare(const Growth& growth, double StepSeconds::*clock) {
  Percents percents;
  for (std::size_t first = 0; first + kTurns <= growth.steps.size(); first += kTurns) {
    const auto of = [&](std::size_t turn, std::size_t other) {
      return percent(growth, clock, first + turn, first + other);
    };
    for (const double each : {of(0, 1), of(2, 3), of(5, 4), of(7, 6)}) {
      percents.growth.push_back(each);
    }
    percents.after.push_back(of(3, 4));
    percents.difference.push_back(program_of(first + 3) == kOther ? of(3, 4) : of(4, 3));
    if (first + kTurns < growth.steps.size()) percents.after.push_back(of(kTurns, kTurns - 1));
  }
  return percents;
}

// Returns the median step of the programs for which `is_meant` holds.
double median_ms(const Growth& growth, const std::function<bool(Program)>& is_meant) {
  std::vector<double> ms;
  for (std::size_t turn = 0; turn < growth.steps.size(); ++turn) {
    if (is_meant(program_of(turn))) ms.push_back(1e3 * growth.steps[turn].wall);
  }
  return quantile(ms, 0.5);
}

Growth take_turns(const std::array<Step, kPrograms>& programs, int groups) {
  for (const Step& step : programs) step();
  Growth growth;
  growth.steps.resize(kTurns * static_cast<std::size_t>(groups));
  const double before = helpers_cpu_seconds();
  for (std::size_t turn = 0; turn < growth.steps.size(); ++turn) {
    growth.steps[turn] = timed(programs[program_of(turn)]);
  }
  growth.helpers_us = 1e6 * (helpers_cpu_seconds() - before) / (kStepsWith * groups);
  return growth;
}

Line figure(const Session& session, const Measured& step, const char* what,
            const std::vector<double>& percents) {
  const Median centre = centre_of(percents);
  Line line("C2", centre.value, "%");
  line.with("figure", what)
      .with("step", step.name)
      .with("ranks", session.world_size())
      .with("low_95", centre.low)
      .with("high_95", centre.high)
      .with("pairs", static_cast<double>(percents.size()));
  return line;
}

void tell(const Session& session, const Measured& step, const Growth& growth) {
  const double off_ms = median_ms(growth, [](Program program) { return program != kOn; });
  const Percents wall = compare(growth, &StepSeconds::wall);
  const Percents cpu = compare(growth, &StepSeconds::cpu);
  const auto judged = [&step](Line line) { return step.is_judged ? line.limit(0.4) : line; };
  judged(figure(session, step, "growth of a training step with Coxswain", wall.growth))
      .with("step_ms_on", median_ms(growth, [](Program program) { return program == kOn; }))
      .with("step_ms_off", off_ms)
      .print();
  figure(session, step, "difference of two equal plain loops", wall.difference).print();
  figure(session, step, "what a step with Coxswain adds to the next one", wall.after).print();
  judged(figure(session, step, "growth of a training step, CPU time of the training thread",
                cpu.growth))
      .print();
  figure(session, step, "difference of two equal plain loops, CPU time of the training thread",
         cpu.difference)
      .print();
  Line("C2", growth.helpers_us, "us")
      .with("figure",
            "CPU time of rank 0's other threads (coordinator, telemetry, run directory) "
            "per step")
      .with("step", step.name)
      .with("ranks", session.world_size())
      .with("percent_of_step", 0.1 * growth.helpers_us / off_ms)
      .print();
}

// Returns the averaging of a plain loop over several ranks; null for one rank.
std::unique_ptr<Averaging> averaging_of(Session& session, const gpt2::Gpt2& model) {
  if (session.world_size() == 1) return nullptr;
  return std::make_unique<Averaging>(session.state().job().data(),
                                     session.state().job().world().wait_policy(),
                                     model->parameters());
}

// Keeps freed memory. By default a loop returns activations to the system after every step and
// spends its time on page faults, whose cost scatters.
void keep_freed_memory() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  mallopt(M_TOP_PAD, 64 << 20);
}

}  // namespace

void measure_growth(Session& session, GrowingStep which, Effort effort) {
  const Measured step = measured(which, session.world_size(), effort);
  keep_freed_memory();
  const RandomBytes dataset(4096);
  Trained with = make_trained();
  const gpt2::Gpt2 first = twin_of(with.model);
  const gpt2::Gpt2 second = twin_of(with.model);
  TrainerOptions options;
  options.global_batch = step.work.sequences * session.world_size();
  options.steps = static_cast<std::uint64_t>(kStepsWith * step.groups + 2);
  options.clip_norm = step.work.clip_norm;
  Trainer trainer(session, *with.model, with.optimizer, options);
  StepWork in_another_order = step.work;
  ++in_another_order.order_seed;
  PlainLoop plain(with, first, dataset, step.work, averaging_of(session, first));
  PlainLoop other(with, second, dataset, in_another_order, averaging_of(session, second));

  auto steps = trainer.steps(dataset);
  auto open = steps.begin();
  const auto on = [&] {
    TrainerStep& now = *open;
    const Batch& batch = now.batch();
    now.backward(now.forward([&] { return with.model->loss(batch.inputs, batch.targets); }));
    now.update();
    ++open;
  };
  const Growth growth = take_turns({on, [&] { plain.step(); }, [&] { other.step(); }}, step.groups);
  on();  // the last one
  if (session.rank() == 0) tell(session, step, growth);
}

}  // namespace cox::bench
