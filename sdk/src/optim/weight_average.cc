#include "coxswain/weight_average.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "coxswain/error.h"
#include "coxswain/safetensors.h"

namespace cox {
namespace {

constexpr std::int64_t kGrain = 1L << 15;  // elements for one thread at a time

std::vector<NamedTensor> named_list(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  std::vector<NamedTensor> out;
  for (const auto& item : tensors) out.push_back({item.key(), item.value()});
  return out;
}

bool is_plain(const at::Tensor& average, const at::Tensor& weight) {
  return average.device().is_cpu() && average.scalar_type() == at::kFloat &&
         weight.scalar_type() == at::kFloat && average.strides() == weight.strides();
}

// Compiled without contraction, so that no fused multiply-add changes a bit.
void move_towards(const at::Tensor& average, const at::Tensor& weight, float part) {
  auto* to = average.mutable_data_ptr<float>();
  const auto* from = weight.const_data_ptr<float>();
  at::parallel_for(0, average.numel(), kGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) to[i] += part * (from[i] - to[i]);
  });
}

}  // namespace

WeightAverage::WeightAverage(const torch::nn::Module& model, WeightAverageOptions options)
    : WeightAverage(named_list(model.named_parameters()), named_list(model.named_buffers()),
                    options) {}

WeightAverage::WeightAverage(std::vector<NamedTensor> parameters, std::vector<NamedTensor> buffers,
                             WeightAverageOptions options)
    : options_(options) {
  if (!(options.decay >= 0 && options.decay < 1)) {
    throw Error(invalid_argument("WeightAverage: expected decay in [0, 1), found ", options.decay));
  }
  for (NamedTensor& named : parameters) add(std::move(named));
  for (NamedTensor& named : buffers) {
    if (!named.tensor.defined()) continue;
    at::Tensor copy = named.tensor.detach().clone();
    slots_.push_back({std::move(named), std::move(copy), true});
  }
}

void WeightAverage::add(NamedTensor named) {
  const auto require = [&](bool condition, const std::string& expected) {
    if (condition) return;
    throw Error(
        invalid_argument("WeightAverage: parameter " + named.name + ": expected " + expected));
  };
  require(named.tensor.defined(), "a tensor, found an undefined one");
  require(named.tensor.is_floating_point(),
          std::string("a floating type, found ") + c10::toString(named.tensor.scalar_type()));
  require(named.tensor.layout() == at::kStrided && named.tensor.is_non_overlapping_and_dense(),
          "a dense tensor without gaps, found another layout; pass a contiguous one");
  const auto type = named.tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor average = named.tensor.detach().to(type, /*non_blocking=*/false, /*copy=*/true);
  slots_.push_back({std::move(named), std::move(average), false});
}

void WeightAverage::require_closed(const char* what) const {
  if (!is_swapped_) return;
  throw Error(failed_precondition(std::string("WeightAverage: expected the model's own weights "
                                              "for ") +
                                  what + ", found an AveragedWeights open; end it first"));
}

double WeightAverage::next_decay() const {
  if (!options_.warm_up) return options_.decay;
  const auto t = static_cast<double>(updates_);
  return std::min(options_.decay, (1 + t) / (10 + t));
}

void WeightAverage::update() {
  require_closed("update()");
  const at::NoGradGuard no_grad;
  const double part = 1 - next_decay();
  std::vector<at::Tensor> averages;
  std::vector<at::Tensor> weights;
  for (const Slot& slot : slots_) {
    if (slot.is_buffer) {
      slot.average.copy_(slot.source.tensor);
    } else if (is_plain(slot.average, slot.source.tensor)) {
      move_towards(slot.average, slot.source.tensor, static_cast<float>(part));
    } else {
      averages.push_back(slot.average);
      weights.push_back(slot.source.tensor.detach().to(slot.average.scalar_type()));
    }
  }
  if (!averages.empty()) at::_foreach_lerp_(averages, weights, part);
  ++updates_;
}

std::vector<NamedTensor> WeightAverage::averages() const {
  std::vector<NamedTensor> out;
  for (const Slot& slot : slots_) out.push_back({slot.source.name, slot.average});
  return out;
}

std::vector<NamedTensor> WeightAverage::state() const {
  std::vector<NamedTensor> out;
  for (const Slot& slot : slots_) {
    out.push_back({(slot.is_buffer ? "buffer." : "average.") + slot.source.name, slot.average});
  }
  out.push_back({"updates", at::full({}, updates_, at::TensorOptions(at::kLong))});
  return out;
}

Status WeightAverage::load_state(std::span<const NamedTensor> state) {
  require_closed("load_state()");
  for (const NamedTensor& named : state) {
    const bool is_count = named.name == "updates" && named.tensor.defined() &&
                          named.tensor.numel() == 1 && named.tensor.scalar_type() == at::kLong;
    if (!is_count || named.tensor.item<std::int64_t>() >= 0) continue;
    return invalid_argument("WeightAverage state: updates: expected at least 0, found " +
                            std::to_string(named.tensor.item<std::int64_t>()) +
                            "; the state is damaged");
  }
  const std::vector<NamedTensor> targets = this->state();
  if (Status status = load_into(targets, state); !status.ok()) {
    return status.with_context("WeightAverage state");
  }
  updates_ = targets.back().tensor.item<std::int64_t>();
  return ok_status();
}

AveragedWeights::AveragedWeights(WeightAverage& average) : average_(average) {
  average.require_closed("AveragedWeights");
  const at::NoGradGuard no_grad;
  // Copies all before the first write, because a tensor may be in the list twice.
  for (const auto& slot : average.slots_) own_.push_back(slot.source.tensor.detach().clone());
  for (const auto& slot : average.slots_) slot.source.tensor.copy_(slot.average);
  average.is_swapped_ = true;
}

AveragedWeights::~AveragedWeights() {
  const at::NoGradGuard no_grad;
  std::size_t i = 0;
  for (const auto& slot : average_.slots_) slot.source.tensor.copy_(own_[i++]);
  average_.is_swapped_ = false;
}

}  // namespace cox
