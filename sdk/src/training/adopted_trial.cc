#include "sdk/src/training/adopted_trial.h"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ranges>
#include <utility>

#include "coordinator/core/text.h"
#include "sdk/src/blocks/bits_comparison.h"
#include "sdk/src/blocks/visit_clock.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/memory/memory_probe.h"
#include "sdk/src/precision/format_actuator.h"
#include "sdk/src/precision/fp8_watch.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/stream/inner_gradients.h"
#include "sdk/src/stream/storage.h"
#include "sdk/src/training/capabilities.h"

namespace cox::detail {

LeavesAside::LeavesAside(const std::vector<at::Tensor>& parameters,
                         const std::vector<at::Tensor>& others)
    : parameters_(parameters.size()) {
  for (const at::Tensor& parameter : parameters) take(parameter);
  for (const at::Tensor& other : others) {
    const auto is_it = [&](const Taken& it) { return it.leaf.is_same(other); };
    if (std::ranges::none_of(taken_, is_it)) take(other);
  }
}

void LeavesAside::take(const at::Tensor& leaf) {
  Taken& it = taken_.emplace_back(Taken{leaf, leaf.grad()});
  leaf.mutable_grad().reset();
  if (!leaf.requires_grad()) return;
  it.hooks.swap(torch::autograd::impl::hooks(leaf));
  it.hook_behind.swap(torch::autograd::impl::post_acc_grad_hooks(leaf));
}

LeavesAside::~LeavesAside() {
  for (Taken& it : taken_ | std::views::reverse) {
    it.leaf.mutable_grad() = it.gradient;
    if (!it.leaf.requires_grad()) continue;
    it.hooks.swap(torch::autograd::impl::hooks(it.leaf));
    it.hook_behind.swap(torch::autograd::impl::post_acc_grad_hooks(it.leaf));
  }
}

GradientPrints LeavesAside::prints() const {
  GradientPrints prints;
  for (std::size_t p = 0; p < parameters_; ++p) {
    const at::Tensor& gradient = taken_[p].gradient;
    prints.push_back(gradient.defined() ? print_of(gradient) : GradientPrint());
  }
  return prints;
}

bool LeavesAside::has_hooks() const {
  return std::ranges::any_of(
      taken_, [](const Taken& it) { return !it.hooks.empty() || it.hook_behind != nullptr; });
}

AdoptedTrial::AdoptedTrial(AdoptedModels& models, BlockWatch& blocks, Follow follow, Since since)
    : models_(models),
      blocks_(blocks),
      visits_(*blocks.visits()),
      follower_(std::move(follow), visits_),
      all_(since == Since::adopt ? std::make_unique<Recording>() : nullptr) {}

void AdoptedTrial::forward_begins(std::uint64_t steps_ended) {
  if (step_ < steps_ended) {
    step_ = steps_ended;
    record_ = Record::open;
    wholes_.end_step();
  }
  wholes_.begin_forward();
  if (record_ != Record::open || forward_ != nullptr) return;
  forward_ = std::make_unique<Recording>();
  wholes_.begin_step();
}

void AdoptedTrial::begin(const OperatorCall& call) {
  wholes_.begin(call);
  if (record_ != Record::open) return;
  if (all_ != nullptr) all_->pass.begin(call);
  if (forward_ != nullptr) forward_->pass.begin(call);
}

void AdoptedTrial::end(std::span<const c10::IValue> results) {
  const bool is_open = record_ == Record::open;
  if (is_open && forward_ != nullptr) forward_->pass.end(results);
  if (is_open && all_ != nullptr) all_->pass.end(results);
  wholes_.end(results);
}

void AdoptedTrial::failed() noexcept {
  const bool is_open = record_ == Record::open;
  if (is_open && forward_ != nullptr) forward_->pass.failed();
  if (is_open && all_ != nullptr) all_->pass.failed();
  wholes_.failed();
}

void AdoptedTrial::backward_begins(const BackwardPass& pass) {
  wholes_.backward_begins(pass);
  if (record_ != Record::open) return;
  record_ = Record::closed;
  for (Recording* it : {forward_.get(), all_.get()}) {
    if (it != nullptr) it->status = it->pass.close(pass.roots, pass.gradients);
  }
  for (const at::Tensor& parameter : models_.together().parameters()) {
    const at::Tensor& gradient = parameter.grad();
    before_.push_back(gradient.defined() ? gradient.detach().clone() : at::Tensor());
  }
}

void AdoptedTrial::check(const std::vector<bool>& trained) {
  if (std::exchange(record_, Record::checked) == Record::checked) return;
  if (std::ranges::find(kinds_, trained, &Kind::trained) == kinds_.end()) {
    if (status_.ok()) status_ = check_recordings();
    std::unique_ptr<Recording> kept;
    if (status_.ok()) kept = std::move(forward_ != nullptr ? forward_ : all_);
    kinds_.push_back({trained, std::move(kept)});
  } else {
    wholes_.forget_step();
  }
  before_.clear();
  forward_.reset();
  all_.reset();
}

Status AdoptedTrial::check_recordings() {
  VisitClock& clock = visits_.parts().clock;
  const MeasureMode mode = clock.mode();
  const LeavesAside aside(models_.together().parameters(), leaves());
  const auto can_run = [](const auto& it) { return it != nullptr && it->status.ok(); };
  const bool runs = can_run(forward_) || can_run(all_);
  Status status = check_recording(aside.prints());
  if (!status.ok() && runs && aside.has_hooks())
    status = status.with_context("a parameter has a hook, and trial runs leave hooks out");
  clock.measure(mode);
  return status;
}

// Keeps the recording that can run again, if any.
Status AdoptedTrial::check_recording(const GradientPrints& expected) {
  Status status;
  for (std::unique_ptr<Recording>* each : {&forward_, &all_}) {
    if (*each == nullptr) continue;
    pass_ = &(*each)->pass;
    pass_->let_go_of_graph();
    status = (*each)->status.ok() ? check_repeats(expected) : (*each)->status;
    pass_->release();
    if (status.ok()) break;
    each->reset();
  }
  return status;
}

bool AdoptedTrial::is_complete(std::uint64_t steps_ended, std::size_t models) const {
  if (steps_ended < models) return false;
  std::vector<bool> trained(models, false);
  for (const Kind& kind : kinds_) {
    for (std::size_t m = 0; m < models; ++m) trained[m] = trained[m] || kind.trained[m];
  }
  return steps_ended >= kMostSteps || std::ranges::find(trained, false) == trained.end();
}

Status AdoptedTrial::check_repeats(const GradientPrints& expected) {
  const Actions keep(blocks_.size(), MemoryAction::keep);
  const Actions recompute(blocks_.size(), MemoryAction::recompute);
  Status kept = compare(keep, expected);
  if (!kept.ok() && ran_.ok() && learn_spread()) kept = compare(keep, expected);
  if (!kept.ok()) return kept;
  if (compare(recompute, expected).ok()) return ok_status();
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Actions alone = keep;
    alone[b] = MemoryAction::recompute;
    const Status one = compare(alone, expected);
    if (!one.ok())
      visits_.parts().steering.pin(BlockId(static_cast<BlockId::rep>(b)), one.message());
  }
  return compare(recompute, expected);
}

