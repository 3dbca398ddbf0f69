// Fifty steps of every kind of loop but adopted ones match their records, call by call. After an
// intended change, STEP_RECORDS=write in the environment writes the records anew; read the
// difference before the commit.
#include <mpi.h>
#include <torch/torch.h>

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/decide/policy.h"
#include "coordinator/io/save_folder.h"
#include "coxswain/fit.h"
#include "coxswain/manual.h"
#include "coxswain/reducer.h"
#include "coxswain/session.h"
#include "coxswain/trainer.h"
#include "recorded_loop.h"
#include "step_record.h"
#include "tests/sdk/session/solo.h"
#include "tests/sdk/shared_folder.h"

#include <doctest/doctest.h>

using namespace cox;
using namespace sdk_test;

namespace {

constexpr std::uint64_t kSharesRound = 15;
constexpr std::uint64_t kRollbackRound = 30;
constexpr int kBadStep = 7;

class Ramp final : public Dataset {
 public:
  std::int64_t size() const override { return 64; }
  Batch get(std::span<const std::int64_t> indices) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    Batch batch{torch::zeros({rows, 4}), {}, rows};
    for (std::int64_t r = 0; r < rows; ++r)
      batch.inputs[r] = inputs(1, indices[static_cast<std::size_t>(r)]).squeeze(0);
    return batch;
  }
};

at::Tensor spoilt(const at::Tensor& values, bool is_bad) {
  return is_bad ? values * std::numeric_limits<double>::quiet_NaN() : values;
}

void note(Recording& recording, const ReductionOutcome& outcome) {
  recording.note(concat("outcome weight ", outcome.weight, " samples ", outcome.samples,
                        outcome.finite ? "" : " not finite", outcome.repeat ? " repeat" : "",
                        outcome.stop ? " stop" : ""));
}

// Runs two micro-batches a step. The last rank's loss is NaN in one step, and the rank has no
// samples in ten.
void run_reducer(const std::string& kind, const std::vector<std::string>& flags) {
  Recording recording;
  Session session = recording.start(flags, holding());
  TwoBlocks model;
  torch::optim::SGD optimizer(model->parameters(), 1.0 / 64);
  Reducer reducer(session, *model);
  for (int i = 0; i < kSteps; ++i) {
    recording.next_step();
    StepScope step = session.step();
    const bool has_samples = !is_last() || i < 20 || i >= 30;
    for (int k = 0; has_samples && k < 2; ++k) {
      const at::Tensor loss = loss_of(model, inputs(4, i + session.rank()));
      reducer.backward(step, spoilt(loss, is_last() && i == kBadStep), 4,
                       k == 1 ? MicroBatch::last : MicroBatch::more);
    }
    step.samples(has_samples ? 8 : 0);
    const ReductionOutcome outcome = reducer.average(step);
    note(recording, outcome);
    if (outcome.finite) optimizer.step();
    optimizer.zero_grad();
  }
  recording.end();
  note_weights(recording, *model);
  session.finish();
  check_record(recording, kind);
}

// A rank with fewer samples joins the others' steps.
void run_joining() {
  Recording recording;
  Session session = recording.start({}, holding());
  TwoBlocks model;
  torch::optim::SGD optimizer(model->parameters(), 1.0 / 64);
  Reducer reducer(session, *model);
  const auto update = [&](const ReductionOutcome& outcome) {
    note(recording, outcome);
    if (outcome.finite) optimizer.step();
    optimizer.zero_grad();
  };
  const int steps = is_last() ? kSteps - 10 : kSteps;
  for (int i = 0; i < steps; ++i) {
    if (i == kSteps - 10) recording.free_running();
    recording.next_step();
    StepScope step = session.step();
    reducer.backward(step, loss_of(model, inputs(4, i)), 4);
    update(reducer.average(step));
  }
  recording.free_running();
  recording.next_step();
  reducer.join([&](StepScope&, const ReductionOutcome& outcome) {
    update(outcome);
    recording.next_step();
  });
  recording.end();
  note_weights(recording, *model);
  session.finish();
  check_record(recording, "reducer_joining");
}

