#include "coxswain/manual.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <list>
#include <optional>
#include <utility>

#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "sdk/src/memory/heap.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/precision/loss_scale.h"
#include "sdk/src/precision/numerics_watch.h"
#include "sdk/src/session/session_state.h"
#include "sdk/src/session/step_engine.h"
#include "sdk/src/shard/sharding.h"
#include "sdk/src/training/capabilities.h"
#include "sdk/src/training/reduction_setup.h"

namespace cox {

using detail::CallKind;

namespace {

constexpr std::size_t kMostSets = 16;

}  // namespace

namespace {

// Messages name the program's own call: an adopted loop has no ManualParallel.
const char* named_as(const char* own, const char* adopted, detail::SessionState& state) {
  return state.loop().is_adopted() ? adopted : own;
}
const char* name_in(detail::SessionState& state) {
  return named_as("ManualParallel", "adopted model", state);
}

}  // namespace

struct ManualParallel::Impl {
  // GradientSet is a set of parameters that are averaged together, with their reduction.
  struct GradientSet {
    std::vector<at::Tensor> parameters;
    std::vector<bool> needed;                  // frozen parameters have no place in a bucket
    std::vector<detail::ParameterForm> forms;  // forms for which the buckets were made
    detail::GradientHabits habits;
    std::unique_ptr<detail::GradientReduction> reduction;

    bool is_of(const std::vector<at::Tensor>& others) const {
      return needed == detail::required_of(others) && has_same(others) &&
             detail::have_forms(others, forms);
    }
    bool has_same(const std::vector<at::Tensor>& others) const {
      return std::equal(parameters.begin(), parameters.end(), others.begin(), others.end(),
                        [](const at::Tensor& a, const at::Tensor& b) { return a.is_same(b); });
    }
    // Returns whether the program has changed a parameter since, so that the buckets no longer fit.
    bool is_outdated() const { return !detail::have_forms(parameters, forms); }
  };

  explicit Impl(Session session_in)
      : session(std::move(session_in)),
        state(session.state()),
        loss_scale(session.capabilities().loss_scale),
        numerics(session.capabilities().numerics) {}

  // Tells the other ranks not to wait for a rank that is leaving.
  ~Impl() {
    if (std::uncaught_exceptions() == 0) return;
    for (const GradientSet& set : sets) {
      set.reduction->leave("its training loop ended with an exception");
    }
  }

  Status compare(const detail::CallMark& mark) {
    const detail::WaitingScope waiting(state.recorder());
    // Before the first step the control plane is not started, and no rank has left. A round may
    // have several calls, so each call is named. The name does not cover messages of the control
    // plane itself.
    std::optional<detail::SlowWait> wait;
    if (state.control().is_started()) wait.emplace(state.waits().watch(name_in(state)));
    std::optional<transport::CallBook::Name> named(
        std::in_place, state.job().world().calls(),
        named_as("a call of ManualParallel", "the averaging of an adopted loop", state));
    const ArrivalStamp mine = state.waits().arrive();
    const auto latest = detail::match_calls(state.job().data(), mark, mine, [&] {
      named.reset();
      if (wait) state.waits().pump(*wait);
    });
    if (latest.ok()) state.waits().all_arrived(mine, *latest);
    return latest.status();
  }

  void match(CallKind kind, const std::vector<at::Tensor>& tensors, std::uint64_t place = 0) {
    detail::CallMark mark = detail::mark_of(kind, tensors);
    mark.place = place;
    const Status matched = compare(mark);
    detail::require(matched.with_context(name_in(state)), Error::Scope::all_ranks);
  }

  void sync(CallKind kind, const std::vector<at::Tensor>& tensors) {
    const detail::WaitingScope waiting(state.recorder());
    match(kind, tensors);
    detail::require(detail::broadcast_from_root(state.job().data(), tensors), name_in(state));
  }

  std::list<GradientSet>::iterator find(const std::vector<at::Tensor>& parameters) {
    return std::ranges::find_if(sets, [&](const auto& set) { return set.is_of(parameters); });
  }

  GradientSet& set_of(std::vector<at::Tensor> parameters) {
    const auto found = find(parameters);
    if (found != sets.end()) return *found;
    std::erase_if(sets, [](const GradientSet& set) { return set.is_outdated(); });
    if (sets.size() == kMostSets) sets.pop_front();
    GradientSet& made = sets.emplace_back();
    made.parameters = std::move(parameters);
    made.needed = detail::required_of(made.parameters);
    made.forms = detail::forms_of(made.parameters);
    try {
      made.reduction = maker.make
                           ? maker.make(made.parameters, made.needed, made.habits)
                           : detail::make_reduction(
                                 detail::reduction_setup(state), made.parameters, made.needed,
                                 {detail::reverse_order(made.parameters.size()), {}}, made.habits);
    } catch (...) {
      sets.pop_back();
      throw;
    }
    return made;
  }

