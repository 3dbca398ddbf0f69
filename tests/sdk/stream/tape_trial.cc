#include "tests/sdk/stream/tape_trial.h"

#include <ATen/SequenceNumber.h>
#include <ATen/autocast_mode.h>
#include <torch/torch.h>

#include "tests/sdk/same_bits.h"

// Outside of namespace cox, whose tensors stay on the CPU (tests/support/cuda/on_device.cc).
namespace tests_of_tapes {
at::Device default_device() {
  return torch::zeros({1}).device();
}
}  // namespace tests_of_tapes

namespace cox::detail {
namespace {

constexpr int kMoreThanAProgramUses = 10'000;  // node numbers

}  // namespace

at::Device trial_device() {
  static const at::Device device = tests_of_tapes::default_device();
  return device;
}

void take_node_numbers(int count) {
  for (int i = 0; i < count; ++i) at::sequence_number::get_and_increment();
}

Workbench::Workbench(const TapePlan& plan) : plan_(plan), choices_(plan.seed) {
  const bool installed = install_saved_tensor_engine().ok();
  if (!installed) throw std::runtime_error("the engine is not ours");
  torch::manual_seed(11);
  const at::Device device = trial_device();
  x = torch::randn({4, 8}, device).requires_grad_();
  for (at::Tensor& weight : weights) weight = (torch::randn({8, 8}, device) * 0.5).requires_grad_();
  mean = torch::zeros({8}, device);
  variance = torch::ones({8}, device);
  raw.fill(0.3F);
  cut();
}

Workbench::~Workbench() {
  stop();
}

void Workbench::cut() {
  if (!plan_.is_taped) return;
  stop();
  const auto choice = [this](const SavedValue&) {
    const double drawn = std::uniform_real_distribution<>(0, 1)(choices_);
    return drawn < plan_.keep_probability ? Hold::keep : Hold::drop;
  };
  tape_ = Tape::make("block test", choice, plan_.rules);
  tapes_.push_back(tape_);
  if (plan_.holds_tapes) held_tapes_.push_back(tape_);
  scope_.emplace(*tape_);
}

void Workbench::stop() {
  scope_.reset();
  if (tape_ != nullptr) tape_->close();
  tape_.reset();
}

TapeCounts Workbench::counts() const {
  TapeCounts sum;
  for (const auto& each : tapes_) {
    const auto tape = each.lock();
    if (tape == nullptr) continue;
    const TapeCounts one = tape->counts();
    sum.operators += one.operators;
    sum.kept += one.kept;
    sum.dropped += one.dropped;
    sum.replayed += one.replayed;
    sum.copied_bytes += one.copied_bytes;
  }
  return sum;
}

namespace {

void differentiate(const at::Tensor& loss, Workbench& bench, Backward backward,
                   std::vector<at::Tensor>& bits) {
  if (backward != Backward::thrice_differentiated) {
    if (backward == Backward::twice) loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    return;
  }
  std::vector<at::Tensor> inputs{bench.x};
  inputs.insert(inputs.end(), bench.weights.begin(), bench.weights.end());
  at::Tensor value = loss;
  for (int order = 0; order < 2; ++order) {
    const auto grads = torch::autograd::grad({value}, inputs, {}, true, true, true);
    value = loss * 0;
    for (const at::Tensor& grad : grads) {
      if (!grad.defined()) continue;
      bits.push_back(grad.detach());
      value = value + grad.square().sum();
    }
    if (!value.requires_grad()) return;
  }
  value.backward();
}

void collect(const Workbench& bench, const at::Tensor& loss, std::vector<at::Tensor>& bits) {
  bits.push_back(loss.detach());
  bits.push_back(bench.x.grad());
  for (const at::Tensor& weight : bench.weights) bits.push_back(weight.grad());
  bits.push_back(bench.mean);
  bits.push_back(bench.variance);
  bits.push_back(torch::rand({2}, bench.x.device()));  // the random state
}

}  // namespace

TrialOutcome run_program(const Program& program, const TapePlan& plan, Backward backward) {
  TrialOutcome outcome;
  Workbench bench(plan);
  take_node_numbers(kMoreThanAProgramUses);
  try {
    torch::manual_seed(7);
    const at::Tensor loss = program.loss(bench);
    bench.stop();
    if (program.before_backward) program.before_backward(bench);
    outcome.counts = bench.counts();
    if (loss.requires_grad()) differentiate(loss, bench, backward, outcome.bits);
    outcome.counts.replayed = bench.counts().replayed;
    collect(bench, loss, outcome.bits);
  } catch (const std::exception& error) {
    outcome.error = std::string(error.what()).substr(0, 200);
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  return outcome;
}

std::string difference(const TrialOutcome& plain, const TrialOutcome& taped) {
  if (!plain.error.empty()) return "plain autograd refuses: " + plain.error;
  if (!taped.error.empty()) return "throws: " + taped.error;
  for (std::size_t i = 0; i < plain.bits.size(); ++i) {
    const at::Tensor& a = plain.bits[i];
    const at::Tensor& b = taped.bits[i];
    if (a.defined() != b.defined()) return "only one has number " + std::to_string(i);
    if (a.defined() && !sdk_test::same_bits(a, b))
      return "other bits in number " + std::to_string(i);
  }
  return "";
}

}  // namespace cox::detail