bool AdoptedTrial::learn_spread() {
  constexpr int kRuns = 3;
  const GradientPrints first = run_under(Actions(blocks_.size(), MemoryAction::keep));
  for (int again = 1; again < kRuns; ++again)
    spread_.note(first, run_under(Actions(blocks_.size(), MemoryAction::keep)));
  if (spread_.unsteady() == 0) return false;
  visits_.parts().comparison.compare(BitsComparison::Comparing::on);
  run_under(Actions(blocks_.size(), MemoryAction::recompute));
  visits_.parts().comparison.compare(BitsComparison::Comparing::off);
  return true;
}

GradientPrints AdoptedTrial::run_under(const Actions& actions) {
  set_actions(visits_.parts().steering, actions);
  const std::vector<at::Tensor> parameters = models_.together().parameters();
  TrialStep step(models_.together(), [&] {
    const at::Tensor loss = run(*pass_);
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      if (before_[p].defined()) parameters[p].mutable_grad() = before_[p].clone();
    }
    return loss;
  });
  pass_->release();
  ran_ = step.run();
  visits_.forget_step();
  set_actions(visits_.parts().steering, Actions(actions.size(), MemoryAction::keep));
  return ran_.ok() ? step.gradients() : GradientPrints();
}

Status AdoptedTrial::compare(const Actions& actions, const GradientPrints& expected) {
  const GradientPrints found = run_under(actions);
  if (!ran_.ok()) return ran_;
  const std::optional<std::size_t> unlike = spread_.first_unlike(found, expected);
  if (!unlike) return ok_status();
  return failed_precondition(
      "expected a second run of the first step to give the same gradients, found a different "
      "gradient of parameter " +
      models_.together().named_parameters().keys()[*unlike]);
}

