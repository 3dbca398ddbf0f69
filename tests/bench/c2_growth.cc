#include "tests/bench/c2_growth.h"

#include <time.h>
#include <torch/torch.h>

#include <chrono>
#include <functional>
#include <optional>

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
  std::vector<double> percent;  // one per group of four turns
  std::vector<double> on_ms;
  std::vector<double> off_ms;
  double helpers_us = 0;  // a step of the trainer
};

// on, off, off, on: drift of the machine falls on both alike.
Growth take_turns(const std::function<void()>& on, const std::function<void()>& off, int groups) {
  Growth growth;
  double helpers = 0;
  turn_of(on);
  turn_of(off);
  for (int group = 0; group < groups; ++group) {
    std::array<double, 4> seconds{};
    for (std::size_t turn = 0; turn < 4; ++turn) {
      const bool is_on = turn == 0 || turn == 3;
      const double before = helpers_cpu_seconds();
      seconds[turn] = turn_of(is_on ? on : off);
      helpers += helpers_cpu_seconds() - before;
    }
    const double with = seconds[0] + seconds[3];
    const double without = seconds[1] + seconds[2];
    growth.percent.push_back(100 * (with / without - 1));
    growth.on_ms.push_back(1e3 * with / 2);
    growth.off_ms.push_back(1e3 * without / 2);
  }
  growth.helpers_us = 1e6 * helpers / (2.0 * kTurn * groups);
  return growth;
}

void tell(const Session& session, const Growth& growth) {
  const Median percent = centre_of(growth.percent);
  const double step_ms = quantile(growth.off_ms, 0.5);
  Line("C2", percent.value, "%")
      .limit(0.5)
      .with("figure", "growth of a training step with Coxswain")
      .with("ranks", session.world_size())
      .with("low_95", percent.low)
      .with("high_95", percent.high)
      .with("groups", static_cast<double>(growth.percent.size()))
      .with("steps_each", static_cast<double>(growth.percent.size()) * 2 * (kTurn - 1))
      .with("step_ms_on", quantile(growth.on_ms, 0.5))
      .with("step_ms_off", step_ms)
      .print();
  Line("C2", growth.helpers_us, "us")
      .with("figure",
            "CPU time of rank 0's other threads (coordinator, telemetry, run directory) "
            "per step")
      .with("ranks", session.world_size())
      .with("percent_of_step", 0.1 * growth.helpers_us / step_ms)
      .print();
}

}  // namespace

void measure_growth(Session& session, Effort effort) {
  const int full = session.world_size() == 1 ? 400 : 100;
  const int groups = effort == Effort::quick ? 8 : full;
  const RandomBytes dataset(4096);
  Trained with = make_trained();
  Trained without = make_trained();
  TrainerOptions options;
  options.global_batch = kSequences * session.world_size();
  options.steps = static_cast<std::uint64_t>((2 * groups + 1) * kTurn + 1);
  Trainer trainer(session, *with.model, with.optimizer, options);
  std::optional<Averaging> averaging;
  if (session.world_size() > 1) {
    averaging.emplace(session.state().data(), session.state().wait_policy(),
                      without.model->parameters());
  }
  PlainLoop plain(without, dataset, averaging ? &*averaging : nullptr);

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
      on, [&] { plain.step(); }, groups);
  on();  // the last one
  if (session.rank() == 0) tell(session, growth);
}

}  // namespace cox::bench
