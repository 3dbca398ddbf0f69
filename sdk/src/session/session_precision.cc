// The part of SessionState that chooses number formats: what the devices can run, and, where blocks
// choose by themselves, what every format costs them.
#include <torch/torch.h>

#include <algorithm>

#include "coordinator/transport/wait.h"
#include "coxswain/error.h"
#include "sdk/src/parallel/start_equal.h"
#include "sdk/src/precision/trial_step.h"
#include "sdk/src/session/session_state.h"

namespace cox::detail {
namespace {

at::DeviceType device_of(const torch::nn::Module& model) {
  for (const at::Tensor& parameter : model.parameters()) {
    if (!parameter.device().is_cpu()) return parameter.device().type();
  }
  return at::kCPU;
}

// The slowest rank decides; a rank without a sample brings zeros.
std::vector<std::uint64_t> flat(const PrecisionFacts& facts, std::size_t blocks) {
  std::vector<std::uint64_t> numbers((blocks + 1) * kPrecisions);
  for (std::size_t b = 0; b < facts.blocks.size(); ++b) {
    for (std::size_t p = 0; p < kPrecisions; ++p) {
      numbers[b * kPrecisions + p] = static_cast<std::uint64_t>(facts.blocks[b].step_us[p]);
    }
  }
  for (std::size_t p = 0; p < kPrecisions; ++p) {
    numbers[blocks * kPrecisions + p] = contains(facts.emulated, static_cast<Precision>(p)) ? 1 : 0;
  }
  return numbers;
}

PrecisionFacts facts_of(std::span<const std::uint64_t> numbers, std::size_t blocks) {
  PrecisionFacts facts;
  facts.blocks.assign(blocks, {});
  for (std::size_t b = 0; b < blocks; ++b) {
    for (std::size_t p = 0; p < kPrecisions; ++p) {
      facts.blocks[b].step_us[p] = static_cast<std::int64_t>(numbers[b * kPrecisions + p]);
    }
  }
  for (std::size_t p = 0; p < kPrecisions; ++p) {
    if (numbers[blocks * kPrecisions + p] != 0) facts.emulated |= only(static_cast<Precision>(p));
  }
  return facts;
}

}  // namespace

// A plan may ask a format of all ranks only if all can run it.
void SessionState::agree_on_formats() {
  if (!precision_.is_wanted()) return;
  const auto formats = gather_numbers(world_.all(), precision_.formats());
  if (!formats.ok()) throw Error(formats.status());
  for (const std::uint64_t mine : *formats) {
    precision_.restrict_to(static_cast<PrecisionSet>(mine));
  }
}

// What is asked of blocks needs some, and a loop whose ranks agree on plans.
void SessionState::warn_of_idle_settings() const {
  if (rank() != kRoot || (blocks_.size() > 0 && is_reducing_)) return;
  const std::string but = is_reducing_
                              ? " is set, but the model has no blocks (cox::run, cox::wrap)"
                              : " is set, but the loop has no Reducer or Trainer";
  if (precision_.is_wanted()) {
    log_.warning("precision.*" + but + "; number formats stay as the program has them");
  }
  if (steering_.is_wanted()) {
    log_.warning("memory.*" + but + "; activations stay as the program keeps them");
  }
}

bool SessionState::wants_rehearsal() const {
  return !has_rehearsed_ && (wants_format_trial() || wants_memory_trial());
}

// Formats first: what a block keeps for its backward pass depends on its format.
void SessionState::rehearse(const SampleStep& sample) {
  const std::uint64_t steps_reported = steps_begun_ - (recorder_.is_open() ? 1 : 0);
  if (steps_reported > 0) {
    throw Error(failed_precondition(
                    "rehearse: expected it before the end of the session's first step, found " +
                    std::to_string(steps_reported) +
                    " reported; call Session::rehearse() right after the Reducer was made, or "
                    "TrainerStep::forward() or accumulate() from the first step on"),
                Error::Scope::all_ranks);
  }
  has_rehearsed_ = true;
  const auto began = Clock::now();
  if (wants_format_trial()) try_formats(sample);
  if (wants_memory_trial()) try_memory(sample);
  // What a trial overflowed or flushed is no part of the step that is open, whose loss scale may
  // have come with the plan that followed.
  numbers_.forget();
  if (recorder_.is_open()) watch_step();
  recorder_.leave_out(began, Clock::now());
}

void SessionState::watch_step() {
  scale_of_round_ = precision_.is_scaling() ? precision_.scale() : 0;
  numbers_.begin_step(precision_.scale());
}

void SessionState::probe_curvature(torch::nn::Module& model,
                                   const std::function<at::Tensor()>& loss) {
  if (loaded_.config.precision.curvature_every == 0) return;
  const auto began = Clock::now();
  numbers_.probe_curvature(recorder_.report().step.value(), model, loss, rank());
  recorder_.leave_out(began, Clock::now());
}

void SessionState::wish(std::string_view block, PrecisionRequest request) {
  const std::vector<std::string> names = blocks_.names();
  const auto found = std::find(names.begin(), names.end(), block);
  if (found == names.end() && block != "*") {
    throw Error(invalid_argument(
        "precision: expected the name of a block or \"*\", found \"" + std::string(block) + "\"" +
        (names.empty() ? "; the session has no blocks" : "; the first block is " + names.front())));
  }
  const bool asks_format = request.what != PrecisionRequest::What::release;
  if (asks_format && !contains(precision_.formats(), request.format)) {
    throw Error(
        invalid_argument("precision: expected a format that this job may use, found " +
                         std::string(to_string(request.format)) +
                         "; set precision.mode=on or another precision.format, and see can_run()"));
  }
  if (found != names.end()) request.block = static_cast<std::uint16_t>(found - names.begin());
  blocks_.request(request);
}

// Plan 0 once more, from all that is measured by now.
std::vector<Reason> SessionState::learn() {
  auto reasons = plane_->learn(world_.all(), measured_);
  if (!reasons.ok()) throw Error(reasons.status());
  for (const Reason& reason : *reasons) {
    if (reason.code != ReasonCode::memory_infeasible) log_.info(reason.text);
  }
  return std::move(*reasons);
}

void SessionState::detach() {
  numbers_.release();
  blocks_.release();
  steering_.forget();
}

void SessionState::attach(torch::nn::Module& model) {
  numbers_.release();
  steering_.forget();
  blocks_.attach(model);
  device_ = device_of(model);
}

bool SessionState::wants_format_trial() const {
  const PrecisionConfig& config = loaded_.config.precision;
  return precision_.is_wanted() && !config.format && is_reducing_ && blocks_.size() > 0;
}

void SessionState::try_formats(const SampleStep& sample) {
  PrecisionFacts mine;
  if (sample.loss) {
    TrialStep trial(sample.model, sample.loss);
    auto measured = precision_.measure([&] { return trial.run(); });
    if (measured.ok()) {
      mine = std::move(*measured);
    } else {
      log_.warning("precision: " + measured.status().message() + "; no format is chosen by speed");
    }
  }
  std::vector<std::uint64_t> numbers = flat(mine, blocks_.size());
  auto& all = world_.all();
  const Status merged = transport::finish(
      all,
      all.start_all_reduce(std::as_writable_bytes(std::span<std::uint64_t>(numbers)),
                           transport::max_u64()),
      wait_policy());
  if (!merged.ok()) throw Error(merged);
  measured_.precision = rank() == kRoot ? facts_of(numbers, blocks_.size()) : PrecisionFacts{};
  learn();
  precision_.follow(plane_->plan());
}

}  // namespace cox::detail