void AdoptedTrial::Follower::begin(const OperatorCall& call) {
  is_backward_ = call.handle == backward_operator();
  if (is_backward_) visits_.backward_begins();
}

void AdoptedTrial::Follower::end(std::span<const c10::IValue>) {
  if (std::exchange(is_backward_, false)) visits_.parts().clock.backward_ended();
}

// A recording that cannot run again only makes the prediction less exact.
void AdoptedTrial::drop_broken_wholes() {
  wholes_.drop_broken([this](RecordedPass& whole) {
    set_actions(visits_.parts().steering, Actions(blocks_.size(), MemoryAction::recompute));
    TrialStep step(models_.together(), [&] { return run(whole); });
    Status ran = step.run();
    whole.release();
    visits_.forget_step();
    return ran;
  });
  set_actions(visits_.parts().steering, Actions(blocks_.size(), MemoryAction::keep));
}

at::Tensor AdoptedTrial::run(RecordedPass& pass) {
  follower_.sees_backward = pass.backward_passes() > 0;
  const StreamScope shown({&follower_, blocks_.listener()});
  const at::Tensor root = pass.run();
  visits_.backward_begins();
  return root;
}

SampleStep AdoptedTrial::sample(bool can_run) {
  SampleStep sample{models_.together(), {}};
  if (!can_run) return sample;
  const auto models_of = [](const Kind& kind) { return std::ranges::count(kind.trained, true); };
  const auto most = std::ranges::max_element(kinds_, {}, models_of);
  for (auto kind = kinds_.begin(); kind != kinds_.end(); ++kind) {
    std::function<at::Tensor()> loss = [this, &pass = kind->recording->pass] { return run(pass); };
    if (kind == most) {
      sample.loss = std::move(loss);
    } else {
      sample.other_losses.push_back(std::move(loss));
    }
  }
  drop_broken_wholes();
  for (const auto& whole : wholes_.kept()) {
    sample.other_losses.emplace_back([this, &pass = *whole] { return run(pass); });
  }
  sample.release = [this] { release(); };
  sample.spare_bytes = RecordedPass::held_bytes(passes());
  return sample;
}

std::vector<at::Tensor> AdoptedTrial::leaves() const {
  std::vector<at::Tensor> all;
  const auto add = [&](const std::unique_ptr<Recording>& recording) {
    if (recording == nullptr) return;
    for (const at::Tensor& leaf : recording->pass.leaves()) all.push_back(leaf);
  };
  add(forward_);
  add(all_);
  for (const Kind& kind : kinds_) add(kind.recording);  // null without a pass that can run again
  for (const auto& whole : wholes_.kept())
    std::ranges::move(whole->leaves(), std::back_inserter(all));
  return all;
}

std::vector<RecordedPass*> AdoptedTrial::passes() const {
  std::vector<RecordedPass*> all;
  for (const Kind& kind : kinds_) {
    if (kind.recording != nullptr) all.push_back(&kind.recording->pass);
  }
  for (const auto& whole : wholes_.kept()) all.push_back(whole.get());
  return all;
}

void AdoptedTrial::release() {
  for (RecordedPass* pass : passes()) pass->release();
}

void UpdateProfile::begin() {
  is_open_ = true;
  parts_.clear();
  parts_of_update_ = 0;
  parameter_ = nullptr;
  parameter_bytes_ = 0;
  live_bytes_ = probe_.memory().count().live_bytes;
  probe_.begin_part();
}

void UpdateProfile::note(const at::Tensor& parameter, LoopStages::Access access) {
  if (storage_impl(parameter) != parameter_) {
    close_part();
    parameter_ = storage_impl(parameter);
    parameter_bytes_ = static_cast<std::int64_t>(parameter.nbytes());
  }
  if (access == LoopStages::Access::write) parts_of_update_ = parts_.size() + 1;
}

