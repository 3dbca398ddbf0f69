// NC: the cost of watching the numbers in a training step: a scan of every tensor between blocks,
// forward and backward, sampled gradient noise, and, with fp16, the loss scale. One trainer of the
// demo's small GPT-2 alternates turns of steps with the watch on and off.
//
//   bench_nc [--quick] --cox.precision.format=bf16 ...
#include <torch/torch.h>

#include <array>
#include <chrono>
#include <string>
#include <vector>

#include "coxswain/coxswain.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/training/capabilities.h"
#include "tests/bench/line.h"
#include "tests/bench/session_main.h"
#include "tests/bench/small_gpt.h"

namespace {

using namespace cox;
using bench::kSequences;
using Clock = std::chrono::steady_clock;

constexpr int kTurn = 9;  // the first step settles; the others have one sample of gradients

class Contest {
 public:
  explicit Contest(Session& session, int groups)
      : loss_scale_(session.capabilities().loss_scale),
        numerics_(session.capabilities().numerics),
        trained_(bench::make_trained()),
        trainer_(session, *trained_.model, trained_.optimizer,
                 {.global_batch = kSequences,
                  .steps = static_cast<std::uint64_t>((4 * groups + 1) * kTurn + 1)}),
        steps_(trainer_.steps(dataset_)),
        open_(steps_.begin()) {}

  // Returns the mean milliseconds of a step.
  double turn(bool is_watched) {
    watch(is_watched);
    step();
    const auto start = Clock::now();
    for (int i = 1; i < kTurn; ++i) step();
    return 1e3 * std::chrono::duration<double>(Clock::now() - start).count() / (kTurn - 1);
  }

  void step() {
    TrainerStep& step = *open_;
    const Batch& batch = step.batch();
    step.backward(step.forward([&] { return trained_.model->loss(batch.inputs, batch.targets); }));
    step.update();
    ++open_;
  }

 private:
  // Without the watch, a scale of 1 saves dividing the gradients.
  void watch(bool is_on) {
    if (loss_scale_.is_active()) loss_scale_.restore(ScalerState{.scale = is_on ? 65536.0F : 1.0F});
    if (is_on == numerics_.health().is_watching()) return;
    if (is_on) {
      numerics_.watch(trained_.model->parameters());
    } else {
      numerics_.release();
    }
  }

  cox::detail::LossScale& loss_scale_;
  cox::detail::NumericsWatch& numerics_;
  bench::RandomBytes dataset_{4096};
  bench::Trained trained_;
  Trainer trainer_;
  Trainer::Steps steps_;
  Trainer::Steps::Iterator open_;
};

void measure(Session& session, bench::Effort effort) {
  at::set_num_threads(1);
  const int groups = effort == bench::Effort::quick ? 4 : 40;
  const auto format = session.config().precision.format;
  Contest contest(session, groups);
  contest.turn(true);
  std::vector<double> percent;
  std::vector<double> off_ms;
  for (int group = 0; group < groups; ++group) {
    std::array<double, 4> ms{};
    for (std::size_t i = 0; i < 4; ++i) ms[i] = contest.turn(i == 0 || i == 3);
    percent.push_back(100 * ((ms[0] + ms[3]) / (ms[1] + ms[2]) - 1));
    off_ms.push_back((ms[1] + ms[2]) / 2);
  }
  contest.step();
  const bench::Median centre = bench::centre_of(percent);
  bench::Line("NC", centre.value, "%")
      .limit(1)
      .with("figure", "growth of a training step that watches its numbers")
      .with("format", format ? to_string(*format) : "auto")
      .with("low_95", centre.low)
      .with("high_95", centre.high)
      .with("groups", groups)
      .with("step_ms_off", bench::quantile(off_ms, 0.5))
      .print();
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Effort effort = bench::effort_of(argc, argv);
  return bench::session_main(argc, argv, {.program = "bench_nc"},
                             [effort](Session& session) { measure(session, effort); });
}
