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

AdoptedTrial::AdoptedTrial(torch::nn::Module& model, BlockWatch& blocks, Follow follow)
    : model_(model), blocks_(blocks), visits_(*blocks.visits()), follower_(std::move(follow)) {}

void AdoptedTrial::backward_begins(const BackwardPass& pass, Gradients before) {
  if (!pass_.wants_calls()) return;
  status_ = pass_.close(pass.roots, pass.gradients);
  if (status_.ok() && before == Gradients::some)
    status_ = failed_precondition("expected parameters without gradients, found some with one");
}

void AdoptedTrial::check() {
  if (std::exchange(is_checked_, true) || !status_.ok()) return;
  const MeasureMode mode = visits_.mode();
  status_ = check_repeats();
  visits_.measure(mode);
  pass_.release();
}

Status AdoptedTrial::check_repeats() {
  const GradientsAside aside(model_.parameters());
  const std::vector<std::uint64_t> expected = aside.fingerprints();
  const Actions keep(blocks_.size(), MemoryAction::keep);
  const Actions recompute(blocks_.size(), MemoryAction::recompute);
  Status same = compare(recompute, expected);
  if (same.ok()) return compare(keep, expected);
  if (const Status kept = compare(keep, expected); !kept.ok()) return kept;
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
    blocks_.set_action(BlockId(static_cast<BlockId::rep>(b)), actions[b]);
  TrialStep step(model_, [this] { return run(); });
  pass_.release();
  const Status ran = step.run();
  visits_.forget_step();
  for (std::size_t b = 0; b < actions.size(); ++b)
    blocks_.set_action(BlockId(static_cast<BlockId::rep>(b)), MemoryAction::keep);
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
  const at::Tensor root = pass_.run();
  visits_.backward_begins();
  return root;
}

SampleStep AdoptedTrial::sample(bool can_run) {
  SampleStep sample{model_, {}};
  if (!can_run) return sample;
  sample.loss = [this] { return run(); };
  sample.release = [this] { pass_.release(); };
  return sample;
}

}  // namespace cox::detail
