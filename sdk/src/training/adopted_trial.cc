#include "sdk/src/training/adopted_trial.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"
#include "sdk/src/blocks/bits_comparison.h"
#include "sdk/src/blocks/visit_clock.h"
#include "sdk/src/memory/memory_actuator.h"
#include "sdk/src/precision/fp8_watch.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/training/capabilities.h"

namespace cox::detail {
GradientsAside::GradientsAside(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    taken_.push_back({parameter, parameter.grad()});
    parameter.mutable_grad().reset();
  }
}

GradientsAside::~GradientsAside() {
  for (const Taken& it : taken_) it.parameter.mutable_grad() = it.gradient;
}

GradientPrints GradientsAside::prints() const {
  GradientPrints prints;
  for (const Taken& it : taken_)
    prints.push_back(it.gradient.defined() ? print_of(it.gradient) : GradientPrint());
  return prints;
}

std::optional<double> BatchGrowth::look(const OperatorCall& call, BlockId block,
                                        const AdoptedModels& models) {
  const std::size_t b = block.value();
  enters_block_ = false;
  if (b >= measured_.size()) return std::nullopt;
  std::int64_t elements = 0;
  for_each_tensor_of(call, [&](const at::Tensor& tensor) {
    if (!models.has_parameter(tensor)) elements += tensor.numel();
  });
  enters_block_ = elements == 0;
  entered_[b] += elements;
  const auto measured = static_cast<double>(measured_[b]);
  const auto entered = static_cast<double>(entered_[b]);
  if (measured == 0 || entered <= growth_ * measured) return std::nullopt;
  return entered / measured;
}

void BatchGrowth::make_room(Session& session, double growth) {
  growth_ = growth;
  const Capabilities& capabilities = session.capabilities();
  if (!capabilities.memory.make_room(growth)) return;
  capabilities.blocks.visits()->steer_anew();
  if (growth < 1.25 * told_) return;
  told_ = growth;
  session.state().job().log().info(concat(
      "adopted model: a batch of ", significant(growth, 3),
      " times the size that was measured; the blocks get less memory in such a step than the plan "
      "says, so that it stays within its budget"));
}

void BatchGrowth::note_measured() {
  for (std::size_t b = 0; b < measured_.size(); ++b)
    measured_[b] = std::max(measured_[b], entered_[b]);
}

AdoptedTrial::AdoptedTrial(AdoptedModels& models, BlockWatch& blocks, Follow follow)
    : models_(models),
      blocks_(blocks),
      visits_(*blocks.visits()),
      follower_(std::move(follow)),
      all_(std::make_unique<Recording>()) {}

void AdoptedTrial::forward_begins(std::uint64_t steps_ended) {
  if (step_ < steps_ended) {
    step_ = steps_ended;
    is_recording_ = true;
    is_checked_ = false;
  }
  if (is_recording_ && forward_ == nullptr) forward_ = std::make_unique<Recording>();
}

void AdoptedTrial::begin(const OperatorCall& call) {
  if (all_ != nullptr) all_->pass.begin(call);
  if (forward_ != nullptr) forward_->pass.begin(call);
}

void AdoptedTrial::end(std::span<const c10::IValue> results) {
  if (forward_ != nullptr) forward_->pass.end(results);
  if (all_ != nullptr) all_->pass.end(results);
}

void AdoptedTrial::failed() noexcept {
  if (forward_ != nullptr) forward_->pass.failed();
  if (all_ != nullptr) all_->pass.failed();
}

void AdoptedTrial::backward_begins(const BackwardPass& pass) {
  if (!std::exchange(is_recording_, false)) return;
  for (Recording* it : {forward_.get(), all_.get()}) {
    if (it != nullptr) it->status = it->pass.close(pass.roots, pass.gradients);
  }
  for (const at::Tensor& parameter : models_.together().parameters()) {
    const at::Tensor& gradient = parameter.grad();
    before_.push_back(gradient.defined() ? gradient.detach().clone() : at::Tensor());
  }
}

void AdoptedTrial::check(const std::vector<bool>& trained) {
  if (std::exchange(is_checked_, true)) return;
  if (status_.ok() && std::ranges::find(kinds_, trained, &Kind::trained) == kinds_.end()) {
    VisitClock& clock = visits_.parts().clock;
    const MeasureMode mode = clock.mode();
    const GradientsAside aside(models_.together().parameters());
    status_ = check_recording(aside.prints());
    clock.measure(mode);
    if (status_.ok()) kinds_.push_back({trained, std::move(forward_ != nullptr ? forward_ : all_)});
  }
  before_.clear();
  forward_.reset();
  all_.reset();
}

// Leaves the one that can be run again, if there is one.
Status AdoptedTrial::check_recording(const GradientPrints& expected) {
  Status status;
  for (std::unique_ptr<Recording>* each : {&forward_, &all_}) {
    if (*each == nullptr) continue;
    pass_ = &(*each)->pass;
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
      "expected the gradients of the first step from running it again, "
      "found another one of parameter " +
      models_.together().named_parameters().keys()[*unlike]);
}

at::Tensor AdoptedTrial::run(RecordedPass& pass) {
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
  sample.release = [this] { release(); };
  return sample;
}

void AdoptedTrial::release() {
  for (const Kind& kind : kinds_) kind.recording->pass.release();
}

void FirstSteps::model_added(AdoptedTrial::Follow follow) {
  if (trial_ != nullptr || !session_.state().calibration().is_wanted()) return;
  trial_ =
      std::make_unique<AdoptedTrial>(models_, session_.capabilities().blocks, std::move(follow));
}

void FirstSteps::forward_begins(BatchGrowth& growth) {
  if (trial_ == nullptr) return;
  StepEngine& step = session_.state().step();
  const std::uint64_t ended = step.steps_ended();
  if (trial_->is_complete(ended, models_.all().size())) return calibrate();
  step.hold_reports(StepEngine::Hold::yes);
  trial_->forward_begins(ended);
  if (trial_->wants_calls()) growth.begin_measuring(session_.capabilities().blocks.size());
}

void FirstSteps::calibrate() {
  const StreamPause unseen;
  SessionState& state = session_.state();
  const bool can_run_here = trial_->status().ok();
  if (!can_run_here) {
    state.job().log().warning(
        "adopted model: the first steps cannot be tried: " + trial_->status().message() +
        "; activations are kept, and no format is chosen by speed");
  }
  const auto failed = state.job().gather(can_run_here ? 0 : 1);
  const bool can_run = std::ranges::find(failed, 1u) == failed.end();
  const GradientsAside aside(models_.together().parameters());
  is_calibrating_ = true;
  session_.capabilities().fp8.count(Fp8Count::off);
  state.calibration().run(trial_->sample(can_run));
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
  if (trial_->wants_calls()) growth.note_measured();
  trial_->backward_begins(pass);
}

void FirstSteps::check() {
  if (trial_ == nullptr) return;
  Fp8Watch& fp8 = session_.capabilities().fp8;
  fp8.count(Fp8Count::off);
  trial_->check(models_.trained());
  fp8.count(Fp8Count::on);
}

}  // namespace cox::detail
