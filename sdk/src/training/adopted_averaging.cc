#include "sdk/src/training/adopted_averaging.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>

#include <string_view>
#include <utility>

#include "coxswain/error.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/stream/inner_gradients.h"

namespace cox::detail {

namespace {

// MeanOverRanks is the mean over ranks of gradients that have a history on each rank (backward()
// with create_graph). A later backward pass continues through this rank's own gradient. The average
// of the results over ranks is then the derivative of the mean.
struct MeanOverRanks : torch::autograd::Function<MeanOverRanks> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& own,
                            const at::Tensor& mean) {
    return mean.to(own.scalar_type()).clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], at::Tensor()};
  }
};

// GradientHistories holds gradients with a history, and their parameters.
class GradientHistories {
 public:
  explicit GradientHistories(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& p : parameters) {
      if (p.grad().defined() && p.grad().requires_grad()) kept_.push_back({p, p.grad()});
    }
  }
  // Restores the histories after averaging, which leaves means without a history.
  void give_back() const {
    if (kept_.empty()) return;
    const c10::AutoGradMode with_history(true);
    for (const Kept& it : kept_)
      it.parameter.mutable_grad() = MeanOverRanks::apply(it.own, it.parameter.grad().detach());
  }

 private:
  struct Kept {
    at::Tensor parameter;
    at::Tensor own;
  };
  std::vector<Kept> kept_;
};

// SparseGradients holds the parameters with a sparse gradient. Ranks average dense sums.
class SparseGradients {
 public:
  explicit SparseGradients(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& p : parameters) {
      if (p.grad().defined() && p.grad().is_sparse()) kept_.push_back({p, p.grad().sparse_dim()});
    }
  }
  // Makes the averages sparse. Rows of zeros are left out.
  void give_back() const {
    const at::NoGradGuard no_grad;
    for (const Kept& it : kept_)
      it.parameter.mutable_grad() = it.parameter.grad().to_sparse(it.sparse_dim);
  }

 private:
  struct Kept {
    at::Tensor parameter;
    std::int64_t sparse_dim;
  };
  std::vector<Kept> kept_;
};

}  // namespace

void FirstBatch::read(const OperatorCall& call, const AdoptedModels& models) {
  if (is_inner_gradients(call.handle)) return;
  bool reads_batch = false;
  for_each_tensor_of(call, [&](const at::Tensor& tensor) {
    const bool is_computed = tensor.requires_grad() && !tensor.is_leaf();
    if (models.has_parameter(tensor) || is_computed) return;
    if (tensor.layout() != at::kStrided) return;
    reads_batch = true;
    const at::NoGradGuard no_grad;
    const at::Tensor flat = tensor.detach().contiguous().cpu();
    hash_.add(std::string_view(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()));
  });
  if (reads_batch) ++reads_;
}

void FirstBatch::compare(SessionState& state) {
  if (std::exchange(is_compared_, true)) return;
  const bool is_known = std::exchange(reads_, kReads) > 0;
  const auto named = state.job().world().name_calls("the first step of an adopted model");
  const auto all = gather_values(state.job().data(), hash_.value(),
                                 state.waits().attend("the first step of an adopted model"));
  require(all.status(), Error::Scope::all_ranks);
  const bool are_equal = ranks_that_differ(*all).empty();
  if (!are_equal || !is_known || !state.job().is_root()) return;
  state.job().log().warning(
      "adopted model: expected a different batch on each rank, found the same batch on all ranks "
      "in the first step; give torch's DistributedRandomSampler or DistributedSequentialSampler "
      "the session's "
      "world_size() and rank(), or seed each rank's data by its rank");
}

void LossMean::note_results(std::span<const c10::IValue> results) {
  for (const c10::IValue& value : results) {
    for_each_tensor_in(value, [this](const at::Tensor& tensor) {
      if (tensor.requires_grad() && tensor.numel() == 1)
        scalars_.emplace_back(tensor.getIntrusivePtr());
    });
  }
}

void LossMean::find(const BackwardPass& pass) {
  for (const WeakTensor& each : scalars_) {
    const auto tensor = each.lock();
    if (!tensor || pass.roots.size() != 1) continue;
    loss_ = at::Tensor(tensor);
    if (torch::autograd::impl::gradient_edge(loss_) == pass.roots[0]) return;
  }
  loss_.reset();
  throw Error(failed_precondition(
      "adopt: expected backward() from one loss of one element that this step computed, found "
      "another loss; AdoptOptions::closure_optimizer writes the mean over ranks into the loss"));
}

