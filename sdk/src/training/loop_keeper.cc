#include "sdk/src/training/loop_keeper.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "coordinator/core/hash.h"
#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "coxswain/safetensors.h"
#include "sdk/src/session/saved_rows.h"

namespace cox::detail {
namespace {

// All optimizers but the first have their number before their state's names.
std::string prefix_of(std::size_t optimizer) {
  return optimizer == 0 ? std::string() : concat(optimizer, "/");
}

// Returns the state of one of several optimizers.
std::vector<NamedTensor> part_of_optimizer(std::span<const NamedTensor> all, std::size_t optimizer,
                                           std::size_t optimizers) {
  std::vector<NamedTensor> own;
  for (const NamedTensor& each : all) {
    std::size_t owner = 0;
    for (std::size_t i = 1; i < optimizers; ++i) {
      if (each.name.starts_with(prefix_of(i))) owner = i;
    }
    if (owner == optimizer)
      own.push_back({each.name.substr(prefix_of(optimizer).size()), each.tensor});
  }
  return own;
}

}  // namespace

std::uint64_t LoopCounters::hash() const {
  Fnv1a64 hash;
  hash.add(static_cast<std::uint64_t>(epoch_->get()));
  hash.add(static_cast<std::uint64_t>(batch_->get()));
  return hash.value();
}

std::vector<NamedTensor> LoopCounters::state() const {
  return {{"epoch", at::scalar_tensor(epoch_->get(), at::kLong)},
          {"batch", at::scalar_tensor(batch_->get(), at::kLong)}};
}

Status LoopCounters::load_state(std::span<const NamedTensor> state) {
  const NamedTensor targets[] = {{"epoch", at::empty({}, at::kLong)},
                                 {"batch", at::empty({}, at::kLong)}};
  if (Status loaded = load_into(targets, state); !loaded.ok()) return loaded;
  const auto epoch = targets[0].tensor.item<std::int64_t>();
  const auto batch = targets[1].tensor.item<std::int64_t>();
  if (epoch_->set(epoch) && batch_->set(batch)) return ok_status();
  return invalid_argument("expected counters of types that hold the save's epoch ", epoch,
                          " and batch ", batch, ", found smaller ones");
}

LoopKeeper::LoopKeeper(Session session)
    : session_(std::move(session)), saves_({session_, *this, position_}) {
  position_.seed = session_.config().run.seed;
  add_row(row_of_generator(at::kCPU));
  if (!session_.device().is_cpu()) add_row(row_of_generator(session_.device()));
  // Sharded ranks set .grad anew in each step, so their saves need no such row.
  add_row(row_of_gradients(
      [this] { return sharding_ == nullptr ? models_->parameters() : std::vector<at::Tensor>(); }));
  if (session_.world_size() == 1) return;
  add_row({"buffers", "each rank's own buffers", [this] { return buffers_.bytes(); },
           [this](const std::string& bytes) { return buffers_.take(bytes); }});
}

void LoopKeeper::check_is_early() const {
  if (!has_begun_) return;
  throw Error(failed_precondition("add_state: expected a call before the first keep(), found a "
                                  "call after it; a resume loads the state in the first keep()"),
              Error::Scope::all_ranks);
}

void LoopKeeper::add_part(std::string_view name, TrainingPart part) {
  check_is_early();
  parts_.push_back({std::string(name), std::move(part)});
}

void LoopKeeper::add_row(RankRow::Parts parts) {
  check_is_early();
  rows_.push_back(std::make_unique<Added<RankRow>>(session_.state().actuators(), std::move(parts)));
}

void LoopKeeper::keep(const Loop& loop) {
  const StreamPause unseen;
  if (loop.adoption.averaging().only_watches()) {
    throw Error(failed_precondition("keep: expected an adopted loop whose ranks train together, "
                                    "found a loop that is only watched; adopt without only_watch"),
                Error::Scope::all_ranks);
  }
  show(loop);
  if (!std::exchange(has_begun_, true)) return begin(loop.adoption);
  if (loop.adoption.close_updated_step(left_gradients())) save_if_due(loop.adoption);
}

void LoopKeeper::show(const Loop& loop) {
  models_ = &loop.adoption.models();
  sharding_ = loop.adoption.sharding();
  counters_.show(loop.epoch, loop.batch);
  optimizers_ = loop.optimizers;
  for (const KeptOptimizer& each : optimizers_) {
    // cox::AdamW checks its rate by itself.
    if (const auto* torchs = std::get_if<torch::optim::Optimizer*>(&each.held()))
      require(check_rates(*make_port(**torchs)), "keep");
  }
}

// LBFGS may end its step with a call of the closure, which clears gradients before it adds new
// ones.
Adoption::Gradients LoopKeeper::left_gradients() const {
  const bool are_used = std::ranges::any_of(optimizers_, [](const KeptOptimizer& each) {
    const auto* torchs = std::get_if<torch::optim::Optimizer*>(&each.held());
    return torchs != nullptr && dynamic_cast<const torch::optim::LBFGS*>(*torchs) != nullptr;
  });
  return are_used ? Adoption::Gradients::are_used : Adoption::Gradients::add_up;
}

std::vector<std::unique_ptr<OptimizerPort>> LoopKeeper::ports() const {
  const std::vector<NamedTensor> named = model_state();
  std::vector<std::unique_ptr<OptimizerPort>> ports;
  for (const KeptOptimizer& each : optimizers_) {
    ports.push_back(
        std::visit([&](auto* optimizer) { return make_port(*optimizer, named); }, each.held()));
  }
  return ports;
}

// Refuses optimizers whose state is saved as torch's archive, which would hold only this rank's
// shards without a warning.
void LoopKeeper::check_divisible(const OptimizerPort& optimizer) const {
  if (sharding_ == nullptr || !is_by_position(optimizer.state())) return;
  throw Error(
      failed_precondition(
          "keep: expected an optimizer of torch::optim or cox::AdamW, whose state has names, "
          "with shard.mode=state, found a different optimizer; set shard.mode=off, or save its "
          "state by add_state"),
      Error::Scope::all_ranks);
}

void LoopKeeper::begin(Adoption& adoption) {
  SessionState& state = session_.state();
  const auto named = state.job().world().name_calls("the first Session::keep");
  const bool resumes = session_.config().checkpoint.resume;
  const std::uint64_t steps = state.step().steps_ended();
  if (resumes && (steps > 0 || adoption.open_step() != nullptr)) {
    throw Error(failed_precondition("keep: expected its first call before the first step, found a "
                                    "step; make it the first line of the loop's body"),
                Error::Scope::all_ranks);
  }
  if (!session_.config().checkpoint.directory.empty()) {
    check_model(state.job(), model_state());
    for (const auto& optimizer : ports()) {
      tell_unnamed(state.job(), *optimizer);
      check_divisible(*optimizer);
    }
  }
  TrainingSaves::Resumed saved;
  if (resumes) saved = saves_.resume();
  buffers_.note_equal(adoption.models());
  saves_.add_equal_part("loop", counters_);
  for (Part& part : parts_) saves_.add_part(part.name, std::move(part.of));
  parts_.clear();
  if (resumes) {
    saves_.warn_of_unclaimed();
    adoption.start();              // FP8 products have no memory before start()
    load_rows(state, saved.rows);  // last, because functions of the program may draw numbers
  }
  steps_before_ = position_.step;
  position_.step += steps;
  falls_due();
}

// A loop may run several steps between two calls, and so pass the step at which a save is due.
bool LoopKeeper::falls_due() {
  const std::uint32_t every = session_.config().checkpoint.every_steps;
  if (every == 0) return false;
  return position_.step / every != std::exchange(saves_due_, position_.step / every);
}

// A save holds no gradients that wait for an update, so an open step is no place for a save.
void LoopKeeper::save_if_due(Adoption& adoption) {
  SessionState& state = session_.state();
  position_.step = steps_before_ + state.step().steps_ended();
  position_.cursor = position_.step;
  const bool is_last = state.step().stop_agreed();
  const bool is_due = falls_due();
  if (saves_.is_behind() && (is_due || is_last)) {
    tell_waiting(adoption);
    saves_.write(is_last ? TrainingSaves::OnFailure::raise : TrainingSaves::OnFailure::report);
  }
  if (is_last) adoption.end_unless_asked();
}

// Optimizers that step at different batches leave gradients of some parameters for a later update.
void LoopKeeper::tell_waiting(const Adoption& adoption) {
  if (has_told_waiting_ || !session_.state().job().is_root()) return;
  for (const KeptOptimizer& each : optimizers_) {
    const auto parameters =
        std::visit([](auto* optimizer) { return parameters_of(*optimizer); }, each.held());
    const auto waits = std::ranges::find_if(
        parameters, [&](const at::Tensor& p) { return adoption.waiting_gradients().has(p); });
    if (waits == parameters.end()) continue;
    has_told_waiting_ = true;
    return session_.state().job().log().warning(
        concat("keep: expected an update for every gradient before a save, found parameter ",
               models_->name_now(*waits),
               " whose gradient waits; a save has no gradients, so a "
               "resumed run differs: step all optimizers at the steps that are saved "
               "(checkpoint.every_steps)"));
  }
}

// Returns the prefix of a model's tensor names in a save.
std::string LoopKeeper::prefix_of_model(std::size_t model) const {
  const std::string& name = models_->all()[model].name;
  if (model == 0 && name.empty()) return {};
  return (name.empty() ? concat("model", model) : name) + ".";
}

std::vector<NamedTensor> LoopKeeper::model_state() const {
  std::vector<NamedTensor> all;
  for (std::size_t m = 0; m < models_->all().size(); ++m) {
    for (NamedTensor& each : model_tensors(*models_->all()[m].module))
      all.push_back({prefix_of_model(m) + each.name, std::move(each.tensor)});
  }
  return all;
}

Checkpoint LoopKeeper::capture() const {
  Checkpoint all;
  all.model = model_state();
  for (std::size_t m = 0; m < models_->all().size(); ++m) {
    for (const auto& buffer : models_->all()[m].module->named_buffers())
      all.buffers.insert(prefix_of_model(m) + buffer.key());
  }
  const auto optimizers = ports();
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    for (NamedTensor& each : optimizers[i]->state()) {
      at::Tensor form =
          sharding_ != nullptr ? sharding_->saves().form_of_whole(each.tensor) : each.tensor;
      all.optimizer.push_back({prefix_of(i) + each.name, std::move(form)});
    }
  }
  return all;
}

