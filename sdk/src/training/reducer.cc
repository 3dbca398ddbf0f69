#include "coxswain/reducer.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "coordinator/io/save_folder.h"
#include "coxswain/error.h"
#include "sdk/src/blocks/block_watch.h"
#include "sdk/src/device/tensor_scan.h"
#include "sdk/src/memory/heap.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/parallel/gradient_holders.h"
#include "sdk/src/parallel/ready_hooks.h"
#include "sdk/src/parallel/tuned_reduction.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/session/step_engine.h"
#include "sdk/src/shard/sharding.h"
#include "sdk/src/training/capabilities.h"
#include "sdk/src/training/equal_ranks.h"
#include "sdk/src/training/reduction_setup.h"
#include "sdk/src/training/reduction_times.h"
#include "sdk/src/training/training_state.h"

namespace cox {

using detail::MicroBatchFacts;
using detail::SessionState;

namespace {

Session& following(Session& session, torch::nn::Module& model) {
  session.state().attach(model);
  return session;
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const NamedTensor& each : named) tensors.push_back(each.tensor);
  return tensors;
}

// Divides the model if the settings ask for it; otherwise returns null and lets the heap keep what
// a step frees. REQUIRES: parameters are
// equal on all ranks. Collective.
std::unique_ptr<detail::Sharding> divided(SessionState& state,
                                          const std::vector<NamedTensor>& parameters) {
  if (!detail::Sharding::is_wanted(state)) {
    detail::configure_heap(detail::FreedBlocks::kept);
    return nullptr;
  }
  if (state.job().config().reduction.reproducible)
    throw Error(failed_precondition("shard.mode=state: expected reduction.reproducible=off, found "
                                    "it on; set shard.mode=off"),
                Error::Scope::all_ranks);
  auto sharding = std::make_unique<detail::Sharding>(state);
  sharding->add(parameters);
  return sharding;
}

}  // namespace

namespace detail {

// NonfiniteStreak counts consecutive steps whose update was skipped because a loss or gradient was
// not finite, and ends the job at guard.nonfinite_limit. The count is equal on all ranks, so all
// end together.
class NonfiniteStreak {
 public:
  explicit NonfiniteStreak(const Membership& job) : job_(job) {}

  void count_finite() { steps_ = 0; }
  // `look` describes this rank's first trouble; called at the start of a streak, may return an
  // empty text. `blamed` names the last block at fault; may be empty. Throws cox::Error on all
  // ranks, collectively, when the streak reaches the limit.
  void count_nonfinite(StepId step, const std::function<std::string()>& look,
                       const std::string& blamed) {
    if (++steps_ == 1) first_trouble_ = look();
    const std::uint32_t limit = job_.config().guard.nonfinite_limit;
    if (limit == 0 || steps_ < limit) return;
    const bool has_save = !io::saves_in(job_.config().checkpoint.directory).empty();
    const std::string block = blamed.empty() ? "" : ", lately in block " + blamed;
    throw Error(failed_precondition(concat(
                    "guard.nonfinite_limit: expected a finite step at least every ", limit,
                    " steps, found none since step ", step.value() + 1 - steps_, "; ",
                    first_text(job_.all(), first_trouble_ + block),
                    has_save ? "; resume from the newest save" : "; start from the beginning",
                    " with a lower learning rate or in fp32")),
                Error::Scope::all_ranks, ExitCode::hopeless);
  }

 private:
  const Membership& job_;
  std::uint32_t steps_ = 0;
  std::string first_trouble_;  // this rank's finding at the start
};

// OwnPart is this rank's part of the open step. Gradients are kept in units of the first
// micro-batch's weight, so a single micro-batch needs no scaling.
struct OwnPart {
  struct Loss {
    at::Tensor value;
    double weight;
  };
  std::vector<Loss> unread;  // on a device
  double unit = 0;
  double loss_sum = 0;
  double weight = 0;
  float largest_fp16 = 0;
  bool is_last_given = false;
  bool is_abandoned = false;
};

}  // namespace detail

