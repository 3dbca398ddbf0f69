#include "sdk/examples/gpt2/reference_ranks.h"

#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "coxswain/reducer.h"

namespace gpt2 {
namespace {

std::vector<at::Tensor> with_spare(std::vector<at::Tensor> parameters) {
  parameters.push_back(torch::ones({7}, parameters.front().device()).set_requires_grad(true));
  return parameters;
}

class SessionTrainer final : public ReferenceTrainer {
 public:
  SessionTrainer(cox::Session& session, const ReferenceTask& task, std::int64_t micro_batch,
                 BlocksOf blocks)
      : session_(session),
        blocks_(blocks),
        task_(task),
        micro_batch_(micro_batch > 0 ? micro_batch : task.inputs.size(0)),
        optimizer_(reference_groups(task.model)) {
    if (blocks_ != BlocksOf::this_model) {
      reducer_.emplace(session_, with_spare(task_.model->parameters()));
      return;
    }
    reducer_.emplace(session_, *task_.model);
    session_.calibrate(*task_.model, [this] { return loss_of(0, rows()); });
  }
  ~SessionTrainer() override {
    if (blocks_ == BlocksOf::this_model) session_.detach(*task_.model);
  }

  StepLoss backward() override {
    for (;;) {
      optimizer_.zero_grad();
      step_.reset();
      step_.emplace(session_.step());
      const double local = run_micro_batches();
      const cox::ReductionOutcome outcome = reducer_->average(*step_);
      if (!outcome.repeat) return {outcome.loss, local};
    }
  }

  void update() override { optimizer_.step(); }

  StepLoss evaluate() override {
    const at::NoGradGuard no_grad;
    step_.reset();
    step_.emplace(session_.step());
    const double loss = loss_of(0, rows()).item<double>();
    reducer_->observe(*step_, loss, static_cast<double>(rows()));
    return {reducer_->average(*step_).loss, loss};
  }

 private:
  double run_micro_batches() {
    double sum = 0;
    for (std::int64_t first = 0; first < rows(); first += micro_batch_) {
      const std::int64_t count = std::min(micro_batch_, rows() - first);
      const bool is_last = first + count == rows();
      const at::Tensor loss = loss_of(first, count);
      reducer_->backward(*step_, loss, static_cast<double>(count),
                         is_last ? cox::MicroBatch::last : cox::MicroBatch::more);
      sum += loss.item<double>() * static_cast<double>(count);
    }
    return sum / static_cast<double>(rows());
  }
  std::int64_t rows() const { return task_.inputs.size(0); }
  at::Tensor loss_of(std::int64_t first, std::int64_t count) {
    return task_.model->loss(task_.inputs.narrow(0, first, count),
                             task_.targets.narrow(0, first, count));
  }

  cox::Session& session_;
  BlocksOf blocks_;
  ReferenceTask task_;
  std::int64_t micro_batch_;
  cox::AdamW optimizer_;
  std::optional<cox::Reducer> reducer_;
  std::optional<cox::StepScope> step_;
};

}  // namespace

std::unique_ptr<ReferenceTrainer> session_trainer(cox::Session& session, const ReferenceTask& task,
                                                  std::int64_t micro_batch, BlocksOf blocks) {
  return std::make_unique<SessionTrainer>(session, task, micro_batch, blocks);
}

}  // namespace gpt2