void LoopKeeper::complete(std::vector<NamedTensor>& optimizer,
                          const std::function<bool(std::size_t)>& keeps) const {
  if (sharding_ == nullptr) return;
  std::size_t first = 0;
  for (const auto& port : ports()) {
    const std::vector<NamedTensor> states = port->state();
    sharding_->saves().complete(states, std::span(optimizer).subspan(first, states.size()),
                                [&](std::size_t place) { return keeps(first + place); });
    first += states.size();
  }
}

bool LoopKeeper::is_shard(const at::Tensor& tensor) const {
  return sharding_ != nullptr && sharding_->saves().is_shard(tensor);
}

// First loads parameters that the ranks hold once into separate tensors: a save that does not fit
// changes nothing.
Status LoopKeeper::load_model(std::span<const NamedTensor> saved) const {
  std::vector<NamedTensor> targets = model_state();
  if (sharding_ == nullptr) return load_into(targets, saved);
  struct Beside {
    at::Tensor parameter;
    at::Tensor values;
  };
  std::vector<Beside> besides;
  for (NamedTensor& each : targets) {
    if (!sharding_->has(each.tensor)) continue;
    besides.push_back({each.tensor, at::empty_like(each.tensor.detach())});
    each.tensor = besides.back().values;
  }
  if (Status loaded = load_into(targets, saved); !loaded.ok()) return loaded;
  for (const Beside& each : besides) sharding_->saves().load(each.parameter, each.values);
  return ok_status();
}

void LoopKeeper::divide_states() const {
  for (const auto& optimizer : ports())
    sharding_->saves().divide(optimizer->state(), model_state());
}

Status LoopKeeper::restore(const Checkpoint& state, Handover handover) {
  if (Status loaded = load_model(state.model); !loaded.ok()) return loaded;
  const auto optimizers = ports();
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    const Status loaded = optimizers[i]->load_state(
        part_of_optimizer(state.optimizer, i, optimizers.size()), handover);
    if (!loaded.ok()) return loaded;
  }
  if (sharding_ != nullptr) divide_states();
  return ok_status();
}

}  // namespace cox::detail