void train_until_one_leaves(Recording& recording, Session& session) {
  TwoBlocks model;
  Reducer reducer(session, *model);
  for (int i = 0; i < kSteps; ++i) {
    recording.next_step();
    StepScope step = session.step();
    reducer.backward(step, loss_of(model, inputs(4, i)), 4);
    if (i == 20 && is_last()) throw std::runtime_error("the test leaves");
    note(recording, reducer.average(step));
    for (const at::Tensor& p : model->parameters()) p.mutable_grad().reset();
  }
}

// A rank leaves by an exception in the middle of a step, which ends all sessions.
void fail_together(Recording& recording) {
  Session session = recording.start({}, holding());
  try {
    train_until_one_leaves(recording, session);
  } catch (...) {
    recording.free_running();
    MPI_Barrier(MPI_COMM_WORLD);  // a session waits five seconds for other failing ranks
    throw;
  }
}

void run_leaving() {
  Recording recording;
  try {
    fail_together(recording);
  } catch (const std::exception& error) {
    recording.note(concat("ended by: ", error.what()));
  }
  recording.end();
  check_record(recording, "reducer_leaving");
}

PolicySet steering(int ranks) {
  std::map<std::uint64_t, PlanChange> changes = {
      {kHoldRound, HoldUntil{RoundId(kHoldRound + 3)}},
      {kRollbackRound, RollBack{RoundId(kRollbackRound)}}};
  std::vector<std::uint32_t> shares(static_cast<std::size_t>(ranks), 2);
  shares.back() = 1;
  if (ranks > 1) changes.emplace(kSharesRound, SetShares{shares});
  return scripted(std::move(changes));
}

// Shares change, a step is skipped, and the job rolls back once.
void run_trainer(const std::string& kind, std::vector<std::string> flags, TrainerOptions options) {
  Recording recording;
  flags.push_back("--cox.checkpoint.snapshot_rounds=8");
  Session session = recording.start(flags, steering(Recording::world_size()));
  TwoBlocks model;
  torch::optim::SGD optimizer(model->parameters(), 1.0 / 64);
  Trainer trainer(session, *model, optimizer, options);
  const Ramp data;
  for (TrainerStep& step : trainer.steps(data)) {
    recording.next_step();
    // The model's buffers are rank 0's.
    const bool is_bad = Recording::rank() == 0 && step.number() == kBadStep;
    const auto loss = [&](const Batch& batch) {
      return loss_of(model, spoilt(batch.inputs, is_bad));
    };
    if (options.micro_batch > 0) {
      step.accumulate(loss);
    } else {
      step.backward(step.forward([&] { return loss(step.batch()); }));
    }
    step.update();
    const TrainingProgress progress = trainer.progress();
    recording.note(concat("skipped ", progress.skipped, " rollbacks ", progress.rollbacks,
                          " repeated ", progress.repeated));
  }
  recording.end();
  note_weights(recording, *model);
  session.finish();
  check_record(recording, kind);
}

// Returns the collective calls in a Trainer's steps. Leaves out the last step, which ends with a
// collective save.
std::vector<std::string> calls_of_trainer(const std::vector<std::string>& flags) {
  Recording recording;
  Session session = recording.start(flags, steering(Recording::world_size()));
  TwoBlocks model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  Trainer trainer(session, *model, optimizer, {.global_batch = 16, .steps = kSteps});
  const Ramp data;
  for (TrainerStep& step : trainer.steps(data)) {
    recording.next_step();
    step.backward(step.forward([&] { return loss_of(model, step.batch().inputs); }));
    step.update();
  }
  recording.end();
  session.finish();
  std::vector<std::string> calls = recording.calls();
  calls.pop_back();
  return calls;
}