void UpdateProfile::close_part() {
  const std::int64_t live = probe_.memory().count().live_bytes;
  parts_.push_back({parameter_bytes_, probe_.peak_of_part(), live - live_bytes_});
  live_bytes_ = live;
  probe_.begin_part();
}

// The last parameter's growth cannot be measured, because the program continues after it. Assumes
// the same growth for each byte as for the other parameters.
std::int64_t UpdateProfile::end() {
  if (!std::exchange(is_open_, false)) return 0;
  close_part();
  std::int64_t most = 0, behind = 0;
  while (parts_.size() > parts_of_update_) {  // after the update: frozen blocks, an evaluation
    most = std::max(most, parts_.back().peak_bytes);
    parts_.pop_back();
  }
  if (parts_.empty()) return most;
  double grown = 0, of_bytes = 0;
  for (std::size_t i = 1; i + 1 < parts_.size(); ++i) {
    grown += static_cast<double>(std::max<std::int64_t>(0, parts_[i].grown_bytes));
    of_bytes += static_cast<double>(parts_[i].parameter_bytes);
  }
  const double ratio = of_bytes > 0 ? grown / of_bytes : 0;
  Part& last = parts_.back();
  last.grown_bytes = std::llround(ratio * static_cast<double>(last.parameter_bytes));
  for (const Part& part : parts_ | std::views::reverse) {
    most = std::max(most, part.peak_bytes + behind);
    behind += std::max<std::int64_t>(0, part.grown_bytes);
  }
  return most;
}

FirstSteps::FirstSteps(Session& session, AdoptedModels& models)
    : session_(session), models_(models), update_(session.capabilities().probe) {}

void FirstSteps::parameter_used(const at::Tensor& parameter, LoopStages::Access access) {
  if (trial_ != nullptr && access == LoopStages::Access::write) trial_->update_begins();
  if (update_.is_open()) update_.note(parameter, access);
}

void FirstSteps::update_ended() {
  update_peak_bytes_ = std::max(update_peak_bytes_, update_.end());
}

void FirstSteps::model_added(AdoptedTrial::Follow follow) {
  if (trial_ != nullptr || !session_.state().calibration().is_wanted()) return;
  follow_ = std::move(follow);
  begin_trial();
}

void FirstSteps::begin_trial() {
  const auto since = measurements_ == 0 ? AdoptedTrial::Since::adopt : AdoptedTrial::Since::forward;
  trial_ = std::make_unique<AdoptedTrial>(models_, session_.capabilities().blocks, follow_, since);
  trial_began_ = session_.state().step().steps_ended();
}

void FirstSteps::step_begins(BatchGrowth& growth) {
  if (trial_ != nullptr || measurements_ == 0) return;
  changed_steps_ = models_.are_as_noted() ? 0 : changed_steps_ + 1;
  // Models that freeze each other in turn are not measured in every turn. Each further measurement
  // waits for a change that lasts twice as long.
  if (changed_steps_ < std::uint64_t{1} << (measurements_ - 1)) return;
  const Membership& job = session_.state().job();
  if (job.is_root()) {
    job.log().info(
        "adopted model: parameters changed (requires_grad, shapes or types) since the model's "
        "memory was measured; the next steps measure the memory again");
  }
  changed_steps_ = 0;
  begin_anew(growth);
}

// Forgets what was seen of the models as they were before.
void FirstSteps::begin_anew(BatchGrowth& growth) {
  looked_at_.reset();
  bytes_at_forward_ = 0;
  released_bytes_.reset();
  update_peak_bytes_ = 0;
  growth.forget_measured();
  begin_trial();
}

void FirstSteps::forward_begins(BatchGrowth& growth) {
  if (trial_ == nullptr) return;
  StepEngine& step = session_.state().step();
  const std::uint64_t ended = step.steps_ended() - trial_began_;
  if (trial_->is_complete(ended, models_.all().size())) {
    trial_->update_begins();
    if (looks_at_release(ended)) return;
    if (!have_models_changed()) return calibrate();
    begin_anew(growth);
    return forward_begins(growth);
  }
  if (ended == 0) models_.note_forms();
  step.hold_reports(StepEngine::Hold::yes);
  trial_->forward_begins(ended);
  if (!trial_->wants_calls()) return;
  BlockWatch& blocks = session_.capabilities().blocks;
  growth.begin_measuring(blocks.size());
  blocks.visits()->parts().pass.count_with(
      [&probe = session_.capabilities().probe] { return probe.memory().count().live_bytes; });
  // With hooks autograd saves its own handles, so the recording sees when the program frees a
  // tensor.
  VisitClock& clock = blocks.visits()->parts().clock;
  if (clock.mode() == MeasureMode::off) clock.measure(MeasureMode::times);
}

