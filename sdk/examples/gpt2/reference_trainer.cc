#include "coxswain/error.h"
#include "coxswain/sample_plan.h"
#include "sdk/examples/gpt2/reference.h"

namespace gpt2 {
namespace {

class PlainTrainer final : public ReferenceTrainer {
 public:
  explicit PlainTrainer(const ReferenceTask& task)
      : task_(task), optimizer_(reference_groups(task.model)) {}

  StepLoss backward() override {
    optimizer_.zero_grad();
    const at::Tensor loss = task_.model->loss(task_.inputs, task_.targets);
    loss.backward();
    return both(loss);
  }
  void update() override { optimizer_.step(); }
  StepLoss evaluate() override {
    const at::NoGradGuard no_grad;
    return both(task_.model->loss(task_.inputs, task_.targets));
  }

 private:
  static StepLoss both(const at::Tensor& loss) {
    const double value = loss.item<double>();
    return {.mean = value, .local = value};
  }

  ReferenceTask task_;
  cox::AdamW optimizer_;
};

}  // namespace

at::Tensor RankRows::of(const at::Tensor& batch) const {
  const std::vector<std::uint32_t> even(static_cast<std::size_t>(world), 1);
  const auto counts = cox::SamplePlan::assign(batch.size(0), shares.empty() ? even : shares);
  if (!counts.ok()) throw cox::Error(counts.status());
  const auto mine = cox::SamplePlan::slice(*counts, static_cast<std::size_t>(rank));
  return batch.narrow(0, mine.first, mine.count).contiguous();
}

std::vector<cox::AdamWGroup> reference_groups(const Gpt2& model) {
  const DecayGroups groups = decay_groups(*model);
  cox::AdamWOptions options{
      .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  cox::AdamWOptions plain = options;
  plain.weight_decay = 0;
  return {{.parameters = groups.decayed, .options = options},
          {.parameters = groups.plain, .options = plain}};
}

std::unique_ptr<ReferenceTrainer> plain_trainer(const ReferenceTask& task) {
  return std::make_unique<PlainTrainer>(task);
}

}  // namespace gpt2