struct Reducer::Impl {
  Impl(Session session, std::vector<at::Tensor> parameters, std::vector<at::Tensor> buffers,
       std::unique_ptr<detail::Sharding> sharding)
      : session_(std::move(session)),
        state_(session_.state()),
        loss_scale_(session_.capabilities().loss_scale),
        numerics_(session_.capabilities().numerics),
        parameters_(std::move(parameters)),
        buffers_(std::move(buffers)),
        sharding_(std::move(sharding)),
        reduction_(detail::reduction_setup(state_), parameters_, maker()),
        weights_(state_.actuators(), parameters_,
                 state_.job().world_size() == 1 ? 0 : state_.job().config().reduction.verify_steps,
                 session_.capabilities().blocks),
        times_(state_.actuators(), state_.recorder(),
               state_.job().place().device.is_cpu() ? detail::ReductionTimes::Rows::with
                                                    : detail::ReductionTimes::Rows::without),
        streak_(state_.job()),
        holder_(std::make_shared<const detail::GradientHolders::Holder>(
            [this](detail::MicroBatches micro_batches) { return held_gradients(micro_batches); })) {
    show_held();
    if (sharding_) sharding_->rewrite();
    const Status link = state_.job().world().devices().news();
    if (!link.ok() && state_.job().is_root()) state_.job().log().warning(link.message());
    session_.capabilities().gradients.add(holder_);
    const detail::StepExchange* exchange = reduction_.exchange();
    if (exchange == nullptr) return;  // no early sends, and a hook costs a microsecond
    hooks_.emplace(parameters_, [this](std::size_t parameter) { reduction_->ready(parameter); });
    if (state_.job().is_root() && !exchange->host().note().empty())
      state_.job().log().warning(exchange->host().note());
  }

  // Tells the other ranks not to wait for a rank that is leaving.
  ~Impl() {
    if (std::uncaught_exceptions() == 0) {
      give_back();
    } else {
      reduction_->leave("its training loop ended with an exception");
    }
  }

