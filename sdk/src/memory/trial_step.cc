#include "sdk/src/memory/trial_step.h"

#include <torch/torch.h>

#include <array>
#include <exception>
#include <string>

#include "coordinator/core/crc32.h"
#include "sdk/src/memory/recompute_buffers.h"
#include "sdk/src/memory/recompute_state.h"

namespace cox::detail {
namespace {

std::uint64_t fingerprint(const at::Tensor& gradient) {
  if (!gradient.defined()) return 0;
  const at::Tensor bytes = gradient.detach().cpu().contiguous();
  const auto* data = static_cast<const std::byte*>(bytes.const_data_ptr());
  const auto size = static_cast<std::size_t>(bytes.nbytes());
  return (std::uint64_t{1} << 32) | crc32({data, size});
}

std::vector<at::Device> devices_of(const torch::nn::Module& model) {
  std::vector<at::Device> devices;
  for (const at::Tensor& parameter : model.parameters()) {
    const bool is_known =
        std::find(devices.begin(), devices.end(), parameter.device()) != devices.end();
    if (!is_known) devices.push_back(parameter.device());
  }
  return devices;
}

}  // namespace

TrialStep::TrialStep(torch::nn::Module& model, std::function<at::Tensor()> loss)
    : model_(model), loss_(std::move(loss)) {}

Status TrialStep::run() {
  const auto devices = devices_of(model_);
  const ExecutionState state = capture_state(devices);
  const BufferCopies buffers(model_.buffers());
  Status status;
  try {
    const StateScope undone(state);
    const BufferScope put_back(buffers);
    const at::Tensor loss = loss_();
    loss.backward();
  } catch (const std::exception& error) {
    status = internal_error(std::string("trial step: ") + error.what());
  }
  note_gradients();
  return status;
}

void TrialStep::note_gradients() {
  gradients_.clear();
  for (const at::Tensor& parameter : model_.parameters()) {
    gradients_.push_back(fingerprint(parameter.grad()));
    parameter.mutable_grad().reset();
  }
}

std::vector<std::string> TrialStep::parameter_names() const {
  std::vector<std::string> names;
  for (const auto& item : model_.named_parameters()) names.push_back(item.key());
  return names;
}

}  // namespace cox::detail