  Status check(double weight) const {
    if (Status wrong = detail::check_weight(weight); !wrong.ok()) return wrong;
    if (loss_scale.is_active() && !is_scaled && weight > 0) {
      return failed_precondition(
          "expected gradients of ManualParallel::backward() while blocks run in fp16, found none; "
          "a plain loss.backward() has no loss scale");
    }
    return ok_status();
  }

  GradientAverage average(StepScope& step, const std::vector<at::Tensor>& given, double weight) {
    const PhaseScope phase = step.phase(Phase::communication);
    const Sums sums = sum(given, weight);
    if (sums.reduction == nullptr) return {};
    const double norm = sums.reduction->hand_back(sums.divisor(), loss_scale.factor());
    return {sums.weight, norm, note(norm, sums.are_finite)};
  }

  void average_unseen(StepScope& step, const std::vector<at::Tensor>& given, std::uint64_t place) {
    const PhaseScope phase = step.phase(Phase::communication);
    const Sums sums = sum(given, 1, place);
    if (sums.reduction == nullptr) return;
    unseen.push_back(
        {sums.reduction->hand_back_unseen(sums.divisor(), loss_scale.factor()), sums.are_finite});
  }

  // Sums are gradients that were summed over ranks and not written back yet.
  struct Sums {
    detail::GradientReduction* reduction = nullptr;  // null where there are no parameters
    double weight = 0;
    bool are_finite = true;  // for this rank's own gradients

    // Without any weight no rank has gradients, and none are written back.
    double divisor() const { return weight > 0 ? weight : 1; }
  };

  // Ranks compare `place`, or else the parameters' place among earlier calls.
  Sums sum(const std::vector<at::Tensor>& given, double weight,
           std::optional<std::uint64_t> place = {}) {
    if (const Status wrong = check(weight); !wrong.ok()) {
      (void)compare({CallKind::refused, 0, 0});
      throw Error(wrong.with_context("ManualParallel"));
    }
    std::vector<at::Tensor> parameters = detail::each_once(given);
    const auto among_sets = [&] { return std::distance(sets.begin(), find(parameters)); };
    match(CallKind::all_reduce_gradients, parameters,
          1 + (place ? *place : static_cast<std::uint64_t>(among_sets())));
    if (parameters.empty()) return {};
    GradientSet& set = set_of(std::move(parameters));
    if (weight == 0) {
      for (const at::Tensor& p : set.parameters) p.mutable_grad().reset();
    }
    return merge(*set.reduction, weight);
  }

  Sums merge(detail::GradientReduction& reduction, double weight) {
    reduction.begin({weight, weight, loss_scale.factor(), MicroBatch::more});
    reduction.flush();
    StepBallot mine;
    mine.weight = weight;
    const StepBallot merged = state.step().gather(
        mine,
        named_as("ManualParallel::all_reduce_gradients", "the averaging of an adopted loop", state),
        [&](const StepBallot& ballot, const detail::BetweenPolls& pump) {
          return reduction.merge(ballot, pump);
        });
    return {&reduction, merged.weight, merged.overflow_ranks == 0};
  }

  // Records an average for the step. Returns whether the average is finite.
  bool note(double norm, bool are_parts_finite) {
    const bool is_finite = are_parts_finite && std::isfinite(norm);
    squares += norm * norm;
    finite = finite && is_finite;
    has_average = true;
    return is_finite;
  }

  // Records averages whose outcome the loop ignored, all averages of a step together. Uses the open
  // step's averages if their norms have arrived, else those of the step before.
  void note_unseen() {
    for (std::vector<Unseen>* averages : {&unseen, &earlier}) {
      const auto has_come = [](const Unseen& each) { return each.norm.has_come(); };
      if (averages->empty() || !std::ranges::all_of(*averages, has_come)) continue;
      for (const Unseen& each : *averages) note(each.norm.value(), each.are_parts_finite);
      averages->clear();
      break;
    }
    earlier = std::exchange(unseen, {});
  }