  // Returns the whole model to the program.
  void give_back() noexcept try {
    if (sharding_) sharding_->give_back();
  } catch (const std::exception& error) {
    state_.job().log().warning(std::string("Reducer: the model stays divided: ") + error.what());
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void backward(StepScope& step, const at::Tensor& loss, double weight_of_loss, MicroBatch which) {
    if (is_reproducible()) weight_of_loss = std::nearbyint(weight_of_loss * 0x1p20) * 0x1p-20;
    if (part_.is_last_given) {
      throw Error(failed_precondition(
          "Reducer::backward: expected average() after the last micro-batch of a step, found "
          "another micro-batch; pass cox::MicroBatch::more to backward() of all micro-batches but "
          "the last"));
    }
    const bool has_work = weight_of_loss != 0 && loss.defined();
    part_.is_last_given = which == MicroBatch::last;
    if (!has_work && !part_.is_last_given) return;
    const PhaseScope phase = step.phase(Phase::backward);
    if (part_.unit == 0) reduction_.follow_forms();
    if (!has_work) {
      if (part_.unit == 0) times_->no_backward();
      if (!wants_own_gradients()) reduction_->flush();
      return;
    }
    if (part_.unit == 0) part_.unit = weight_of_loss;
    run_backward(loss, {weight_of_loss, part_.unit, loss_scale_.factor(), which});
    if (loss.is_cpu()) return observe(step, loss.item<double>(), weight_of_loss);
    part_.unread.push_back({loss.detach(), weight_of_loss});
    part_.weight += weight_of_loss;
  }

  void observe(StepScope& step, double loss, double weight_of_loss) {
    step.loss(loss, weight_of_loss);
    if (weight_of_loss == 0) return;  // the mean of no samples is undefined
    add_loss(loss, weight_of_loss);
    part_.weight += weight_of_loss;
  }

  ReductionOutcome average(StepScope& step) {
    const PhaseScope phase = step.phase(Phase::communication);
    const at::Tensor figures = figures_on_device();
    check_parameters();
    check_backward();
    if (part_.unit == 0) reduction_.follow_forms();
    if (part_.unit == 0 && !part_.is_last_given) times_->no_backward();
    sample_gradients();
    if (sharding_) sharding_->before_reading();
    weights_->take();
    reduction_->flush();
    read(figures, step);
    const StepBallot merged =
        state_.step().meet(ballot(), "Reducer::average",
                           [this](const StepBallot& mine, const detail::BetweenPolls& pump) {
                             return reduction_->merge(mine, pump);
                           });
    ReductionOutcome outcome = detail::outcome_of(merged);
    const bool has_average = merged.weight > 0 && !outcome.repeat;
    if (has_average) {
      hand_back(merged, outcome);
      step.gradient_norm(outcome.gradient_norm);
    }
    settle(merged, outcome);
    outcome.finite = outcome.finite && has_average;
    return outcome;
  }

  void join(const std::function<void(StepScope&, const ReductionOutcome&)>& update) {
    joining_.is_on = true;
    do {
      StepScope step = session_.step();
      for (const at::Tensor& p : parameters_) p.mutable_grad().reset();  // drops an earlier average
      const ReductionOutcome outcome = average(step);
      if (joining_.others > 0) update(step, outcome);
    } while (joining_.others > 0);
    joining_.is_on = false;
  }

  void show_held() {
    if (sharding_) return sharding_->show_held();
    metrics::HeldBytes held;
    for (const at::Tensor& parameter : parameters_) {
      held.parameters += static_cast<std::int64_t>(parameter.nbytes());
      if (parameter.requires_grad())
        held.gradients += static_cast<std::int64_t>(parameter.nbytes());
    }
    for (const auto& bucket : reduction_->sent()) held.buckets += bucket.bytes;
    state_.control().telemetry().show_held(held);
  }

  Session session_;  // keeps the state alive
  SessionState& state_;
  detail::LossScale& loss_scale_;
  detail::NumericsWatch& numerics_;
  const std::vector<at::Tensor> parameters_;
  detail::BufferSync buffers_;
  const std::unique_ptr<detail::Sharding> sharding_;  // if ranks divide state
  detail::TunedReduction reduction_;
  detail::Added<detail::WeightCheck> weights_;
  detail::Added<detail::ReductionTimes> times_;
  detail::NonfiniteStreak streak_;
  std::optional<detail::ReadyHooks> hooks_;
  std::shared_ptr<const detail::GradientHolders::Holder> holder_;  // speaks for this reducer
  struct {
    bool is_on = false;
    std::uint64_t others = 0;  // ranks with steps left, in the last merged ballot
  } joining_;
  detail::OwnPart part_;  // for the open step

 private:
  detail::ReductionMaker maker() {
    using Passes = detail::Sharding::Passes;
    return sharding_ ? sharding_->maker(detail::reduction_setup(state_), Passes::told_by_reduction)
                     : detail::ReductionMaker();
  }

  // Returns whether this rank's own gradients must be read before they are added to others'. The
  // noise of gradients and the largest fp16 gradient are read from .grad, which holds only this
  // rank's gradients until the first send. So such a step sends after its backward pass.
  bool wants_own_gradients() const { return numerics_.noise().is_due() || loss_scale_.is_active(); }
  bool is_reproducible() const { return state_.job().config().reduction.reproducible; }

  void run_backward(const at::Tensor& loss, const MicroBatchFacts& facts) {
    MicroBatchFacts told = facts;
    if (wants_own_gradients()) told.which = MicroBatch::more;
    times_->backward_begins();
    const double factor = reduction_->factor(told);
    reduction_->begin(told);
    loss.backward(factor == 1 ? at::Tensor() : at::full_like(loss, factor));
    reduction_->end();
    times_->backward_ended();
  }

  // The caller counts the weight.
  void add_loss(double loss, double weight_of_loss) {
    numerics_.health().loss(loss);
    part_.loss_sum += weight_of_loss * loss;
  }

  // Collects the values that are read from a device in one transfer, when the step is averaged. The
  // values are the losses of all micro-batches and, while blocks run in fp16, the largest of this
  // rank's own gradients.
  at::Tensor figures_on_device() {
    const detail::Largest amax =
        loss_scale_.is_active() ? numerics_.health().amax_scaled_fp16() : detail::Largest();
    part_.largest_fp16 = amax.here;
    std::vector<at::Tensor> values;
    for (const detail::OwnPart::Loss& each : part_.unread)
      values.push_back(each.value.to(at::kDouble).reshape({}));
    if (amax.on_device.defined()) values.push_back(amax.on_device);
    return values.empty() ? at::Tensor() : at::stack(values);
  }

  // Waits for the device, and therefore for its backward pass. Call read() after the gradients are
  // sent.
  void read(const at::Tensor& figures, StepScope& step) {
    if (!figures.defined()) return;
    reduction_->send_off();
    const at::Tensor here = figures.to(at::kCPU);
    const double* value = here.const_data_ptr<double>();
    for (const detail::OwnPart::Loss& each : std::exchange(part_.unread, {})) {
      add_loss(*value, each.weight);
      step.loss(*value++, each.weight);
    }
    if (value < here.const_data_ptr<double>() + here.numel())
      part_.largest_fp16 = std::max(part_.largest_fp16, static_cast<float>(*value));
  }

  // A parameter that no rank expects has no place in a bucket: ranks would diverge.
  void check_parameters() const {
    const auto unexpected = reduction_.unexpected();
    if (!unexpected) return;
    throw Error(
        failed_precondition("Reducer: expected the same parameters to require gradients as at its "
                            "start, found that parameter number " +
                            std::to_string(*unexpected) +
                            " now requires gradients too; set requires_grad before the Reducer is "
                            "made and freeze the parameter afterwards, or use ManualParallel"));
  }

  // Gradients without a weight would be added unweighted. Zeros, which an optimizer may leave
  // behind, are harmless.
  void check_backward() const {
    const bool is_told =
        part_.unit > 0 || part_.weight > 0 || part_.is_last_given || joining_.is_on;
    if (is_told || detail::l2_norm(detail::gradients_of(parameters_)) == 0) return;
    throw Error(
        failed_precondition("Reducer::average: expected gradients of Reducer::backward() in this "
                            "step, found gradients of another backward(); call "
                            "reducer.backward(step, loss, weight) instead of loss.backward(), and "
                            "zero_grad() at the end of every step, also of one that is skipped"));
  }

  void sample_gradients() {
    if (part_.unit == 0 || part_.is_abandoned) return;
    numerics_.noise().sample(loss_scale_.factor() * part_.weight / part_.unit);
  }

  StepBallot ballot() const {
    StepBallot mine;
    if (std::isfinite(part_.loss_sum)) {
      mine.loss_sum = part_.loss_sum;
    } else {
      mine.nonfinite_ranks = 1;
    }
    mine.amax_max = part_.largest_fp16;
    mine.weight = part_.weight;
    mine.repeat_max = part_.is_abandoned ? 1 : 0;
    mine.samples = state_.recorder().report().samples;
    mine.active_ranks = joining_.is_on ? 0 : 1;
    if (part_.weight > 0) mine.buffers_from_min = buffers_.vote(state_.job().rank());
    return mine;
  }

  // Watches a wait after the step's reduction; `wait` is created only if there is one.
  detail::BetweenPolls watched(std::optional<detail::SlowWait>& wait) {
    return [this, &wait] {
      if (!wait) wait.emplace(state_.waits().watch("Reducer::average"));
      state_.waits().pump(*wait);
    };
  }

  void hand_back(const StepBallot& merged, ReductionOutcome& outcome) {
    outcome.gradient_norm = reduction_->hand_back(merged.weight, loss_scale_.factor());
    outcome.finite = std::isfinite(outcome.gradient_norm) && merged.nonfinite_ranks == 0 &&
                     merged.overflow_ranks == 0;
    if (!outcome.finite) blame_nonfinite();
    loss_scale_.advance({.overflow = !outcome.finite, .amax = static_cast<float>(merged.amax_max)});
  }

  void settle(const StepBallot& merged, ReductionOutcome& outcome) {
    std::optional<detail::SlowWait> wait;
    detail::require(buffers_.follow(merged.buffers_from_min, state_.job().data(), watched(wait)));
    times_->take(reduction_);
    state_.step().conclude(merged, outcome);
    joining_.others = merged.active_ranks;
    count_nonfinite(merged, outcome);
    if (merged.weight > 0) tune();
    part_ = {};
  }

  // A step without samples on all ranks does not count.
  void count_nonfinite(const StepBallot& merged, const ReductionOutcome& outcome) {
    if (merged.weight <= 0 || outcome.repeat) return;
    if (outcome.finite) return streak_.count_finite();
    streak_.count_nonfinite(
        state_.step().number(), [&] { return trouble_here(merged); }, numerics_.blamed());
  }

  // Describes this rank's first finding in a streak of steps that are not finite; empty if there is
  // none.
  std::string trouble_here(const StepBallot& merged) const {
    const std::string rank = concat(" of rank ", state_.job().rank());
    detail::FiniteLook look(parameters_);
    look.wait();
    const auto bad = std::ranges::find_if(look.nonfinite(), [](auto count) { return count > 0; });
    if (bad != look.nonfinite().end()) {
      const auto p = static_cast<std::size_t>(bad - look.nonfinite().begin());
      return weights_->text_of(p) + rank + " itself holds NaN or infinity";
    }
    if (!std::isfinite(part_.loss_sum)) return "the loss" + rank + " was the first";
    if (state_.recorder().report().nonfinite_values > 0)
      return "gradients" + rank + " were the first";
    const bool is_sum = merged.overflow_ranks == 0 && merged.nonfinite_ranks == 0;
    return is_sum ? "the sum of the ranks' gradients was the first" : std::string();
  }

  // Finds this rank's own gradients that are at fault. Called only in a step that goes wrong.
  void blame_nonfinite() {
    const std::vector<std::int64_t>& nonfinite = reduction_->nonfinite();
    numerics_.health().parameter_gradients(nonfinite, state_.step().number());
    const auto count = std::accumulate(nonfinite.begin(), nonfinite.end(), std::int64_t{0});
    const std::uint32_t told = detail::saturated(static_cast<std::uint64_t>(count));
    state_.recorder().notes().nonfinite_values += told;
    if (count > 0) state_.recorder().notes().set(SignalFlag::nonfinite_gradient);
  }

  // The calls have a name of their own, because the next round has begun, but not on ranks that
  // take another path.
  void tune() {
    const auto named = state_.job().world().name_calls("the tuning of a Reducer");
    const detail::StepExchange* former = reduction_.exchange();
    detail::BetweenPolls look;
    reduction_.tune(times_->cost_seconds(), [&] {
      if (!look) look = state_.waits().attend("Reducer::average");
      look();
    });
    if (reduction_.exchange() != former) show_held();
  }

  // A prediction must hold in every step. So the prediction includes steps that keep gradients
  // longer than others, and formats that may follow the present ones.
  detail::GradientHolding held_gradients(detail::MicroBatches micro_batches) const {
    // Reproducible mode adds every micro-batch in its buckets, but keeps the averages.
    const bool keeps_sums = micro_batches == detail::MicroBatches::several || is_reproducible();
    const bool sends_late = numerics_.noise().samples() || loss_scale_.may_be_active();
    detail::GradientHolding holding;
    for (std::size_t p = 0; p < parameters_.size(); ++p) {
      if (!parameters_[p].requires_grad()) continue;
      if (keeps_sums) holding.resident_bytes += static_cast<std::int64_t>(parameters_[p].nbytes());
      const bool moves = !sends_late && reduction_->moves_when_ready(p);
      if (keeps_sums || moves) holding.released.push_back(parameters_[p]);
    }
    return holding;
  }
};

Reducer::Reducer(Session& session, torch::nn::Module& model)
    : Reducer(following(session, model), detail::named_parameters(model), model.buffers()) {}

Reducer::Reducer(Session& session, std::vector<at::Tensor> parameters,
                 std::vector<at::Tensor> buffers)
    : Reducer(session, detail::without_names(parameters), std::move(buffers)) {}

Reducer::Reducer(Session& session, std::vector<NamedTensor> named,
                 std::vector<at::Tensor> buffers) {
  SessionState& state = session.state();
  if (named.empty()) throw Error(invalid_argument("Reducer: expected parameters, found none"));
  const std::vector<at::Tensor> parameters = detail::each_once(tensors_of(named));
  if (std::ranges::any_of(parameters, [](auto& p) { return p.is_complex(); })) {
    throw Error(invalid_argument("Reducer: expected real parameters, found complex ones; use "
                                 "at::view_as_real of the parameters"),
                Error::Scope::all_ranks);
  }
  const auto call = state.job().world().name_calls("the start of a Reducer");
  state.loop().declare_reducing();
  transport::Communicator& ranks = state.job().data();
  detail::require(detail::check_equal_layout(ranks, parameters, buffers), Error::Scope::all_ranks);
  detail::require(detail::broadcast_from_root(ranks, parameters), "Reducer: parameters");
  detail::require(detail::broadcast_from_root(ranks, buffers), "Reducer: buffers");
  session.capabilities().numerics.watch(parameters);
  auto sharding = divided(state, named);
  state.ensure_started();
  impl_ = std::make_unique<Impl>(session, parameters, std::move(buffers), std::move(sharding));
}

detail::Sharding* Reducer::sharding() const {
  return impl_->sharding_.get();
}

Reducer::Reducer(Reducer&&) noexcept = default;
Reducer::~Reducer() = default;

void Reducer::backward(StepScope& step, const at::Tensor& loss, double weight, MicroBatch which) {
  detail::require(detail::check_weight(weight), "Reducer");
  impl_->backward(step, loss, weight, which);
}

void Reducer::observe(StepScope& step, double loss, double weight) {
  detail::require(detail::check_weight(weight), "Reducer");
  impl_->observe(step, loss, weight);
}

void Reducer::abandon() {
  detail::OwnPart& part = impl_->part_;
  part.is_abandoned = part.is_last_given = true;
  if (part.unit == 0) return impl_->times_->no_backward();
  impl_->times_->backward_ended();
}

ReductionOutcome Reducer::average(StepScope& step) {
  return impl_->average(step);
}

void Reducer::join(const std::function<void(StepScope&, const ReductionOutcome&)>& update) {
  impl_->join(update);
}

std::vector<NamedTensor> Reducer::state() const {
  return impl_->reduction_.saved();
}

Status Reducer::load_state(std::span<const NamedTensor> state) {
  const Status restored = impl_->reduction_.restore(state);
  impl_->show_held();
  return restored;
}

ReductionReport Reducer::last_reduction() const {
  return impl_->times_->last();
}

const char* Reducer::path() const {
  const detail::TunedReduction& reduction = impl_->reduction_;
  return reduction.exchange() == nullptr ? "none" : reduction->path();
}

}  // namespace cox
