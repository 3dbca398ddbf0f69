#include "sdk/src/precision/trial_step.h"

#include <torch/torch.h>

#include <array>
#include <bit>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <unordered_map>

#include "coxswain/error.h"
#include "sdk/src/parallel/ready_hooks.h"
#include "sdk/src/precision/execution_state.h"
#include "sdk/src/stream/storage.h"

namespace cox::detail {
namespace {

// As fast as a copy, because a step that moves gradients to buckets copies them where this is
// called. Every step of it is a bijection of its lane.
std::uint64_t hash_of(const std::byte* data, std::size_t size) {
  std::array<std::uint64_t, 4> lanes = {size, 1, 2, 3};
  std::array<std::uint64_t, 4> words;
  const auto mix = [&] {
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      lanes[i] = std::rotl(lanes[i] ^ words[i], 29) * 0x9E3779B97F4A7C15U;
    }
  };
  for (; size >= sizeof(words); data += sizeof(words), size -= sizeof(words)) {
    std::memcpy(words.data(), data, sizeof(words));
    mix();
  }
  words.fill(0);
  if (size > 0) std::memcpy(words.data(), data, size);
  mix();
  return lanes[0] ^ std::rotl(lanes[1], 16) ^ std::rotl(lanes[2], 32) ^ std::rotl(lanes[3], 48);
}

}  // namespace

std::uint64_t fingerprint(const at::Tensor& gradient) {
  const bool is_dense = gradient.layout() == at::kStrided;
  const at::Tensor values = (is_dense ? gradient.detach() : gradient.to_dense()).cpu().contiguous();
  return hash_of(static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes());
}

TrialStep::TrialStep(torch::nn::Module& model, std::function<at::Tensor()> loss,
                     std::vector<at::Tensor> released)
    : model_(model), loss_(std::move(loss)), released_(std::move(released)) {}

Status TrialStep::run() {
  const std::vector<at::Tensor> parameters = model_.parameters();
  gradients_.assign(parameters.size(), 0);
  std::unordered_map<const void*, std::size_t> places;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    places.emplace(parameters[p].unsafeGetTensorImpl(), p);
  }
  const auto drop = [&, thread = std::this_thread::get_id()](std::size_t r) {
    const auto place = places.find(released_[r].unsafeGetTensorImpl());
    if (place == places.end() || std::this_thread::get_id() != thread) return;
    take_gradient(place->second, released_[r]);
  };
  Status status;
  {
    const ReadyHooks hooks(released_, drop);
    status = run_once();
  }
  for (std::size_t p = 0; p < parameters.size(); ++p) take_gradient(p, parameters[p]);
  return status;
}

Status TrialStep::run_once() {
  const ExecutionState state = capture_state(model_);
  const BufferCopies buffers(model_.buffers());
  try {
    const StateScope undone(state);
    const BufferScope put_back(buffers);
    const at::Tensor loss = loss_();
    loss.backward();
  } catch (const std::exception& error) {
    return internal_error("trial step: " + first_line(error.what()));
  }
  return ok_status();
}

void TrialStep::take_gradient(std::size_t place, const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (!gradient.defined()) return;
  gradients_[place] = std::rotl(gradients_[place], 1) ^ fingerprint(gradient);
  gradient.reset();
}

std::vector<std::string> TrialStep::parameter_names() const {
  std::vector<std::string> names;
  for (const auto& item : model_.named_parameters()) names.push_back(item.key());
  return names;
}

}  // namespace cox::detail
