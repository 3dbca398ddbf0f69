#include <torch/torch.h>

#include <algorithm>

#include "coxswain/error.h"
#include "coxswain/safetensors.h"
#include "sdk/src/parallel/parameter_list.h"
#include "sdk/src/parallel/start_equal.h"
#include "sdk/src/training/trainer_impl.h"

namespace cox {

using detail::Checkpoint;
using detail::CheckpointFolder;

Trainer::Impl::Impl(Session& session_in, torch::nn::Module& model_in,
                    std::unique_ptr<detail::OptimizerPort> optimizer_in, TrainerOptions options_in)
    : session(session_in),
      state(session_in.state()),
      model(model_in),
      parameters(detail::each_once(model_in.parameters())),
      optimizer(std::move(optimizer_in)),
      options(std::move(options_in)),
      step_handle(nullptr) {
  check_is_first();
  check_options();
  check_equal_names();
  check_optimizer();
  state.declare_reducing();
  session.attach(model);
  state.declare(capabilities(), static_cast<std::uint64_t>(options.global_batch),
                static_cast<std::uint64_t>(options.micro_batch));
  open_checkpoints();
  const Resumed saved = state.config().checkpoint.resume ? resume() : Resumed{};
  position.seed = state.config().run.seed;
  reducer.emplace(session, model.parameters(), model.buffers());
  if (!saved.reducer.empty()) state.agree(reducer->load_state(saved.reducer));
  state.load_numbers(saved.numbers);
  if (is_reproducible()) statistics.emplace(model);
  buffers.emplace(model.buffers(), [this](const at::Tensor& buffer) { return keeps(buffer); });
  rollback_done = session.plan().rollback.ticket;
}

// What a step may have to put back and nobody else does: all where steps are repeated, else what
// can become NaN.
bool Trainer::Impl::keeps(const at::Tensor& buffer) const {
  if (!statistics) return buffer.is_floating_point();
  const std::vector<at::Tensor> apart = statistics->buffers();
  return std::none_of(apart.begin(), apart.end(),
                      [&](const at::Tensor& other) { return buffer.is_same(other); });
}

Capabilities Trainer::Impl::capabilities() const {
  Capabilities can;
  can.shares = true;
  // Its figures are of steps that took the batch of the plan in force.
  can.accumulation = options.micro_batch > 0 && options.prefetch == 0;
  can.rollback = state.config().checkpoint.snapshot_rounds > 0;
  return can;
}

void Trainer::Impl::open_checkpoints() {
  const CheckpointConfig& config = state.config().checkpoint;
  Status status;
  if (!config.directory.empty()) {
    auto opened = CheckpointFolder::open(config.directory);
    if (opened.ok()) {
      folder.emplace(std::move(*opened));
      status = check_unused(config);
    } else {
      status = opened.status();
    }
  } else if (config.resume) {
    status = invalid_argument(
        "checkpoint.resume: expected checkpoint.directory to resume from, found none; set it to "
        "the folder of the earlier run");
  }
  state.agree(status);
}

// A run that starts afresh must not mix its saves with another's, let alone remove those.
Status Trainer::Impl::check_unused(const CheckpointConfig& config) const {
  const auto newest = folder->newest();
  if (config.resume || !newest) return ok_status();
  return failed_precondition("checkpoint.directory: expected a folder without saves, found " +
                             newest->string() +
                             "; set checkpoint.resume=on to go on from it, or another folder");
}

Trainer::Impl::Resumed Trainer::Impl::resume() {
  const auto newest = folder->newest();
  Status status;
  std::optional<Checkpoint> checkpoint;
  if (newest) {
    auto read = CheckpointFolder::read(*newest);
    if (read.ok()) {
      checkpoint.emplace(std::move(*read));
    } else {
      status = read.status();
    }
  } else {
    status =
        not_found("checkpoint.resume: expected a save in " + state.config().checkpoint.directory +
                  ", found none; start without checkpoint.resume");
  }
  state.agree(status);
  session.together([&] { load(*checkpoint); });
  adopt(checkpoint->position);
  if (session.rank() == 0) {
    auto control = CheckpointFolder::read_control(*newest);
    if (control.ok()) {
      state.restore_control(std::move(*control));
    } else {
      state.log().warning("the coordinator starts afresh: " + control.status().text());
    }
    state.log().info("resumed at step " + std::to_string(position.step));
  }
  return {std::move(checkpoint->reducer), std::move(checkpoint->numbers)};
}

void Trainer::Impl::load(const Checkpoint& checkpoint) {
  const auto targets = detail::model_tensors(model);
  Status loaded = load_into(targets, checkpoint.model);
  if (loaded.ok()) loaded = optimizer->load_state(checkpoint.optimizer);
  if (!loaded.ok()) throw Error(loaded.with_context("resume"));
}

void Trainer::Impl::adopt(const detail::TrainingPosition& resumed) {
  check_resumed(resumed);
  position = resumed;
  state.precision().restore(position.scaler);
  saved_step = position.step;
  progress.step = position.step;
  progress.consumed = position.cursor;
  progress.skipped = position.skipped;
  progress.rollbacks = position.rollbacks;
  progress.resumed = true;
  state.resume_at(StepId(position.step));
}

void Trainer::Impl::check_folder() const {
  if (folder) return;
  throw Error(failed_precondition("save: expected a folder in checkpoint.directory, found none; "
                                  "set it to where checkpoints are to go"),
              Error::Scope::all_ranks);
}

void Trainer::Impl::save(OnFailure on_failure) {
  Status written;
  state.flush_rows();
  std::vector<NamedTensor> numbers = state.saved_numbers();
  if (session.rank() == 0) {
    Checkpoint checkpoint;
    checkpoint.position = position;
    checkpoint.model = detail::model_tensors(model);
    checkpoint.optimizer = optimizer->state();
    checkpoint.reducer = reducer->state();
    checkpoint.numbers = std::move(numbers);
    const auto control = state.control_state();
    written =
        folder->write(checkpoint, control ? &*control : nullptr, state.config().checkpoint.keep);
    if (!written.ok() && on_failure == OnFailure::report) state.log().error(written.message());
  }
  if (on_failure == OnFailure::raise) state.agree(written);
  saved_step = position.step;
}

}  // namespace cox
