#include "sdk/src/training/adoption.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <utility>

#include "coordinator/core/text.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/stream/storage.h"
#include "sdk/src/training/capabilities.h"
#include "sdk/src/training/equal_ranks.h"
#include "sdk/src/training/reduction_setup.h"
#include "sdk/src/training/training_state.h"

namespace cox::detail {
namespace {

// A program that detaches a parameter only inspects it. A detach within a script counts as use,
// because fused parts of TorchScript's optimiser begin with one.
bool is_use(const c10::OperatorHandle& handle) {
  static const c10::OperatorHandle detach =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::detach", "");
  return !(handle == detach) || is_in_script();
}

[[noreturn]] void refuse(const std::string& expected) {
  throw Error(failed_precondition("adopt: expected " + expected));
}

}  // namespace

Adoption::Adoption(Session& session, const AdoptOptions& options)
    : session_(session),
      averaging_(session_, options, maker(options)),
      first_(session_, models_),
      stages_(state().recorder()),
      warnings_(state().job()) {
  state().loop().declare_adopted();
}

// Sharded loops average by another maker.
ReductionMaker Adoption::maker(const AdoptOptions& options) {
  if (options.only_watch || !Sharding::is_wanted(state())) return {};
  sharding_.emplace(state());
  return sharding_->maker(reduction_setup(state()), Sharding::Passes::told_by_loop);
}

// A program that leaves by an exception does not wait for the other ranks (Session::finish).
Adoption::~Adoption() {
  shown_.reset();
  try {
    if (std::uncaught_exceptions() == 0) {
      finish();
      if (sharding_) sharding_->give_back();
    }
  } catch (const std::exception& error) {
    state().job().log().warning("adopted model: the last step was not closed: " +
                                first_line(error.what()));
  }
  step_.reset();
}

void Adoption::add(torch::nn::Module& model, const AdoptOptions& options) {
  if (models_.has(model))
    refuse("a model that is not adopted yet, found an adopted model; adopt each model once");
  add(model, nullptr, options);
}

void Adoption::add(const torch::jit::Module& script, const AdoptOptions& options) {
  if (models_.has(script))
    refuse("a model that is not adopted yet, found an adopted model; adopt each model once");
  const auto mirror = ScriptMirror::of(script);
  add(*mirror, mirror, options);
}

void Adoption::add(torch::nn::Module& model, std::shared_ptr<ScriptMirror> script,
                   const AdoptOptions& options) {
  {
    const StreamPause unseen;
    add_unseen(model, std::move(script), options);
  }
  show_stream();
}

void Adoption::add_unseen(torch::nn::Module& model, std::shared_ptr<ScriptMirror> script,
                          const AdoptOptions& options) {
  if (options.only_watch != averaging_.only_watches())
    refuse("only_watch for all models of a loop or for none, found both");
  require(check_stream_key().with_context("adopt"));
  if (!options.only_watch) check_equal_models(state().job(), model);
  if (state().control().is_started()) return add_late(model, std::move(script), options);
  std::vector<std::string> patterns = options.blocks;
  if (!options.name.empty()) {
    for (std::string& pattern : patterns) pattern = options.name + "." + pattern;
  }
  BlockWatch& blocks = session_.capabilities().blocks;
  BlockMap map = require(blocks.divide(model, patterns, options.name));
  require(install_saved_tensor_engine());
  const auto first = static_cast<BlockId::rep>(blocks.names().size());
  require(blocks.adopt(map).with_context("adopt"));
  averaging_.add(model, own_parameters(model), options);
  shard(model, options);
  listener_ = blocks.listener();
  visits_ = blocks.visits();
  if (models_.all().empty()) session_.capabilities().probe.attach(model);
  models_.add({&model, std::move(script), options.name, std::move(map), first, model.parameters()});
  first_.model_added([this](const c10::OperatorHandle& handle, const at::Tensor& argument) {
    follow(handle, argument);
  });
}

// The coordinator's list of a job's blocks is fixed at the first step.
void Adoption::add_late(torch::nn::Module& model, std::shared_ptr<ScriptMirror> script,
                        const AdoptOptions& options) {
  BlockMap map = require(BlockMap::make(model, {}, options.name));
  averaging_.add(model, own_parameters(model), options);
  shard(model, options);
  BlockWatch& blocks = session_.capabilities().blocks;
  listener_ = blocks.listener();
  visits_ = blocks.visits();
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& parameter : model.parameters()) {
    if (!models_.has_parameter(parameter)) parameters.push_back(parameter);
  }
  models_.add({&model, std::move(script), options.name, std::move(map), 0, std::move(parameters),
               /*has_blocks=*/false});
  const bool is_missed =
      std::ranges::any_of(state().actuators().all<Measuring>(), &Measuring::is_wanted);
  if (is_missed && state().job().is_root()) {
    state().job().log().warning(
        "adopt: expected models before the first step, found a model after the first step; the "
        "model's gradients are averaged, but its blocks are neither measured nor steered");
  }
}

