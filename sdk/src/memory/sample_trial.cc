#include "sdk/src/memory/sample_trial.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/core/text.h"
#include "sdk/src/blocks/bits_comparison.h"
#include "sdk/src/blocks/timed_run.h"
#include "sdk/src/memory/step_trace.h"

namespace cox::detail {
namespace {

// Number of trial runs that time operators; the least time of each operator counts.
constexpr int kTimedRuns = 3;
// Number of runs that show whether the step differs by itself.
constexpr int kRunsCompared = 3;

MemoryLevel level_of(const TensorMemory& memory) {
  const MemoryCount count = memory.count();
  memory.reset_peak();
  return {count.live_bytes, count.peak_bytes};
}

// No action may change a bit. If one does, or the step differs by more than its known spread,
// nothing is planned.
Status same_gradients(const TrialStep& step, const GradientPrints& before,
                      const GradientSpread& spread) {
  const std::optional<std::size_t> unlike = spread.first_unlike(step.gradients(), before);
  if (!unlike) return ok_status();
  return failed_precondition(
      "memory: expected the same gradients from the same step under every memory action, found "
      "different gradients for parameter " +
      step.parameter_names()[*unlike] +
      "; activations are kept. Does the loss depend on more than the batch, the parameters and " +
      "torch's random numbers?");
}

}  // namespace

SampleTrial::SampleTrial(TrialParts parts, TrialSettings settings, TrialSample sample)
    : parts_(std::move(parts)), sample_(std::move(sample)), settings_(std::move(settings)) {
  settings_.budget_bytes -= sample_.step.resident_later_bytes + sample_.held.resident_bytes;
  settings_.has_tiles = [this] { return visits().region.has_tiles(); };
  if (!sample_.step.other_losses.empty())
    settings_.other_peak = [this](const Actions& actions) { return peak_of_others(actions); };
  if (parts_.offloader != nullptr) {
    settings_.copy_bytes_per_ms = parts_.offloader->copy_bytes_per_ms();
  } else {
    settings_.actions = without(settings_.actions, MemoryAction::offload);
  }
}

void SampleTrial::begin_run(const Actions& actions) {
  set_actions(visits().steering, actions);
  if (parts_.offloader != nullptr) parts_.offloader->begin_step();
  if (sample_.forget_run) sample_.forget_run();
  if (sample_.step.release) sample_.step.release();
}

// Operators on a device are timed one by one, with a wait for the device. A rank whose runs fail
// returns no operators; measure() reports the failure.
MeasuredRegions SampleTrial::measure_regions() {
  visits().region.begin_measuring([memory = parts_.memory] { return level_of(memory); });
  TrialStep step(sample_.step.model, sample_.step.loss);
  bool runs = can_run();
  for (int run = 0; run < kTimedRuns && runs; ++run) {
    begin_run(recomputed());
    runs = run_timed(*parts_.blocks.visits(), [&] { return step.run(); }).ok();
  }
  return visits().region.end_measuring();
}

void SampleTrial::choose_levels(const MeasuredRegions& regions) {
  levels_.emplace(regions, visits().steering);
  settings_.levels = &*levels_;
}

// Measures again once the cause of differing gradients is known. Either the step differs by itself,
// and is then compared by backward's inputs, or blocks cannot be recomputed.
Result<MemoryProblem> SampleTrial::measure() {
  auto problem = measure_once();
  return !problem.ok() && (learn_spread() || pin_unequal()) ? measure_once() : problem;
}

// Treats gradients as the job's steps will.
Result<MemoryProblem> SampleTrial::measure_once() {
  if (sample_.step.release) sample_.step.release();  // memory of the timed runs
  const std::int64_t base_bytes = parts_.memory.count().live_bytes +
                                  sample_.step.resident_later_bytes + sample_.held.resident_bytes;
  TrialStep step(sample_.step.model, sample_.step.loss, sample_.held.released);
  GradientPrints gradients;
  const auto pass = [&](const Actions& actions) -> Result<StepReading> {
    begin_run(actions);
    auto reading = traced(step);
    if (!reading.ok()) return reading;
    if (gradients.empty()) gradients = step.gradients();
    const Status same = same_gradients(step, gradients, spread_);
    return same.ok() ? std::move(reading) : Result<StepReading>(same);
  };
  auto problem = measure_problem(parts_.blocks.size(), settings_, pass);
  if (problem.ok()) problem->base_bytes = base_bytes;
  return problem;
}

Result<StepReading> SampleTrial::traced(TrialStep& step) {
  TraceRecorder trace(parts_.memory);
  trace.start(steady_now(), [offloader = parts_.offloader] {
    return offloader != nullptr ? offloader->counts().written_bytes : 0;
  });
  const auto ran = run_timed(
      *parts_.blocks.visits(), [&] { return step.run(); },
      [&trace](BlockId block, BlockEdge edge, Nanoseconds now) { trace.note(block, edge, now); });
  const StepTrace seen = trace.finish(steady_now());
  if (!ran.ok()) return ran.status();
  return read_stages(seen, parts_.blocks.size());
}

Result<std::int64_t> SampleTrial::peak_of_others(const Actions& actions) {
  std::int64_t most = 0;
  for (const std::function<at::Tensor()>& loss : sample_.step.other_losses) {
    begin_run(actions);
    TrialStep step(sample_.step.model, loss, sample_.held.released);
    parts_.memory.reset_peak();
    const Status ran = step.run();
    most = std::max(most, parts_.memory.count().peak_bytes);
    parts_.blocks.visits()->forget_step();
    if (!ran.ok()) return ran;
  }
  return most;
}

GradientPrints SampleTrial::gradients_under(const Actions& actions) {
  begin_run(actions);
  TrialStep step(sample_.step.model, sample_.step.loss);
  const Status ran = step.run();
  parts_.blocks.visits()->forget_step();
  return ran.ok() ? step.gradients() : GradientPrints();
}

bool SampleTrial::learn_spread() {
  const std::size_t known = spread_.unsteady();
  const GradientPrints first = gradients_under(recomputed());
  for (int again = 1; again < kRunsCompared; ++again)
    spread_.note(first, gradients_under(recomputed()));
  if (spread_.unsteady() == known) return false;
  parts_.log.info(concat("memory: the gradients of ", spread_.unsteady(), " of ", first.size(),
                         " parameters differ between runs of the same step (kernels that sum in no "
                         "fixed order); the tensors that backward reads are compared instead"));
  visits().comparison.compare(BitsComparison::Comparing::on);
  gradients_under(recomputed());
  if (parts_.offloader != nullptr)
    gradients_under(Actions(parts_.blocks.size(), MemoryAction::offload));
  visits().comparison.compare(BitsComparison::Comparing::off);
  return true;
}

// Pins blocks of a followed model whose gradients differ after recompute. Compares runs with one
// block kept at a time, which needs little more memory than none. An adopted model's blocks were
// compared with its own step. Returns whether there are any.
bool SampleTrial::pin_unequal() {
  if (parts_.blocks.followed() == nullptr) return false;
  const GradientPrints all = gradients_under(recomputed());
  std::vector<BlockId> unequal;
  for (std::size_t b = 0; b < parts_.blocks.size(); ++b) {
    Actions one_kept = recomputed();
    one_kept[b] = MemoryAction::keep;
    if (spread_.first_unlike(gradients_under(one_kept), all))
      unequal.push_back(BlockId(static_cast<BlockId::rep>(b)));
  }
  for (const BlockId block : unequal)
    visits().steering.pin(block,
                          "its gradients after recompute differ from those of the kept block");
  return !unequal.empty();
}

}  // namespace cox::detail
