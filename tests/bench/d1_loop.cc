#include "tests/bench/d1_loop.h"

#include <chrono>
#include <cstdio>
#include <string>
#include <utility>

#include "tests/bench/orders.h"

namespace cox::bench {
namespace {

using Clock = std::chrono::steady_clock;

// The same optimizer as in ddp_peer.py.
AdamW optimizer_of(const gpt2::Gpt2& model) {
  const gpt2::DecayGroups groups = gpt2::decay_groups(*model);
  return AdamW({{groups.decayed, {.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0.1}},
                {groups.plain, {.lr = 3e-4, .beta2 = 0.95, .weight_decay = 0}}});
}

std::string number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

}  // namespace

std::string D1Turn::text() const {
  std::string line =
      "{\"seconds\":" + number(seconds) + ",\"cpu\":" + number(cpu_seconds) + ",\"losses\":[";
  for (std::size_t i = 0; i < losses.size(); ++i) line += (i ? "," : "") + number(losses[i]);
  return line + "],\"overlap\":" + overlap.text() + "}";
}

D1Loop::D1Loop(Session& session, D1Task task, std::int64_t rows)
    : session_(session),
      task_(std::move(task)),
      slot_{session.rank(), session.world_size(), rows},
      optimizer_(optimizer_of(task_.model)),
      reducer_(session, task_.model->parameters()) {}

double D1Loop::step() {
  const Batch batch = d1_batch(task_.tokens, slot_, next_++);
  auto step = session_.step();
  at::Tensor loss;
  {
    const PhaseScope phase = step.phase(Phase::forward);
    loss = task_.model->loss(batch.inputs, batch.targets);
  }
  reducer_.backward(step, loss, static_cast<double>(batch.samples));
  const ReductionOutcome outcome = reducer_.average(step);
  const PhaseScope phase = step.phase(Phase::optimizer);
  if (outcome.finite) optimizer_.step();
  optimizer_.zero_grad();
  return outcome.loss;
}

D1Turn D1Loop::turn(int steps) {
  D1Turn turn;
  turn.losses.push_back(step());
  const double cpu_before = process_cpu_seconds();
  const auto start = Clock::now();
  for (int i = 1; i < steps; ++i) {
    turn.losses.push_back(step());
    turn.overlap.add(reducer_.last_reduction());
  }
  turn.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  turn.cpu_seconds = process_cpu_seconds() - cpu_before;
  return turn;
}

}  // namespace cox::bench