void LossMean::average(SessionState& state) {
  const WaitingScope waiting(state.recorder());
  const auto named = state.job().world().name_calls("the loss of an adopted model");
  const at::NoGradGuard no_grad;
  const at::Tensor loss = std::exchange(loss_, {}).detach();
  const auto all = gather_values(state.job().data(), loss.item<double>(),
                                 state.waits().attend("the loss of an adopted model"));
  require(all.status(), Error::Scope::all_ranks);
  double sum = 0;
  for (const double each : *all) sum += each;
  loss.fill_(sum / static_cast<double>(all->size()));
}

void ProgramGradients::note(const std::vector<at::Tensor>& parameters) {
  held_.clear();
  for (const at::Tensor& p : parameters) {
    const at::Tensor& gradient = p.grad();
    if (!gradient.defined() || gradient.layout() != at::kStrided) continue;
    const bool is_held = gradient.use_count() > 1 || gradient.storage().use_count() > 1;
    if (is_held) held_.push_back({p, gradient, version_of(gradient)});
  }
}

void ProgramGradients::backward_ended() {
  std::erase_if(held_, [](const Held& it) {
    const bool is_added_to = version_of(it.gradient) != it.version;
    return !it.parameter.grad().is_same(it.gradient) && !is_added_to;
  });
}

void ProgramGradients::give_back() {
  const at::NoGradGuard no_grad;
  for (const Held& it : std::exchange(held_, {})) {
    at::Tensor& average = it.parameter.mutable_grad();
    if (!average.defined() || average.is_same(it.gradient)) continue;
    it.gradient.copy_(average);
    average = it.gradient;
  }
}

AdoptedAveraging::AdoptedAveraging(Session& session, const AdoptOptions& options,
                                   const ReductionMaker& maker)
    : session_(session) {
  if (!options.only_watch) {
    ranks_.emplace(session_);
    ranks_->average_by(maker);
  }
  if (!exchanges()) first_batch_.leave_out();
}

void AdoptedAveraging::add(torch::nn::Module& model, const std::vector<at::Tensor>& parameters,
                           const AdoptOptions& options) {
  if (!ranks_) return;
  ranks_->sync_parameters(parameters);
  ranks_->sync_buffers(model.buffers());
  has_new_models_ = true;
  const bool averages = options.closure_optimizer == ClosureOptimizer::yes && exchanges();
  if (averages && !losses_) losses_.emplace();
}

void AdoptedAveraging::watch_weights(const AdoptedModels& models, BlockWatch& blocks) {
  if (!exchanges() || !std::exchange(has_new_models_, false)) return;
  const char* likely_cause = losses_
                                 ? ""
                                 : ", such as an optimizer that uses each rank's own loss (LBFGS: "
                                   "adopt with closure_optimizer = ClosureOptimizer::yes)";
  weights_.emplace(session_.state().actuators(), models.parameters(),
                   session_.config().reduction.verify_steps, blocks, likely_cause);
}

void AdoptedAveraging::average(StepScope& step, const AdoptedModels& models) {
  if (!exchanges()) return;
  first_batch_.compare(session_.state());
  gradients_.backward_ended();
  for (std::size_t m = 0; m < models.all().size(); ++m) {
    const AdoptedModel& model = models.all()[m];
    if (!model.has_new_gradient()) continue;
    const GradientHistories histories(model.parameters);
    const SparseGradients sparse(model.parameters);
    ranks_->average_unseen(step, model.parameters, m);
    histories.give_back();
    sparse.give_back();
  }
  gradients_.give_back();
  if (losses_) losses_->average(session_.state());
}

AdoptedAveraging::Stop AdoptedAveraging::close(StepScope& step) {
  if (losses_) losses_->end_step();
  if (weights_) (*weights_)->take();
  const bool is_ended_here = !loop_asks_ && !loop_is_kept_;
  return ranks_ && ranks_->close(step).stop && is_ended_here ? Stop::yes : Stop::no;
}

}  // namespace cox::detail
