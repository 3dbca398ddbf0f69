#include "sdk/src/stream/recorded_pass.h"

#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

namespace cox::detail {
namespace {

Status not_repeatable(const std::string& found) {
  return failed_precondition(
      "expected backward() from one scalar that operators of the step made, found " + found);
}

bool is_one(const at::Tensor& gradient) {
  return gradient.defined() && gradient.numel() == 1 && gradient.item<double>() == 1.0;
}

}  // namespace

// Results of factories are made again too: they live as long as the program had them.
RecordedPass::RecordedPass()
    : tape_(Tape::make("trial of the first step", {},
                       {.storages = false, .outside_views = false, .factories = false})) {}

void RecordedPass::begin(const OperatorCall& call) {
  note_ends();
  ends_.push_back(std::exchange(ended_, {}));
  tape_->begin(call);
}

void RecordedPass::note_ends() {
  std::erase_if(alive_, [this](const Alive& it) {
    if (!it.tensor.expired()) return false;
    ended_.push_back(it.result);
    return true;
  });
}

void RecordedPass::end(std::span<const c10::IValue> results) {
  tape_->end(results);
  const auto maker = static_cast<TapeRecords::OperatorIndex>(ends_.size()) - 1;
  for (std::size_t i = 0; i < results.size(); ++i) {
    std::int16_t element = 0;
    const auto note = [&](const at::Tensor& tensor) {
      const RecordedResult result{maker, static_cast<std::int16_t>(i), element++};
      if (!tensor.defined()) return;
      alive_.push_back(
          {result, c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
    };
    if (results[i].isTensor()) note(results[i].toTensor());
    if (!results[i].isTensorList()) continue;
    for (const at::Tensor& each : results[i].toTensorVector()) note(each);
  }
}

// What had ended before it ends before the operator that comes next.
void RecordedPass::failed() noexcept {
  tape_->failed();
  ended_ = std::move(ends_.back());
  ends_.pop_back();
}

Status RecordedPass::close(std::span<const torch::autograd::Edge> roots,
                           std::span<const at::Tensor> gradients) {
  is_open_ = false;
  note_ends();
  ends_.push_back(std::exchange(ended_, {}));
  tape_->close();
  tape_->stop_copying();
  const std::vector<Alive> alive = std::move(alive_);
  if (roots.size() != 1) return not_repeatable(std::to_string(roots.size()) + " of them");
  if (gradients.size() != 1 || !is_one(gradients[0]))
    return not_repeatable("a gradient of its own that begins it");
  for (const Alive& it : alive) {
    const auto impl = it.tensor.lock();
    if (!impl) continue;
    const at::Tensor tensor = at::Tensor(impl);
    if (!tensor.requires_grad() || torch::autograd::impl::gradient_edge(tensor) != roots[0]) {
      continue;
    }
    root_ = it.result;
    return ok_status();
  }
  return not_repeatable("one that was made elsewhere");
}

at::Tensor RecordedPass::run() {
  results_.clear();
  rerun(tape_->records(), ends_, results_);
  const auto at = [](std::int32_t index) { return static_cast<std::size_t>(index); };
  return results_[at(root_.maker)][at(root_.output)][at(root_.element)];
}

}  // namespace cox::detail
