#include "sdk/examples/gpt2/reference_ranks.h"

#include <optional>

#include "coxswain/reducer.h"

namespace gpt2 {
namespace {

class SessionTrainer final : public ReferenceTrainer {
 public:
  SessionTrainer(cox::Session& session, const ReferenceTask& task)
      : session_(session),
        task_(task),
        optimizer_(reference_groups(task.model)),
        reducer_(session, task.model->parameters()) {}

  StepLoss backward() override {
    optimizer_.zero_grad();
    step_.reset();
    step_.emplace(session_.step());
    const at::Tensor loss = task_.model->loss(task_.inputs, task_.targets);
    reducer_.backward(*step_, loss, static_cast<double>(task_.inputs.size(0)));
    return {reducer_.average(*step_).loss, loss.item<double>()};
  }

  void update() override { optimizer_.step(); }

  StepLoss evaluate() override {
    const at::NoGradGuard no_grad;
    step_.reset();
    step_.emplace(session_.step());
    const at::Tensor loss = task_.model->loss(task_.inputs, task_.targets);
    reducer_.observe(*step_, loss.item<double>(), static_cast<double>(task_.inputs.size(0)));
    return {reducer_.average(*step_).loss, loss.item<double>()};
  }

 private:
  cox::Session& session_;
  ReferenceTask task_;
  cox::AdamW optimizer_;
  cox::Reducer reducer_;
  std::optional<cox::StepScope> step_;
};

}  // namespace

std::unique_ptr<ReferenceTrainer> session_trainer(cox::Session& session,
                                                  const ReferenceTask& task) {
  return std::make_unique<SessionTrainer>(session, task);
}

}  // namespace gpt2