  // Returns this rank's part of the step's ballot, from the loop's reports on the step.
  StepBallot ballot() const {
    const detail::StepReport& report = state.recorder().report();
    StepBallot mine;
    mine.weight = report.weight;
    mine.samples = report.samples;
    mine.active_ranks = 1;
    if (report.weight > 0 && std::isfinite(report.loss))
      mine.loss_sum = report.loss * report.weight;
    mine.nonfinite_ranks = report.weight > 0 && !std::isfinite(report.loss) ? 1 : 0;
    return mine;
  }

  StepBallot merge_ballots(StepBallot ballot, const detail::BetweenPolls& pump) {
    transport::Communicator& ranks = state.job().data();
    if (ranks.size() == 1) return ballot;
    detail::require(
        detail::reduce_values(ranks, std::span(&ballot, 1), transport::merging<StepBallot>(), pump),
        "step reduction");
    return ballot;
  }

  ReductionOutcome close() {
    match(CallKind::close, {});
    note_unseen();
    const StepBallot merged = state.step().meet(
        ballot(), named_as("ManualParallel::close", "the step of an adopted loop", state),
        [this](const StepBallot& mine, const detail::BetweenPolls& pump) {
          return merge_ballots(mine, pump);
        });
    ReductionOutcome outcome = detail::outcome_of(merged);
    outcome.gradient_norm = std::sqrt(squares);
    outcome.finite = finite && merged.nonfinite_ranks == 0;
    if (has_average) {
      state.recorder().notes().set_gradient_norm(outcome.gradient_norm);
      loss_scale.advance({.overflow = !finite});
    }
    if (!outcome.finite) numerics.health().note_wrong(state.step().number());
    state.step().conclude(merged, outcome);
    squares = 0;
    finite = true;
    has_average = is_scaled = false;
    return outcome;
  }

  Session session;  // keeps the state alive
  detail::SessionState& state;
  detail::LossScale& loss_scale;
  detail::NumericsWatch& numerics;
  std::list<GradientSet> sets;  // newest last; addresses stay
  detail::ReductionMaker maker;

  // The open step.
  double squares = 0;  // sum over the norms of its averages
  bool finite = true;
  bool has_average = false;
  bool is_scaled = false;  // backward() ran in this step

  struct Unseen {
    detail::LateNorm norm;
    bool are_parts_finite;
  };
  std::vector<Unseen> unseen;   // averages of the open step
  std::vector<Unseen> earlier;  // averages of the step before, whose norms arrived late
};

ManualParallel::ManualParallel(Session& session) : impl_(std::make_unique<Impl>(session)) {
  detail::SessionState& state = impl_->state;
  state.loop().declare_reducing("the start of a ManualParallel");
  if (!detail::Sharding::is_wanted(state)) detail::configure_heap(detail::FreedBlocks::kept);
  if (state.job().config().reduction.reproducible) {
    throw Error(invalid_argument(
                    "reduction.reproducible: expected a Reducer or Trainer, found ManualParallel, "
                    "whose sums depend on the number of ranks; switch the setting off"),
                Error::Scope::all_ranks);
  }
}

ManualParallel::ManualParallel(Session& session, torch::nn::Module& followed)
    : ManualParallel(session) {
  impl_->state.attach(followed);
}

ManualParallel::~ManualParallel() = default;

void ManualParallel::sync_parameters(const std::vector<at::Tensor>& parameters) {
  impl_->sync(CallKind::sync_parameters, parameters);
}

void ManualParallel::sync_buffers(const std::vector<at::Tensor>& buffers) {
  impl_->sync(CallKind::sync_buffers, buffers);
}

void ManualParallel::backward(StepScope& step, const at::Tensor& loss) {
  const PhaseScope phase = step.phase(Phase::backward);
  const double scale = impl_->loss_scale.factor();
  loss.backward(scale == 1 ? at::Tensor() : at::full_like(loss, scale));
  impl_->is_scaled = true;
}

GradientAverage ManualParallel::all_reduce_gradients(StepScope& step,
                                                     const std::vector<at::Tensor>& parameters) {
  return impl_->average(step, parameters, 1);
}

GradientAverage ManualParallel::all_reduce_gradients(StepScope& step,
                                                     const std::vector<at::Tensor>& parameters,
                                                     double weight) {
  return impl_->average(step, parameters, weight);
}

void ManualParallel::average_unseen(StepScope& step, const std::vector<at::Tensor>& parameters,
                                    std::uint64_t place) {
  impl_->average_unseen(step, parameters, place);
}

void ManualParallel::average_by(const detail::ReductionMaker& maker) {
  impl_->maker = maker;
}

ReductionOutcome ManualParallel::close(StepScope& step) {
  const PhaseScope phase = step.phase(Phase::communication);
  return impl_->close();
}

}  // namespace cox
