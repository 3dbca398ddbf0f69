#include "sdk/src/training/evaluation.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "coxswain/sample_plan.h"
#include "sdk/src/session/session_state.h"

namespace cox::detail {
namespace {

class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) : model_(model), was_on_(model.is_training()) {
    for (const auto& module : model.modules(/*include_self=*/false)) {
      modes_.push_back({module, module->is_training()});
    }
    model.eval();
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;
  // train() reaches all modules below, which come later in the list.
  ~EvaluationMode() {
    model_.train(was_on_);
    for (const Mode& mode : modes_) mode.module->train(mode.was_on);
  }

 private:
  struct Mode {
    std::shared_ptr<torch::nn::Module> module;
    bool was_on;
  };
  torch::nn::Module& model_;
  const bool was_on_;
  std::vector<Mode> modes_;
};

std::vector<std::int64_t> samples_from(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> samples(static_cast<std::size_t>(count));
  std::iota(samples.begin(), samples.end(), first);
  return samples;
}

// Adds up what ranks have for the batches, in their order.
double sum_over_ranks(SessionState& state, std::vector<double> mine, std::size_t most) {
  transport::Communicator& ranks = state.data();
  mine.resize(most, 0.0);
  std::vector<double> all(most * static_cast<std::size_t>(ranks.size()));
  const Status gathered =
      transport::finish(ranks,
                        ranks.start_all_gather(std::as_bytes(std::span<const double>(mine)),
                                               std::as_writable_bytes(std::span<double>(all))),
                        state.wait_policy());
  if (!gathered.ok()) throw Error(gathered.with_context("evaluation"));
  return std::accumulate(all.begin(), all.end(), 0.0);
}

}  // namespace

double evaluate(Session& session, torch::nn::Module& model, const Dataset& dataset,
                std::int64_t batch, const std::function<at::Tensor(const Batch&)>& loss) {
  SessionState& state = session.state();
  const Clock::time_point began = Clock::now();
  const std::int64_t batches = (dataset.size() + batch - 1) / batch;
  const std::vector<std::uint32_t> even(static_cast<std::size_t>(session.world_size()), 1);
  const auto counts = SamplePlan::assign(batches, even);
  if (!counts.ok()) throw Error(counts.status());
  const auto mine = SamplePlan::slice(*counts, static_cast<std::size_t>(session.rank()));
  std::vector<double> sums;
  session.together([&] {
    const torch::NoGradGuard no_grad;
    const EvaluationMode mode(model);
    for (std::int64_t i = mine.first; i < mine.first + mine.count; ++i) {
      const std::int64_t size = std::min(batch, dataset.size() - i * batch);
      const Batch samples = dataset.get(samples_from(i * batch, size));
      sums.push_back(loss(samples).item<double>() * static_cast<double>(size));
    }
  });
  const auto most = static_cast<std::size_t>(*std::max_element(counts->begin(), counts->end()));
  const double sum = sum_over_ranks(state, std::move(sums), most);
  if (state.recorder().is_open()) state.recorder().leave_out(began, Clock::now());
  return sum / static_cast<double>(dataset.size());
}

}  // namespace cox::detail