// Leaves out parameters that the ranks already hold once, such as those of another model. Such
// parameters are equal, and a broadcast must not write to them.
std::vector<at::Tensor> Adoption::own_parameters(const torch::nn::Module& model) const {
  std::vector<at::Tensor> own = model.parameters();
  if (sharding_) std::erase_if(own, [this](const at::Tensor& p) { return sharding_->has(p); });
  return own;
}

void Adoption::shard(torch::nn::Module& model, const AdoptOptions& options) {
  if (!sharding_) return;
  std::vector<NamedTensor> parameters = named_parameters(model);
  for (NamedTensor& each : parameters) {
    if (!options.name.empty()) each.name = options.name + "." + each.name;
  }
  sharding_->add(parameters);
}

void Adoption::show_stream() {
  if (shown_) return;
  OperatorRewriter* rewriter = sharding_ ? &sharding_->rewriter() : nullptr;
  shown_.emplace(*listener_, this, rewriter);
}

void Adoption::touch(const c10::OperatorHandle& handle, const at::Tensor& argument) {
  const c10::StorageImpl* storage = storage_impl(argument);
  AdoptedModel* model = models_.owner_of(storage);
  const bool may_begin = at::GradMode::is_enabled() && argument.requires_grad();
  if (model == nullptr && may_begin && argument.is_leaf()) {
    model = models_.find_again(argument);
    // Module::to() runs operators on parameters before it replaces their storages.
    if (model != nullptr && stages_.is(Stage::forward)) leave_forward();
  }
  if (model == nullptr) {
    if (!may_begin && !averaging_.only_watches())
      warnings_.stranger_used(handle, argument, models_);
    if (visits_ != nullptr) visits_->read_other(argument);
    return;
  }
  if (!may_begin) {
    const auto access =
        handle.schema().is_mutable() ? LoopStages::Access::write : LoopStages::Access::read;
    if (access == LoopStages::Access::write) waiting_.was_written(storage);
    if (stages_.is(Stage::updating)) stages_.note_access(access);
    if (stages_.is(Stage::forward) && waiting_.came_in_step() &&
        access == LoopStages::Access::write)
      stages_.expect_write();
    if (stages_.is(Stage::forward) && !averaging_.only_watches())
      warnings_.parameter_used(handle, argument, waits_for_backward());
    first_.parameter_used(argument, access);
  }
  if (!stages_.is(Stage::forward) && may_begin && is_use(handle)) begin_forward();
  if (!stages_.is(Stage::forward) || !model->has_blocks) return;
  if (model->script != nullptr) keep_whole_if_optimised(*model);
  const auto begins = visits_->read_parameter(model->map, model->first_block, {handle, storage});
  if (begins == VisitWatch::Begins::pass) growth_.begin_forward();
  if (begins != VisitWatch::Begins::nothing) growth_.enter_block();
}

LoopWarnings::Trial Adoption::waits_for_backward() const {
  return first_.are_over() ? LoopWarnings::Trial::none : LoopWarnings::Trial::waits;
}

// Leaves a forward pass without a backward pass of its own. After a backward pass of the step, the
// program has only looked at its parameters (norms, an evaluation), and now updates them.
void Adoption::leave_forward() {
  visits_->steer_anew(VisitWatch::Anew::pass);
  if (!waiting_.came_in_step()) return;
  visits_->forward_ended();
  stages_.parameter_written();
}

// A fused part's operators are shown, but autograd sees one node for all of them. The node saves
// its own tensors and has its own backward pass.
void Adoption::keep_whole_if_optimised(AdoptedModel& model) {
  if (model.is_kept_whole || !is_script_optimised()) return;
  model.is_kept_whole = true;
  for (std::size_t b = 0; b < model.map.size(); ++b) {
    visits_->parts().steering.pin(BlockId(static_cast<BlockId::rep>(model.first_block + b)),
                                  "TorchScript's graph optimiser is on");
  }
  const bool is_missed =
      std::ranges::any_of(state().actuators().all<Measuring>(), &Measuring::is_wanted);
  if (!is_missed) return;
  state().job().log().warning(
      "adopted model: expected TorchScript's graph optimiser to be off "
      "(torch::jit::setGraphExecutorOptimize), found it on; the script runs as one piece, without "
      "memory actions and number formats");
}

