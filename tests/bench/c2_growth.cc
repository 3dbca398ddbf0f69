#include "tests/bench/c2_growth.h"

#include <malloc.h>
#include <time.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
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

// Steps differ by a tenth here, and neighbours less than others: programs change places after every
// step. Half the steps are the trainer's; half the steps of each program follow one of the
// trainer's, round and round; and a drift falls on all alike.
enum Program { kOn, kPlain, kOther, kPrograms };
constexpr std::array<Program, 8> kOrder = {kOn, kPlain, kOther, kOn, kOn, kOther, kPlain, kOn};
constexpr int kStepsWith = 4;  // of a group

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// CPU time of this process outside the training thread.
double helpers_cpu_seconds() {
  return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
}

// By the clock on the wall and by the training thread's own, which stands still while another
// program has the core.
struct StepSeconds {
  double wall = 0;
  double cpu = 0;
};

using Step = std::function<void()>;
using Group = std::array<StepSeconds, kOrder.size()>;  // in the order of their turns

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
};

Measured measured(GrowingStep which, int ranks, Effort effort) {
  const bool is_quick = effort == Effort::quick;
  if (which == GrowingStep::small) {
    return {"4 sequences a rank, no clipping", {}, is_quick ? 20 : ranks == 1 ? 1000 : 500};
  }
  const StepWork work{.sequences = 16 / ranks, .clip_norm = 1};
  return {"16 sequences over all ranks, clipped at 1 (scripts/demo)", work, is_quick ? 8 : 1600};
}

// One per group.
struct Percents {
  std::vector<double> growth;      // with Coxswain, of the plain loops
  std::vector<double> difference;  // the second plain loop, of the first
  std::vector<double> after;       // what a step with Coxswain adds to the next one
};

struct Growth {
  Percents wall;
  Percents cpu;
  std::vector<double> on_ms;
  std::vector<double> off_ms;
  double helpers_us = 0;  // a step of the trainer
};

double mean(const Group& group, double StepSeconds::*clock,
            const std::function<bool(std::size_t)>& is_meant) {
  double sum = 0;
  int count = 0;
  for (std::size_t turn = 0; turn < group.size(); ++turn) {
    if (!is_meant(turn)) continue;
    sum += group[turn].*clock;
    ++count;
  }
  return sum / count;
}

double mean_of(const Group& group, double StepSeconds::*clock, Program program) {
  return mean(group, clock, [program](std::size_t turn) { return kOrder[turn] == program; });
}

// Of the steps without Coxswain.
double mean_off(const Group& group, double StepSeconds::*clock) {
  return mean(group, clock, [](std::size_t turn) { return kOrder[turn] != kOn; });
}

bool follows_on(std::size_t turn) {
  return kOrder[(turn + kOrder.size() - 1) % kOrder.size()] == kOn;
}

void compare(const Group& group, double StepSeconds::*clock, Percents& into) {
  const double on = mean_of(group, clock, kOn);
  into.growth.push_back(100 * (on / mean_off(group, clock) - 1));
  const double plain = mean_of(group, clock, kPlain);
  into.difference.push_back(100 * (mean_of(group, clock, kOther) / plain - 1));
  const double after = mean(group, clock, follows_on);
  const double before = mean(group, clock, std::not_fn(follows_on));
  into.after.push_back(100 * (after / before - 1));
}

Growth take_turns(const std::array<Step, kPrograms>& programs, int groups) {
  Growth growth;
  double helpers = 0;
  for (const Step& step : programs) step();
  for (int g = 0; g < groups; ++g) {
    Group group{};
    const double before = helpers_cpu_seconds();
    for (std::size_t turn = 0; turn < group.size(); ++turn) {
      group[turn] = timed(programs[kOrder[turn]]);
    }
    helpers += helpers_cpu_seconds() - before;
    compare(group, &StepSeconds::wall, growth.wall);
    compare(group, &StepSeconds::cpu, growth.cpu);
    growth.on_ms.push_back(1e3 * mean_of(group, &StepSeconds::wall, kOn));
    growth.off_ms.push_back(1e3 * mean_off(group, &StepSeconds::wall));
  }
  growth.helpers_us = 1e6 * helpers / (kStepsWith * groups);
  return growth;
}

Line figure(const Session& session, const Measured& step, const char* what,
            const std::vector<double>& percents) {
  const Median centre = centre_of(percents);
  const auto groups = static_cast<double>(percents.size());
  Line line("C2", centre.value, "%");
  line.with("figure", what)
      .with("step", step.name)
      .with("ranks", session.world_size())
      .with("low_95", centre.low)
      .with("high_95", centre.high)
      .with("groups", groups)
      .with("steps_with", groups * kStepsWith);
  return line;
}

void tell(const Session& session, const Measured& step, const Growth& growth) {
  const double step_ms = quantile(growth.off_ms, 0.5);
  figure(session, step, "growth of a training step with Coxswain", growth.wall.growth)
      .limit(0.5)
      .with("step_ms_on", quantile(growth.on_ms, 0.5))
      .with("step_ms_off", step_ms)
      .print();
  figure(session, step, "difference of two equal plain loops", growth.wall.difference).print();
  figure(session, step, "what a step with Coxswain adds to the next one", growth.wall.after)
      .print();
  figure(session, step, "growth of a training step, CPU time of the training thread",
         growth.cpu.growth)
      .limit(0.5)
      .print();
  figure(session, step, "difference of two equal plain loops, CPU time of the training thread",
         growth.cpu.difference)
      .print();
  Line("C2", growth.helpers_us, "us")
      .with("figure",
            "CPU time of rank 0's other threads (coordinator, telemetry, run directory) "
            "per step")
      .with("step", step.name)
      .with("ranks", session.world_size())
      .with("percent_of_step", 0.1 * growth.helpers_us / step_ms)
      .print();
}

// What a plain loop over several ranks needs.
std::unique_ptr<Averaging> averaging_of(Session& session, const gpt2::Gpt2& model) {
  if (session.world_size() == 1) return nullptr;
  return std::make_unique<Averaging>(session.state().data(), session.state().wait_policy(),
                                     model->parameters());
}

// A loop that gives the memory of its activations back to the system after every step, as the
// default settings have it, spends its time on page faults, whose cost scatters.
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
