#include "sdk/src/training/adopted_trial.h"

#include <torch/nn/module.h>

#include <utility>

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

std::vector<std::uint64_t> GradientsAside::fingerprints() const {
  std::vector<std::uint64_t> prints;
  for (const Taken& it : taken_)
    prints.push_back(it.gradient.defined() ? fingerprint(it.gradient) : 0);
  return prints;
}

AdoptedTrial::AdoptedTrial(Models models, BlockWatch& blocks, Follow follow)
    : models_(std::move(models)),
      blocks_(blocks),
      visits_(*blocks.visits()),
      follower_(std::move(follow)),
      all_(std::make_unique<Recording>()) {}

void AdoptedTrial::forward_begins() {
  if (is_recording_ && forward_ == nullptr) forward_ = std::make_unique<Recording>();
}

void AdoptedTrial::begin(const OperatorCall& call) {
  all_->pass.begin(call);
  if (forward_ != nullptr) forward_->pass.begin(call);
}

void AdoptedTrial::end(std::span<const c10::IValue> results) {
  if (forward_ != nullptr) forward_->pass.end(results);
  all_->pass.end(results);
}

void AdoptedTrial::failed() noexcept {
  if (forward_ != nullptr) forward_->pass.failed();
  all_->pass.failed();
}

void AdoptedTrial::backward_begins(const BackwardPass& pass, Gradients before) {
  if (!std::exchange(is_recording_, false)) return;
  for (Recording* it : {forward_.get(), all_.get()}) {
    if (it != nullptr) it->status = it->pass.close(pass.roots, pass.gradients);
  }
  if (before == Gradients::some)
    status_ = failed_precondition("expected parameters without gradients, found some with one");
}

void AdoptedTrial::check() {
  if (std::exchange(is_checked_, true) || !status_.ok()) return;
  const MeasureMode mode = visits_.mode();
  const GradientsAside aside(models_().parameters());
  const std::vector<std::uint64_t> expected = aside.fingerprints();
  for (std::unique_ptr<Recording>* each : {&forward_, &all_}) {
    if (*each == nullptr) continue;
    pass_ = &(*each)->pass;
    status_ = (*each)->status.ok() ? check_repeats(expected) : (*each)->status;
    pass_->release();
    if (status_.ok()) break;
    each->reset();
  }
  visits_.measure(mode);
}

Status AdoptedTrial::check_repeats(const std::vector<std::uint64_t>& expected) {
  const Actions keep(blocks_.size(), MemoryAction::keep);
  const Actions recompute(blocks_.size(), MemoryAction::recompute);
  if (const Status kept = compare(keep, expected); !kept.ok()) return kept;
  if (compare(recompute, expected).ok()) return ok_status();
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Actions alone = keep;
    alone[b] = MemoryAction::recompute;
    const Status one = compare(alone, expected);
    if (!one.ok()) visits_.pin(BlockId(static_cast<BlockId::rep>(b)), one.message());
  }
  return compare(recompute, expected);
}

Status AdoptedTrial::compare(const Actions& actions, const std::vector<std::uint64_t>& expected) {
  for (std::size_t b = 0; b < actions.size(); ++b)
    visits_.set_action(BlockId(static_cast<BlockId::rep>(b)), actions[b]);
  TrialStep step(models_(), [this] { return run(); });
  pass_->release();
  const Status ran = step.run();
  visits_.forget_step();
  for (std::size_t b = 0; b < actions.size(); ++b)
    visits_.set_action(BlockId(static_cast<BlockId::rep>(b)), MemoryAction::keep);
  if (!ran.ok()) return ran;
  const std::vector<std::string> names = step.parameter_names();
  for (std::size_t p = 0; p < names.size(); ++p) {
    if (step.gradients()[p] == expected[p]) continue;
    return failed_precondition(
        "expected the gradients of the first step from running it again, "
        "found another one of parameter " +
        names[p]);
  }
  return ok_status();
}

at::Tensor AdoptedTrial::run() {
  const StreamScope shown({&follower_, &visits_});
  const at::Tensor root = pass_->run();
  visits_.backward_begins();
  return root;
}

SampleStep AdoptedTrial::sample(bool can_run) {
  SampleStep sample{models_(), {}};
  if (!can_run) return sample;
  sample.loss = [this] { return run(); };
  sample.release = [this] { pass_->release(); };
  return sample;
}

}  // namespace cox::detail