std::optional<ProductFormat> Adoption::product_format() const {
  if (!stages_.is(Stage::forward)) return std::nullopt;
  const std::optional<BlockId> block = visits_->current();
  const bool is_whole = block && std::ranges::any_of(models_.all(), [&](const AdoptedModel& model) {
                          return model.is_kept_whole && model.has(*block);
                        });
  return is_whole ? std::nullopt : listener_->product_format();
}

void Adoption::follow(const c10::OperatorHandle& handle, const at::Tensor& argument) {
  const c10::StorageImpl* storage = storage_impl(argument);
  const AdoptedModel* model = models_.owner_of(storage);
  if (model == nullptr || !model->has_blocks) return;
  visits_->read_parameter(model->map, model->first_block, {handle, storage}, VisitWatch::Told::no);
}

void Adoption::close_if_updated() {
  first_.update_ended();
  const bool is_changed = models_.refresh();
  const bool is_updated =
      stages_.is(Stage::updating) || (stages_.is(Stage::accumulated) && is_changed);
  if (is_updated) close_step();
}

bool Adoption::close_updated_step(Gradients left) {
  averaging_.loop_is_kept();
  close_if_updated();
  if (stages_.is(Stage::accumulated) && left == Gradients::are_used) close_step();
  return !step_;
}

void Adoption::end_unless_asked() {
  if (!averaging_.loop_is_asking()) end_by_signal();
}

void Adoption::begin_forward() {
  close_if_updated();
  if (!step_) {
    begin_step();
    first_.step_begins(growth_);
  }
  first_.forward_begins(growth_);
  growth_.begin_forward();
  stages_.change(Stage::forward, LoopStages::now());
}

// Wants calls for three readers: the search for the first write after backward(), the first batch,
// and the recording of the forward pass.
bool Adoption::wants_calls() const {
  if (first_.wants_calls() || stages_.expects_write()) return true;
  if (stages_.is(Stage::forward))
    return averaging_.wants_calls() || growth_.wants_calls() || listener_->wants_calls();
  return stages_.is(Stage::accumulated);
}

void Adoption::begin(const OperatorCall& call) {
  if (stages_.take_expected_write() && writes_parameter(call)) leave_forward();
  const bool is_forward = stages_.is(Stage::forward);
  // Models that were adopted late have no blocks.
  if (is_forward && growth_.wants_calls() && visits_->current()) {
    const auto growth = growth_.look(call, *visits_->current(), models_);
    if (growth && first_.are_over()) {
      growth_.make_room(session_, *growth);
      for_each_tensor_of(call, [&](const at::Tensor& tensor) { follow(call.handle, tensor); });
    }
  }
  follows_call_ = is_forward && listener_->wants_calls();
  if (is_forward) averaging_.begin(call, models_);
  if (stages_.is(Stage::accumulated)) look_for_update(call);
  first_.begin(call);
  if (follows_call_) listener_->begin(call);
}

void Adoption::end(std::span<const c10::IValue> results) {
  if (follows_call_) listener_->end(results);
  first_.end(results);
  if (stages_.is(Stage::forward)) averaging_.end(results);
}

void Adoption::failed() noexcept {
  if (follows_call_) listener_->failed();
  first_.failed();
}

void Adoption::look_for_update(const OperatorCall& call) {
  if (!at::GradMode::is_enabled()) stages_.operator_ran();
  if (writes_parameter(call)) stages_.parameter_written();
}

bool Adoption::writes_parameter(const OperatorCall& call) const {
  bool writes = false;
  for (const std::uint16_t argument : call.facts.written) {
    for_each_tensor_in(call.arguments[argument], [&](const at::Tensor& tensor) {
      writes = writes || models_.has_parameter(tensor);
    });
  }
  return writes;
}