// A step that was recorded before the models changed cannot run with them as they are now.
bool FirstSteps::have_models_changed() {
  constexpr int kMostTrials = 4;
  if (++trials_ >= kMostTrials) return false;
  const auto changed = session_.state().job().gather(models_.are_as_noted() ? 0 : 1);
  return std::ranges::find(changed, 1u) != changed.end();
}

std::int64_t FirstSteps::gradient_bytes() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& parameter : models_.together().parameters()) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined())
      bytes += gradient.numel() * static_cast<std::int64_t>(gradient.element_size());
  }
  return bytes;
}

// A loop whose forward pass begins with gradients may free them before backward(). One more step
// shows whether the loop frees gradients. Ranks agree on it, because one rank alone may begin the
// pass before it clears its gradients (a look at its parameters, say).
bool FirstSteps::looks_at_release(std::uint64_t steps_ended) {
  if (looked_at_) return *looked_at_ == steps_ended;
  looked_at_ = steps_ended;
  bytes_at_forward_ = gradient_bytes();
  const auto begin_with_some = session_.state().job().gather(bytes_at_forward_ > 0 ? 1 : 0);
  return std::ranges::find(begin_with_some, 1u) != begin_with_some.end();
}

void FirstSteps::calibrate() {
  const StreamPause unseen;
  SessionState& state = session_.state();
  const bool can_run_here = trial_->status().ok();
  if (!can_run_here) {
    state.job().log().warning(
        std::string("adopted model: the ") + (measurements_ == 0 ? "first" : "changed model's") +
        " steps cannot be repeated for measurements: " + trial_->status().message() +
        "; activations are kept, and no format is chosen by speed");
  }
  const auto failed = state.job().gather(can_run_here ? 0 : 1);
  const bool can_run = std::ranges::find(failed, 1u) == failed.end();
  const LeavesAside aside(models_.together().parameters(), trial_->leaves());
  is_calibrating_ = true;
  session_.capabilities().fp8.count(Fp8Count::off);
  SampleStep sample = trial_->sample(can_run);
  if (const Status& dropped = trial_->whole_steps(); can_run && !dropped.ok()) {
    state.job().log().warning(
        "adopted model: a step's later backward passes cannot be repeated, so that predicted peaks "
        "leave them out, and a budget may be exceeded: " +
        dropped.message());
  }
  sample.update_peak_bytes = update_peak_bytes_;
  sample.released_bytes = released_bytes_.value_or(0);
  // A step whose products run in a format needs memory beyond its batch, and must meet the budget,
  // too.
  if (session_.capabilities().formats.is_wanted()) sample.spare_bytes = 0;
  if (measurements_ == 0) {
    state.calibration().run(sample);
  } else {
    state.calibration().run_again(sample);
  }
  measurements_ = std::min<std::uint64_t>(measurements_ + 1, 32);
  trials_ = 0;
  models_.note_forms();
  session_.capabilities().fp8.count(Fp8Count::on);
  is_calibrating_ = false;
  state.step().hold_reports(StepEngine::Hold::no);
  trial_.reset();
}

void FirstSteps::begin(const OperatorCall& call) {
  records_call_ = wants_calls();
  if (records_call_) trial_->begin(call);
}

void FirstSteps::backward_begins(const BackwardPass& pass, BatchGrowth& growth) {
  if (trial_ == nullptr) return;
  if (bytes_at_forward_ > 0 && !released_bytes_)
    released_bytes_ = std::max<std::int64_t>(0, bytes_at_forward_ - gradient_bytes());
  if (trial_->wants_calls()) growth.note_measured();
  trial_->backward_begins(pass);
}

void FirstSteps::check() {
  if (trial_ == nullptr) return;
  Fp8Watch& fp8 = session_.capabilities().fp8;
  fp8.count(Fp8Count::off);
  trial_->check(models_.trained());
  fp8.count(Fp8Count::on);
  if (measurements_ > 0) session_.capabilities().memory.steer_anew();  // trials keep all blocks
  update_.begin();
}

}  // namespace cox::detail