void run_fit() {
  Recording recording;
  Session session = recording.start({}, holding());
  TwoBlocks model;
  torch::optim::SGD optimizer(model->parameters(), 1.0 / 64);
  const Ramp data;
  FitOptions options{.epochs = 6, .global_batch = 8, .micro_batch = 2};
  bool is_new_step = true;
  options.on_step = [&](const FitStep&) { is_new_step = true; };
  const FitLoss loss = [&](const Batch& batch) {
    const bool is_training = at::GradMode::is_enabled();
    if (is_training && std::exchange(is_new_step, false)) recording.next_step();
    return loss_of(model, batch.inputs);
  };
  static_cast<void>(fit(session, *model, optimizer, data, loss, options));
  recording.end();
  note_weights(recording, *model);
  session.finish();
  check_record(recording, "fit");
}

void run_manual() {
  Recording recording;
  Session session = recording.start({}, holding());
  TwoBlocks model;
  ManualParallel ranks(session, *model);
  ranks.sync_parameters(model->parameters());
  ranks.sync_buffers(model->buffers());
  torch::optim::SGD optimizer(model->parameters(), 1.0 / 64);
  for (int i = 0; i < kSteps; ++i) {
    recording.next_step();
    StepScope step = session.step();
    const at::Tensor loss = loss_of(model, inputs(4, i + session.rank()));
    step.loss(loss.item<double>(), 4);
    step.samples(4);
    ranks.backward(step, spoilt(loss, is_last() && i == kBadStep));
    const double weight = is_last() && i >= 20 && i < 30 ? 0 : 4;
    bool is_finite = ranks.all_reduce_gradients(step, model->a->parameters(), weight).finite;
    is_finite = ranks.all_reduce_gradients(step, model->b->parameters()).finite && is_finite;
    if (is_finite) optimizer.step();
    optimizer.zero_grad();
    note(recording, ranks.close(step));
  }
  recording.end();
  note_weights(recording, *model);
  session.finish();
  check_record(recording, "manual");
}

void run_watched() {
  Recording recording;
  Session session = recording.start({});
  for (int i = 0; i < kSteps; ++i) {
    recording.next_step();
    StepScope step = session.step();
    step.loss(1.5, 4);
    step.samples(4);
    step.tokens(8);
  }
  recording.end();
  session.finish();
  check_record(recording, "watched");
}

}  // namespace

TEST_SUITE("records of steps") {
  TEST_CASE("a Reducer's") {
    run_reducer("reducer", {});
  }
  TEST_CASE("a Reducer's in reproducible mode") {
    run_reducer("reducer_reproducible", {"--cox.reduction.reproducible=on"});
  }
  TEST_CASE("a Reducer's whose rank joins the others at its end") {
    run_joining();
  }
  TEST_CASE("a Reducer's that a rank leaves") {
    run_leaving();
  }
  TEST_CASE("a Trainer's") {
    run_trainer("trainer", {}, {.global_batch = 16, .steps = kSteps});
  }
  TEST_CASE("a Trainer's that accumulates and gets batches ahead of time") {
    run_trainer("trainer_accumulating", {"--cox.reduction.reproducible=on"},
                {.global_batch = 16, .micro_batch = 2, .prefetch = 2, .steps = kSteps});
  }
  // Makes one save only, because another one might have to wait.
  TEST_CASE("a Trainer's has the same calls in each step when a save is written beside them") {
    auto probe = solo_session();
    const SharedFolder folder(probe);
    probe.finish();
    const auto plain = calls_of_trainer({});
    const auto saving = calls_of_trainer({"--cox.checkpoint.directory=" + folder.text(),
                                          concat("--cox.checkpoint.every_steps=", kSteps / 2)});
    CHECK(saving.size() == kSteps - 1);
    CHECK(saving == plain);
    CHECK((Recording::world_size() == 1) == saving.front().empty());
    CHECK(io::saves_in(folder.text()).size() == 2);
  }
  TEST_CASE("fit()'s") {
    run_fit();
  }
  TEST_CASE("ManualParallel's") {
    run_manual();
  }
  TEST_CASE("a loop's that is watched only") {
    run_watched();
  }
}
