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

namespace cox::detail {
namespace {

std::chrono::steady_clock::time_point now() {
  return std::chrono::steady_clock::now();
}

template <class Use>
void for_each_tensor_of(const OperatorCall& call, const Use& use) {
  for (const c10::IValue& value : call.arguments) for_each_tensor_in(value, use);
}

[[noreturn]] void refuse(const std::string& expected) {
  throw Error(failed_precondition("adopt: expected " + expected));
}

}  // namespace

Adoption::Adoption(Session& session, const AdoptOptions& options)
    : session_(session),
      state_(session_.state()),
      blocks_(state_.actuators().get<BlockWatch>()),
      numerics_(state_.actuators().get<NumericsWatch>()) {
  if (!options.only_watch) ranks_.emplace(session_);
  state_.declare_adopted();
  if (!exchanges()) batch_reads_ = kBatchReads;  // there is none to compare it with
}

// A program that leaves by an exception does not wait for the others (Session::finish).
Adoption::~Adoption() {
  stream_.reset();
  saving_.reset();
  try {
    if (std::uncaught_exceptions() == 0) finish();
  } catch (const std::exception& error) {
    state_.job().log().warning("adopted model: the last step was not closed: " +
                               first_line(error.what()));
  }
  step_.reset();
}

bool Adoption::has(const torch::nn::Module& model) const {
  return std::ranges::find(models_, &model, &Model::module) != models_.end();
}

bool Adoption::has(const torch::jit::Module& script) const {
  return std::ranges::any_of(models_, [&](const Model& model) {
    return model.script != nullptr && model.script->mirrors(script);
  });
}

void Adoption::add(torch::nn::Module& model, const AdoptOptions& options) {
  if (has(model)) refuse("a model that is not adopted yet, found one that is; adopt it once");
  add(model, nullptr, options);
}

void Adoption::add(const torch::jit::Module& script, const AdoptOptions& options) {
  if (has(script)) refuse("a model that is not adopted yet, found one that is; adopt it once");
  const auto mirror = ScriptMirror::of(script);
  add(*mirror, mirror, options);
}

void Adoption::add(torch::nn::Module& model, std::shared_ptr<ScriptMirror> script,
                   const AdoptOptions& options) {
  const StreamPause unseen;
  if (options.only_watch != only_watches())
    refuse("only_watch for all models of a loop or for none, found both");
  require(check_stream_key().with_context("adopt"));
  std::vector<std::string> patterns = options.blocks;
  if (!options.name.empty()) {
    for (std::string& pattern : patterns) pattern = options.name + "." + pattern;
  }
  BlockMap map = require(blocks_.divide(model, patterns, options.name));
  require(install_saved_tensor_engine());
  const auto first = static_cast<BlockId::rep>(blocks_.names().size());
  require(blocks_.adopt(map).with_context("adopt"));
  if (ranks_) {
    ranks_->sync_parameters(model.parameters());
    ranks_->sync_buffers(model.buffers());
  }
  listener_ = blocks_.listener();
  visits_ = blocks_.visits();
  if (models_.empty()) {
    state_.actuators().get<FormatActuator>().attach(model);
    state_.actuators().get<MemoryProbe>().attach(model);
  }
  models_.push_back(
      {&model, std::move(script), options.name, std::move(map), first, model.parameters()});
  averages_losses_ =
      averages_losses_ || (options.closure_optimizer == ClosureOptimizer::yes && exchanges());
  if (trial_ == nullptr && state_.calibration().is_wanted()) {
    trial_ = std::make_unique<AdoptedTrial>(
        [this]() -> torch::nn::Module& { return models_together(); }, blocks_,
        [this](const at::Tensor& argument) { follow(argument); });
  }
  if (stream_) return;
  saving_.emplace(*listener_);
  stream_.emplace(std::vector<OperatorListener*>{this});
}

void Adoption::touch(const c10::OperatorHandle& handle, const at::Tensor& argument) {
  const c10::StorageImpl* storage = storage_impl(argument);
  for (Model& model : models_) {
    if (!model.map.owner(storage)) continue;
    if (stage_ == Stage::updating && !at::GradMode::is_enabled()) note_touch(handle);
    const bool may_begin = at::GradMode::is_enabled() && argument.requires_grad();
    if (stage_ != Stage::forward && may_begin && is_use(handle)) begin_forward();
    if (stage_ != Stage::forward) return;
    if (model.script != nullptr) keep_whole_if_optimised(model);
    const std::optional<BlockId> before = visits_->current();
    visits_->read_parameter(model.map, model.first_block, storage);
    const bool is_measured = trial_ != nullptr || !measured_elements_.empty();
    if (is_measured && visits_->current() != before) enters_block_ = true;
    return;
  }
  if (visits_ != nullptr) visits_->read_other(argument);
}

// The optimizer reads parameters and then writes to them; an evaluation, or a forward pass that
// backward() computes again, only reads.
void Adoption::note_touch(const c10::OperatorHandle& handle) {
  const bool writes = handle.schema().is_mutable();
  if (writes) last_update_ = now();
  if (!writes && read_since_ <= last_update_) read_since_ = now();
}

// Who detaches a parameter only looks at it, but for TorchScript's optimiser: what it has put
// together begins with that.
bool Adoption::is_use(const c10::OperatorHandle& handle) const {
  return !(handle == detach_) || is_in_script();
}

// The operators of such a part are shown, but autograd knows one node for all of them, which saves
// what it needs by itself and has a backward pass of its own.
void Adoption::keep_whole_if_optimised(Model& model) {
  if (model.is_kept_whole || !is_script_optimised()) return;
  model.is_kept_whole = true;
  for (std::size_t b = 0; b < model.map.size(); ++b) {
    visits_->parts().steering.pin(BlockId(static_cast<BlockId::rep>(model.first_block + b)),
                                  "TorchScript's graph optimiser is on");
  }
  const bool is_missed = std::ranges::any_of(state_.actuators(), &Actuator::is_wanted);
  if (!is_missed) return;
  state_.job().log().warning(
      "adopted model: expected a script that is called with TorchScript's graph optimiser off "
      "(torch::jit::setGraphExecutorOptimize), found it on; the script is kept whole, without "
      "memory actions and number formats");
}

std::optional<ProductFormat> Adoption::product_format() const {
  if (stage_ != Stage::forward) return std::nullopt;
  const std::optional<BlockId> block = visits_->current();
  const bool is_whole = block && std::ranges::any_of(models_, [&](const Model& model) {
                          return model.is_kept_whole && model.has(*block);
                        });
  return is_whole ? std::nullopt : listener_->product_format();
}

void Adoption::follow(const at::Tensor& argument) {
  const c10::StorageImpl* storage = storage_impl(argument);
  const auto model = std::ranges::find_if(
      models_, [&](const Model& it) { return it.map.owner(storage).has_value(); });
  if (model == models_.end()) return;
  visits_->read_parameter(model->map, model->first_block, storage, VisitWatch::Told::no);
}

void Adoption::begin_forward() {
  bool is_replaced = false;
  for (Model& model : models_) is_replaced = model.map.refresh() || is_replaced;
  const bool is_updated =
      stage_ == Stage::updating || (stage_ == Stage::accumulated && is_replaced);
  if (is_updated) close_step();
  if (!step_) begin_step();
  record_or_calibrate();
  entered_elements_.assign(measured_elements_.size(), 0);
  change_stage(Stage::forward, now());
}

void Adoption::record_or_calibrate() {
  if (trial_ == nullptr) return;
  const std::uint64_t ended = state_.step().steps_ended();
  if (trial_->is_complete(ended, models_.size())) return calibrate();
  state_.step().hold_reports(OpenStep::Hold::yes);
  trial_->forward_begins(ended);
  if (trial_->wants_calls()) measured_elements_.resize(blocks_.size());
}

void Adoption::calibrate() {
  const StreamPause unseen;
  const bool can_run_here = trial_->status().ok();
  if (!can_run_here) {
    state_.job().log().warning(
        "adopted model: the first steps cannot be tried: " + trial_->status().message() +
        "; activations are kept, and no format is chosen by speed");
  }
  const auto failed = state_.job().gather(can_run_here ? 0 : 1);
  const bool can_run = std::ranges::find(failed, 1u) == failed.end();
  const GradientsAside aside(models_together().parameters());
  is_calibrating_ = true;
  numerics_.count_fp8(Fp8Count::off);
  state_.calibration().run(trial_->sample(can_run));
  numerics_.count_fp8(Fp8Count::on);
  is_calibrating_ = false;
  state_.step().hold_reports(OpenStep::Hold::no);
  trial_.reset();
}

torch::nn::Module& Adoption::models_together() {
  if (models_.size() == 1) return *models_.front().module;
  if (together_ != nullptr) return *together_;
  together_ = std::make_unique<torch::nn::Module>("models");
  for (std::size_t m = 0; m < models_.size(); ++m) {
    const std::string name = models_[m].name.empty() ? "model" : models_[m].name;
    const std::shared_ptr<torch::nn::Module> borrowed(std::shared_ptr<void>(), models_[m].module);
    together_->register_module(concat(name, "-", m), borrowed);
  }
  return *together_;
}

// Whoever writes to parameters after gradients were added is the optimizer. What it does before the
// first write, to its momentum say, belongs to it: the update began with the first operator with
// gradients off. The last operator on a parameter ends it; what comes then, until the next forward
// pass, is getting data.
bool Adoption::wants_calls() const {
  if (trial_ != nullptr && trial_->wants_calls()) return true;
  if (stage_ == Stage::forward)
    return batch_reads_ < kBatchReads || averages_losses_ || enters_block_ ||
           listener_->wants_calls();
  return stage_ == Stage::accumulated && !at::GradMode::is_enabled();
}

void Adoption::begin(const OperatorCall& call) {
  records_call_ = trial_ != nullptr && trial_->wants_calls();
  if (enters_block_ && stage_ == Stage::forward) look_at_size(call);
  follows_call_ = stage_ == Stage::forward && listener_->wants_calls();
  if (stage_ == Stage::forward && batch_reads_ < kBatchReads) look_at_first_batch(call);
  if (stage_ == Stage::accumulated && !at::GradMode::is_enabled()) look_for_update(call);
  if (records_call_) trial_->begin(call);
  if (follows_call_) listener_->begin(call);
}

void Adoption::end(std::span<const c10::IValue> results) {
  if (follows_call_) listener_->end(results);
  if (records_call_) trial_->end(results);
  if (averages_losses_ && stage_ == Stage::forward) note_scalars(results);
}

void Adoption::failed() noexcept {
  if (follows_call_) listener_->failed();
  if (records_call_) trial_->failed();
}

// What a block saves grows with what it reads, so a visit that begins with more than was measured
// gets room before it saves anything. An operator on parameters alone, a cast say, tells nothing.
void Adoption::look_at_size(const OperatorCall& call) {
  const std::size_t block = visits_->current()->value();
  enters_block_ = false;
  if (block >= measured_elements_.size()) return;
  std::int64_t elements = 0;
  for_each_tensor_of(call, [&](const at::Tensor& tensor) {
    if (!is_parameter_here(tensor)) elements += tensor.numel();
  });
  enters_block_ = elements == 0;
  entered_elements_[block] += elements;
  if (trial_ != nullptr) return;
  const auto measured = static_cast<double>(measured_elements_[block]);
  const auto entered = static_cast<double>(entered_elements_[block]);
  if (measured == 0 || entered <= growth_ * measured) return;
  make_room(entered / measured);
  for_each_tensor_of(call, [this](const at::Tensor& tensor) { follow(tensor); });
}

// Of several recorded steps the largest counts.
void Adoption::note_measured_size() {
  for (std::size_t b = 0; b < measured_elements_.size(); ++b)
    measured_elements_[b] = std::max(measured_elements_[b], entered_elements_[b]);
}

void Adoption::make_room(double growth) {
  growth_ = growth;
  if (!state_.actuators().get<MemoryActuator>().make_room(growth)) return;
  visits_->steer_anew();
  if (growth < 1.25 * told_growth_) return;
  told_growth_ = growth;
  state_.job().log().info(concat(
      "adopted model: a batch of ", significant(growth, 3),
      " times the size that was measured; the blocks get less memory in such a step than the plan "
      "says, so that it stays within its budget"));
}

void Adoption::look_for_update(const OperatorCall& call) {
  if (!update_since_) update_since_ = now();
  const auto& schema = call.handle.schema().arguments();
  for (std::size_t i = 0; i < schema.size() && stage_ == Stage::accumulated; ++i) {
    if (schema[i].alias_info() == nullptr || !schema[i].alias_info()->isWrite()) continue;
    for_each_tensor_in(call.arguments[i], [this](const at::Tensor& tensor) {
      if (stage_ != Stage::accumulated || !is_parameter_here(tensor)) return;
      last_update_ = now();
      change_stage(Stage::updating, *update_since_);
    });
  }
}

// The batch is what the first operators read that is neither a parameter nor computed from one:
// several, because the first may read positions, which are equal on all ranks.
void Adoption::look_at_first_batch(const OperatorCall& call) {
  bool reads_batch = false;
  for_each_tensor_of(call, [&](const at::Tensor& tensor) {
    if (is_parameter_here(tensor) || tensor.requires_grad()) return;
    if (tensor.layout() != at::kStrided) return;
    reads_batch = true;
    const at::NoGradGuard no_grad;
    const at::Tensor flat = tensor.detach().contiguous().cpu();
    first_batch_.add(
        std::string_view(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()));
  });
  if (reads_batch) ++batch_reads_;
}

void Adoption::compare_first_batches() {
  are_batches_compared_ = true;
  const bool is_known = std::exchange(batch_reads_, kBatchReads) > 0;
  const auto all = gather_values(state_.job().data(), first_batch_.value(),
                                 state_.step().attend("the first step of an adopted model"));
  require(all.status(), Error::Scope::all_ranks);
  const bool are_equal = ranks_that_differ(*all).empty();
  if (!are_equal || !is_known || !state_.job().is_root()) return;
  state_.job().log().warning(
      "adopted model: expected another batch on each rank, found the same one on all in the first "
      "step; give torch's DistributedRandomSampler or DistributedSequentialSampler the session's "
      "world_size() and rank(), or seed each rank's data by its rank");
}

bool Adoption::is_parameter_here(const at::Tensor& tensor) const {
  return std::ranges::any_of(models_, [&](const Model& model) {
    return model.map.owner(storage_impl(tensor)).has_value();
  });
}

void Adoption::backward_begins(const BackwardPass& pass) {
  unseen_backward_.reset();
  const bool is_read_anew = stage_ == Stage::updating && read_since_ > last_update_;
  if (!step_ || is_read_anew) {
    if (pass.kind == BackwardKind::returning || is_calibrating_) return;
    unseen_backward_ = now();
    return note_gradients();
  }
  visits_->backward_begins();
  if (pass.kind == BackwardKind::returning || is_calibrating_) return;
  visits_->forward_ended();
  note_gradients();
  if (averages_losses_) loss_ = loss_of(pass);
  if (trial_ != nullptr) {
    if (trial_->wants_calls()) note_measured_size();
    trial_->backward_begins(pass);
  }
  change_stage(Stage::backward, now());
}

void Adoption::note_gradients() {
  for (Model& model : models_) {
    model.marks.clear();
    for (const at::Tensor& parameter : model.parameters) {
      const at::Tensor& gradient = parameter.grad();
      model.marks.push_back({gradient.defined() ? gradient.unsafeGetTensorImpl() : nullptr,
                             gradient.defined() ? version_of(gradient) : 0});
    }
  }
}

void Adoption::backward_ended(BackwardKind kind) {
  const bool is_unseen = unseen_backward_.has_value();
  if (is_unseen && !begin_unseen_step()) return;
  if (!step_) return;
  if (!is_unseen) visits_->parts().clock.backward_ended();
  if (kind == BackwardKind::returning || is_calibrating_) return;
  change_stage(Stage::accumulated, now());
  has_gradients_ = true;
  numerics_.look_at_gradients(state_.step().number());
  if (trial_ != nullptr && !is_unseen) {
    numerics_.count_fp8(Fp8Count::off);
    trial_->check(trained_models());
    numerics_.count_fp8(Fp8Count::on);
  }
  if (!exchanges()) return;
  if (!are_batches_compared_) compare_first_batches();
  for (const Model& model : models_) {
    if (has_new_gradient(model)) ranks_->average_unseen(*step_, model.parameters);
  }
  if (averages_losses_) average_loss();
}

// What a forward pass with gradients off computes, backward() computes again out of sight (a
// checkpoint of the program's own around the whole model). The gradients tell that it was one.
bool Adoption::begin_unseen_step() {
  const Time began = *std::exchange(unseen_backward_, {});
  if (std::ranges::none_of(models_, has_new_gradient)) return false;
  if (averages_losses_)
    refuse("a forward pass with gradients on, found one that backward() computes again");
  if (!std::exchange(is_unseen_told_, true)) {
    state_.job().log().warning(
        "adopted model: expected a forward pass with gradients on, found one that backward() "
        "computes again as a whole; gradients are averaged, but its blocks are neither measured "
        "nor steered; leave the checkpoint to memory.* (docs/adopt.md)");
  }
  if (step_) {
    change_stage(Stage::forward, read_since_);
    change_stage(Stage::backward, began);
    close_step();
  }
  begin_step();
  return true;
}

void Adoption::note_scalars(std::span<const c10::IValue> results) {
  for (const c10::IValue& value : results) {
    for_each_tensor_in(value, [this](const at::Tensor& tensor) {
      if (tensor.requires_grad() && tensor.numel() == 1)
        scalars_.emplace_back(tensor.getIntrusivePtr());
    });
  }
}

// The engine knows a loss by its node only.
at::Tensor Adoption::loss_of(const BackwardPass& pass) const {
  for (const WeakTensor& each : scalars_) {
    const auto tensor = each.lock();
    if (!tensor || pass.roots.size() != 1) continue;
    const at::Tensor scalar(tensor);
    if (torch::autograd::impl::gradient_edge(scalar) == pass.roots[0]) return scalar;
  }
  refuse(
      "backward() from one loss of one element that operators of the step made, found another "
      "one; AdoptOptions::closure_optimizer leaves the mean over ranks in it");
}

void Adoption::average_loss() {
  const WaitingScope waiting(state_.step().recorder());
  const at::NoGradGuard no_grad;
  const at::Tensor loss = std::exchange(loss_, {}).detach();
  const auto all = gather_values(state_.job().data(), loss.item<double>(),
                                 state_.step().attend("the loss of an adopted model"));
  require(all.status(), Error::Scope::all_ranks);
  double sum = 0;
  for (const double each : *all) sum += each;
  loss.fill_(sum / static_cast<double>(all->size()));
}

std::vector<bool> Adoption::trained_models() const {
  std::vector<bool> trained;
  for (const Model& model : models_) trained.push_back(has_new_gradient(model));
  return trained;
}

bool Adoption::has_new_gradient(const Model& model) {
  for (std::size_t i = 0; i < model.marks.size(); ++i) {
    const at::Tensor& gradient = model.parameters[i].grad();
    if (!gradient.defined()) continue;
    const Mark& mark = model.marks[i];
    if (gradient.unsafeGetTensorImpl() != mark.gradient) return true;
    if (version_of(gradient) != mark.version) return true;
  }
  return false;
}

void Adoption::begin_step() {
  if (!session_.state().is_started()) {
    watch_numerics();
    watch_weights();
  }
  step_.emplace(session_.step());
  growth_ = 1;
}

void Adoption::watch_weights() {
  if (!exchanges()) return;
  std::vector<at::Tensor> parameters;
  for (const Model& model : models_)
    parameters.insert(parameters.end(), model.parameters.begin(), model.parameters.end());
  weights_.emplace(std::move(parameters), session_.config().reduction.verify_steps, blocks_,
                   averages_losses_
                       ? ""
                       : ", as an optimizer that looks at each rank's own loss does (LBFGS: adopt "
                         "with closure_optimizer = ClosureOptimizer::yes)");
  added_weights_.emplace(state_.actuators(), *weights_);
}

void Adoption::watch_numerics() {
  std::vector<NoiseBlock> blocks;
  for (const std::string& name : blocks_.names()) blocks.push_back({name, {}});
  for (const Model& model : models_) {
    for (std::size_t b = 0; b < model.map.size(); ++b) {
      const BlockId block(static_cast<BlockId::rep>(b));
      blocks[model.first_block + b].parameters = model.map.parameters(block);
    }
  }
  numerics_.attach(*models_.front().module);
  numerics_.watch_adopted(std::move(blocks));
}

void Adoption::close_step() {
  visits_->end_step();
  change_stage(Stage::between, now());
  scalars_.clear();
  if (weights_) weights_->take();
  const bool is_asked_to_stop = ranks_ && ranks_->close(*step_).stop;
  step_.reset();
  has_gradients_ = false;
  if (is_asked_to_stop && !loop_asks_) end_by_signal();
}

void Adoption::finish() {
  const StreamPause unseen;
  if (!step_) return;
  if (has_gradients_) return close_step();
  // Something other than training looked at a parameter, perhaps on this rank alone.
  change_stage(Stage::between, now());
  step_.reset();
}

// The program would have ended at once had nobody taken the signal over. It ends now, with all
// ranks at the same step and all files closed.
void Adoption::end_by_signal() {
  state_.job().log().warning(
      "adopted model: asked to stop, and the loop does not ask stop_requested(); the job ends "
      "here");
  state_.finish();
  std::signal(SIGTERM, SIG_DFL);
  std::raise(SIGTERM);
  std::abort();
}

void Adoption::change_stage(Stage stage, Time when) {
  StepRecorder& recorder = state_.step().recorder();
  if (stage_ == Stage::forward || stage_ == Stage::backward) recorder.leave(when);
  if (stage_ == Stage::updating) {
    recorder.leave(last_update_);
    recorder.enter(Phase::data, last_update_);
    recorder.leave(when);
  }
  stage_ = stage;
  if (stage == Stage::forward) recorder.enter(Phase::forward, when);
  if (stage == Stage::backward) recorder.enter(Phase::backward, when);
  if (stage == Stage::accumulated) update_since_.reset();
  if (stage == Stage::updating) recorder.enter(Phase::optimizer, when);
}

}  // namespace cox::detail
