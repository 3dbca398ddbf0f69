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

// Mean seconds of a step.
double turn_of(const std::function<void()>& step) {
  step();
  const auto start = Clock::now();
  for (int i = 1; i < kTurn; ++i) step();
  return std::chrono::duration<double>(Clock::now() - start).count() / (kTurn - 1);
}

struct Growth {
  std::vector<double> percent;       // one per group of turns: with Coxswain, of the plain loops
  std::vector<double> null_percent;  // the second plain loop, of the first
  std::vector<double> on_ms;
  std::vector<double> off_ms;
  double helpers_us = 0;  // a step of the trainer
};

using Step = std::function<void()>;

// on, off, other, other, off, on: drift of the machine falls on all alike. The plain loops are
// equal, so their difference is what the comparison itself adds.
Growth take_turns(const Step& on, const Step& off, const Step& other, int groups) {
  Growth growth;
  double helpers = 0;
  for (const Step* step : {&on, &off, &other}) turn_of(*step);
  for (int group = 0; group < groups; ++group) {
    std::array<double, 6> seconds{};
    const std::array<const Step*, 6> turns = {&on, &off, &other, &other, &off, &on};
    for (std::size_t turn = 0; turn < turns.size(); ++turn) {
      const double before = helpers_cpu_seconds();
      seconds[turn] = turn_of(*turns[turn]);
      helpers += helpers_cpu_seconds() - before;
    }
    const double with = (seconds[0] + seconds[5]) / 2;
    const double first = (seconds[1] + seconds[4]) / 2;
    const double second = (seconds[2] + seconds[3]) / 2;
    const double without = (first + second) / 2;
    growth.percent.push_back(100 * (with / without - 1));
    growth.null_percent.push_back(100 * (second / first - 1));
    growth.on_ms.push_back(1e3 * with);
    growth.off_ms.push_back(1e3 * without);
  }
  growth.helpers_us = 1e6 * helpers / (2.0 * kTurn * groups);
  return growth;
}

void tell(const Session& session, const Growth& growth) {
  const Median percent = centre_of(growth.percent);
  const Median null = centre_of(growth.null_percent);
  const double step_ms = quantile(growth.off_ms, 0.5);
  const auto groups = static_cast<double>(growth.percent.size());
  Line("C2", percent.value, "%")
      .limit(0.5)
      .with("figure", "growth of a training step with Coxswain")
      .with("ranks", session.world_size())
      .with("low_95", percent.low)
      .with("high_95", percent.high)
      .with("groups", groups)
      .with("steps_each", groups * 2 * (kTurn - 1))
      .with("step_ms_on", quantile(growth.on_ms, 0.5))
      .with("step_ms_off", step_ms)
      .print();
  Line("C2", null.value, "%")
      .with("figure", "difference of two equal plain loops")
      .with("ranks", session.world_size())
      .with("low_95", null.low)
      .with("high_95", null.high)
      .with("groups", groups)
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
