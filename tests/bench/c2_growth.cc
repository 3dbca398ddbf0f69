#include "tests/bench/c2_growth.h"

#include <time.h>
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "coxswain/trainer.h"
#include "sdk/src/session/session_state.h"
#include "tests/bench/averaging.h"
#include "tests/bench/small_gpt.h"

namespace cox::bench {
namespace {

using Clock = std::chrono::steady_clock;

// A turn's first step finds the other loop's caches and the coordinator's work on the last report
// of the turn before, so it counts for neither.
constexpr int kTurn = 3;

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// CPU time of this process outside the training thread.
double helpers_cpu_seconds() {
  return cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
}

// Mean seconds of a step, by the clock on the wall and by the training thread's own, which stands
// still while another program has the core.
struct StepSeconds {
  double wall = 0;
  double cpu = 0;
};

StepSeconds turn_of(const std::function<void()>& step) {
  step();
  const auto start = Clock::now();
  const double cpu = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 1; i < kTurn; ++i) step();
  const double wall = std::chrono::duration<double>(Clock::now() - start).count();
  return {wall / (kTurn - 1), (cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - cpu) / (kTurn - 1)};
}

// One per group of turns.
struct Percents {
  std::vector<double> growth;      // with Coxswain, of the plain loops
  std::vector<double> difference;  // the second plain loop, of the first
};

struct Growth {
  Percents wall;
  Percents cpu;
  std::vector<double> on_ms;
  std::vector<double> off_ms;
  double helpers_us = 0;  // a step of the trainer
};

using Step = std::function<void()>;

void compare(const std::array<StepSeconds, 6>& turns, double StepSeconds::*clock, Percents& into) {
  const double with = (turns[0].*clock + turns[5].*clock) / 2;
  const double first = (turns[1].*clock + turns[4].*clock) / 2;
  const double second = (turns[2].*clock + turns[3].*clock) / 2;
  into.growth.push_back(100 * (with / ((first + second) / 2) - 1));
  into.difference.push_back(100 * (second / first - 1));
}

// on, off, other, other, off, on: drift of the machine falls on all alike. The plain loops are
// equal, so their difference is what the comparison itself adds.
Growth take_turns(const Step& on, const Step& off, const Step& other, int groups) {
  Growth growth;
  double helpers = 0;
  for (const Step* step : {&on, &off, &other}) turn_of(*step);
  for (int group = 0; group < groups; ++group) {
    std::array<StepSeconds, 6> seconds{};
    const std::array<const Step*, 6> turns = {&on, &off, &other, &other, &off, &on};
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      const double before = helpers_cpu_seconds();
      seconds[turn] = turn_of(*turns[turn]);
      helpers += helpers_cpu_seconds() - before;
    }
    compare(seconds, &StepSeconds::wall, growth.wall);
    compare(seconds, &StepSeconds::cpu, growth.cpu);
    growth.on_ms.push_back(500 * (seconds[0].wall + seconds[5].wall));
    growth.off_ms.push_back(
        250 * (seconds[1].wall + seconds[2].wall + seconds[3].wall + seconds[4].wall));
  }
  growth.helpers_us = 1e6 * helpers / (2.0 * kTurn * groups);
  return growth;
}

Line figure(const Session& session, const char* what, const std::vector<double>& percents) {
  const Median centre = centre_of(percents);
  const auto groups = static_cast<double>(percents.size());
  Line line("C2", centre.value, "%");
  line.with("figure", what)
      .with("ranks", session.world_size())
      .with("low_95", centre.low)
      .with("high_95", centre.high)
      .with("groups", groups)
      .with("steps_each", groups * 2 * (kTurn - 1));
  return line;
}

void tell(const Session& session, const Growth& growth) {
  const double step_ms = quantile(growth.off_ms, 0.5);
  figure(session, "growth of a training step with Coxswain", growth.wall.growth)
      .limit(0.5)
      .with("step_ms_on", quantile(growth.on_ms, 0.5))
      .with("step_ms_off", step_ms)
      .print();
  figure(session, "difference of two equal plain loops", growth.wall.difference).print();
  figure(session, "growth of a training step, CPU time of the training thread", growth.cpu.growth)
      .limit(0.5)
      .print();
  figure(session, "difference of two equal plain loops, CPU time of the training thread",
         growth.cpu.difference)
      .print();
  Line("C2", growth.helpers_us, "us")
      .with("figure",
            "CPU time of rank 0's other threads (coordinator, telemetry, run directory) "
            "per step")
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

}  // namespace

void measure_growth(Session& session, Effort effort) {
  const int full = session.world_size() == 1 ? 300 : 60;
  const int groups = effort == Effort::quick ? 8 : full;
  const RandomBytes dataset(4096);
  Trained with = make_trained();
  const gpt2::Gpt2 first = twin_of(with.model);
  const gpt2::Gpt2 second = twin_of(with.model);
  TrainerOptions options;
  options.global_batch = kSequences * session.world_size();
  options.steps = static_cast<std::uint64_t>((2 * groups + 1) * kTurn + 1);
  Trainer trainer(session, *with.model, with.optimizer, options);
  PlainLoop plain(with, first, dataset, averaging_of(session, first));
  PlainLoop other(with, second, dataset, averaging_of(session, second));

  auto steps = trainer.steps(dataset);
  auto open = steps.begin();
  const auto on = [&] {
    TrainerStep& step = *open;
    const Batch& batch = step.batch();
    step.backward(step.forward([&] { return with.model->loss(batch.inputs, batch.targets); }));
    step.update();
    ++open;
  };
  const Growth growth = take_turns(
      on, [&] { plain.step(); }, [&] { other.step(); }, groups);
  on();  // the last one
  if (session.rank() == 0) tell(session, growth);
}

}  // namespace cox::bench