void Adoption::backward_begins(const BackwardPass& pass) {
  if (sharding_ && pass.kind == BackwardKind::returning) sharding_->before_reading();
  if (sharding_ && pass.kind == BackwardKind::accumulating) sharding_->backward_begins();
  unseen_backward_.reset();
  if (!step_ || stages_.is_read_anew()) {
    if (pass.kind == BackwardKind::returning || first_.are_tried()) return;
    unseen_backward_ = LoopStages::now();
    averaging_.note_gradients(models_);
    return models_.note_gradients();
  }
  visits_->backward_begins();
  if (pass.kind == BackwardKind::returning || first_.are_tried()) return;
  visits_->forward_ended();
  models_.note_gradients();
  averaging_.note_gradients(models_);
  averaging_.backward_begins(pass);
  first_.backward_begins(pass, growth_);
  const bool are_looked_at = !first_.are_over() || session_.capabilities().formats.is_wanted();
  if (sharding_ && !are_looked_at) sharding_->add_early();
  stages_.change(Stage::backward, LoopStages::now());
}

void Adoption::backward_ended(BackwardKind kind) {
  if (sharding_ && kind == BackwardKind::accumulating) sharding_->backward_ended();
  const bool is_unseen = unseen_backward_.has_value();
  if (kind == BackwardKind::returning) warnings_.gradients_returned();
  if (is_unseen && !begin_unseen_step()) return warnings_.pass_went_aside();
  if (!step_) return;
  if (!is_unseen) visits_->parts().clock.backward_ended();
  if (kind == BackwardKind::returning || first_.are_tried()) return;
  stages_.change(Stage::accumulated, LoopStages::now());
  waiting_.came(models_);
  warnings_.model_trained();
  session_.capabilities().numerics.look_at_gradients(state().step().number());
  if (!is_unseen) {
    first_.backward_ended();
    first_.check();
  }
  averaging_.average(*step_, models_);
  if (sharding_) sharding_->gradients_averaged();
}

// backward() recomputes a forward pass with gradients off out of the stream's sight (the program
// has a checkpoint of its own around the whole model). New gradients show that such a pass took
// place.
bool Adoption::begin_unseen_step() {
  const LoopStages::Time began = *std::exchange(unseen_backward_, {});
  if (std::ranges::none_of(models_.all(), &AdoptedModel::has_new_gradient)) return false;
  if (averaging_.averages_losses())
    refuse("a forward pass with gradients on, found a pass that backward() recomputes");
  warnings_.forward_unseen();
  if (step_) {
    stages_.change(Stage::forward, stages_.read_since());
    stages_.change(Stage::backward, began);
    close_step();
  }
  begin_step();
  return true;
}

void Adoption::start() {
  if (!state().control().is_started()) watch_numerics();
  averaging_.watch_weights(models_, session_.capabilities().blocks);
  const bool is_started = state().control().is_started();
  state().ensure_started();
  if (sharding_ && !is_started) sharding_->show_held();
}

void Adoption::begin_step() {
  start();
  step_.emplace(session_.step());
  growth_.begin_step();
}

void Adoption::watch_numerics() {
  if (!session_.capabilities().formats.is_wanted()) return;
  std::vector<NoiseBlock> blocks;
  for (const std::string& name : session_.capabilities().blocks.names())
    blocks.push_back({name, {}});
  for (const AdoptedModel& model : models_.all()) {
    for (std::size_t b = 0; b < model.map.size(); ++b) {
      const BlockId block(static_cast<BlockId::rep>(b));
      blocks[model.first_block + b].parameters = model.map.parameters(block);
    }
  }
  session_.capabilities().numerics.watch_adopted(std::move(blocks));
}

void Adoption::close_step() {
  if (sharding_) {
    sharding_->follow_replaced();
    sharding_->before_reading();
  }
  visits_->end_step();
  stages_.change(Stage::between, LoopStages::now());
  const auto stop = averaging_.close(*step_);
  step_.reset();
  waiting_.step_ended();
  warnings_.step_ended();
  if (stop == AdoptedAveraging::Stop::yes) end_by_signal();
}

void Adoption::finish() {
  if (state().step().told() == StepEngine::Told::end) return step_.reset();
  const StreamPause unseen;
  averaging_.settle();
  warnings_.loop_ended();
  if (!step_) return;
  if (waiting_.came_in_step()) return close_step();
  // Code other than training read a parameter, perhaps on this rank alone.
  stages_.change(Stage::between, LoopStages::now());
  step_.reset();
}

// Without a handler the signal would have ended the program at once. The job ends here instead,
// with all ranks at the same step and all files closed.
void Adoption::end_by_signal() {
  state().job().log().warning(
      "adopted model: a stop was requested, and the loop does not call stop_requested(); the job "
      "ends here");
  state().finish();
  std::signal(SIGTERM, SIG_DFL);
  std::raise(SIGTERM);
  std::abort();
}

}  // namespace cox::detail
