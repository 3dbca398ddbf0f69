#include "sdk/src/precision/format_actuator.h"

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <utility>

#include "coordinator/core/settings/settings.h"
#include "coordinator/runtime/control_plane.h"
#include "coxswain/error.h"
#include "coxswain/precision.h"
#include "metrics/records/step_row.h"
#include "sdk/src/blocks/block_rules.h"
#include "sdk/src/blocks/timed_run.h"
#include "sdk/src/parallel/agreement.h"
#include "sdk/src/precision/trial_pass.h"

namespace cox::detail {
namespace {

constexpr int kTimedPasses = 3;
constexpr std::int64_t kHopeless = 3;  // times as slow as fp32: one run is enough

// Returns the times of the slowest rank. A rank without a sample contributes zeros.
PrecisionFacts slowest_of(transport::Communicator& ranks, PrecisionFacts facts) {
  static_assert(sizeof(BlockFormats) == kPrecisions * sizeof(std::int64_t));
  require(reduce_values(ranks, std::span(facts.blocks), transport::max_u64()));
  for (const PrecisionSet emulated : require(gather_values(ranks, facts.emulated))) {
    facts.emulated |= emulated;
  }
  return facts;
}

}  // namespace

FormatActuator::FormatActuator(const Config& config, BlockWatch& blocks, Log log)
    : config_(config.precision),
      blocks_(blocks),
      log_(std::move(log)),
      is_wanted_(config.precision.mode ? *config.precision.mode != PolicyMode::off
                                       : wants_precision(config.precision)),
      is_steered_(is_wanted_ && config.precision.mode != PolicyMode::observe) {}

// Called once, when the blocks are known.
Status FormatActuator::check(LoopKind) {
  const std::vector<std::string> names = blocks_.names();
  if (Status fits = check_rules_fit("precision.force", config_.force, names); !fits.ok())
    return fits;
  if (Status fits = check_rules_fit("precision.forbid", config_.forbid, names); !fits.ok())
    return fits;
  if (!is_wanted_ || blocks_.size() == 0) return ok_status();
  const at::DeviceType device = blocks_.visits()->parts().device.type();
  formats_ = runnable_formats(device) | only(Precision::fp32);
  if (blocks_.followed() == nullptr) formats_ &= formats_of_adopted();
  for (std::size_t p = 0; p < kPrecisions; ++p) {
    const auto format = static_cast<Precision>(p);
    if (contains(formats_, format) && is_emulated(format, device)) emulated_ |= only(format);
  }
  return check_formats(device);
}

// A foreign loop does not scale its losses, so fp16 needs a request there.
PrecisionSet FormatActuator::formats_of_adopted() const {
  PrecisionSet formats = only(Precision::fp32) | only(Precision::bf16) | only(Precision::fp8);
  const bool is_forced = std::ranges::any_of(
      config_.force, [](const FormatRule& rule) { return rule.value == Precision::fp16; });
  if (config_.format == Precision::fp16 || is_forced) formats |= only(Precision::fp16);
  return formats;
}

// A plan may request a format only if all ranks can run it.
Status FormatActuator::negotiate(transport::Communicator& ranks) {
  if (!is_wanted_) return ok_status();
  const auto all = gather_values(ranks, formats_);
  if (!all.ok()) return all.status();
  for (const PrecisionSet formats : *all) formats_ &= formats;
  return ok_status();
}

Status FormatActuator::check_formats(at::DeviceType device) const {
  const auto check = [&](Precision format) {
    const Status status = can_run(format, device);
    if (!status.ok() || contains(formats_, format)) return status;
    return invalid_argument("expected fp32, bf16 or fp16 for an adopted model, found ",
                            to_string(format));
  };
  if (config_.format) {
    const Status status = check(*config_.format);
    if (!status.ok()) return status.with_context("precision.format");
  }
  for (const FormatRule& rule : config_.force) {
    const Status status = check(rule.value);
    if (!status.ok()) return status.with_context("precision.force " + rule.text());
  }
  return ok_status();
}

// Compares contents, not numbers: measured formats change the first plan under its old number.
void FormatActuator::apply(const Plan& plan, RoundId) {
  if (!is_steered_ || followed_ == plan.precision) return;
  followed_ = plan.precision;
  set_formats(followed_);
}

bool FormatActuator::has(Precision format) const {
  return std::ranges::find(followed_, format) != followed_.end();
}

void FormatActuator::set_formats(std::span<const Precision> formats) {
  for (std::size_t b = 0; b < std::min(formats.size(), blocks_.size()); ++b)
    blocks_.visits()->parts().steering.set_format(BlockId(static_cast<BlockId::rep>(b)),
                                                  formats[b]);
}

void FormatActuator::end_step(const StepEnd& step, StepOutput& output) {
  if (output.row == nullptr) return;
  for (const Precision format : step.plan.precision) {
    ++output.row->precision_blocks[static_cast<std::size_t>(format)];
  }
}

Fragment FormatActuator::next_fragment() {
  if (requests_.empty() || blocks_.size() == 0) return {};
  const Fragment request = make_fragment(requests_.front());
  requests_.pop_front();
  return request;
}

void FormatActuator::request(std::string_view block, PrecisionRequest request) {
  const std::vector<std::string> names = blocks_.names();
  const auto found = std::ranges::find(names, block);
  if (found == names.end() && block != "*") {
    throw Error(invalid_argument(
        "precision: expected the name of a block or \"*\", found \"" + std::string(block) + "\"" +
        (names.empty() ? "; the session has no blocks" : "; the first block is " + names.front())));
  }
  const bool asks_format = request.what != PrecisionRequest::What::release;
  if (asks_format && !contains(formats_, request.format)) {
    throw Error(
        invalid_argument("precision: expected a format that this job may use, found " +
                         std::string(to_string(request.format)) +
                         "; set precision.mode=on or another precision.format, and see can_run()"));
  }
  if (found != names.end()) request.block = static_cast<std::uint16_t>(found - names.begin());
  requests_.push_back(request);
}

void FormatActuator::calibrate(const SampleStep& sample, CalibrationHost& host) {
  PrecisionFacts mine{std::vector<BlockFormats>(blocks_.size())};
  if (sample.loss) {
    TrialStep trial(sample.model, sample.loss);
    auto measured = measure([&] { return trial.run(); });
    if (measured.ok()) {
      mine = std::move(*measured);
    } else {
      log_.warning("precision: " + measured.status().message() + "; no format is chosen by speed");
    }
  }
  PrecisionFacts agreed = slowest_of(host.ranks(), std::move(mine));
  host.facts().precision = host.ranks().rank() == kRoot ? std::move(agreed) : PrecisionFacts{};
  host.learn();
  apply(host.plan(), {});
}

Result<PrecisionFacts> FormatActuator::measure(const std::function<Status()>& step) {
  PrecisionFacts facts;
  facts.emulated = emulated_;
  facts.blocks.assign(blocks_.size(), {});
  Status status;
  for (std::size_t p = 0; p < kPrecisions && status.ok(); ++p) {
    if (!contains(formats_, static_cast<Precision>(p))) continue;
    set_formats(std::vector<Precision>(blocks_.size(), static_cast<Precision>(p)));
    status = measure_format(p, step, facts);
  }
  set_formats(is_steered_ ? followed_ : std::vector<Precision>(blocks_.size(), Precision::fp32));
  return status.ok() ? Result<PrecisionFacts>(std::move(facts)) : status;
}

Status FormatActuator::measure_format(std::size_t format, const std::function<Status()>& step,
                                      PrecisionFacts& facts) {
  std::int64_t first_us = 0;
  for (int run = 0; run <= kTimedPasses; ++run) {
    const auto times = run_timed(*blocks_.visits(), step);
    if (!times.ok()) return times.status();
    std::int64_t run_us = 0;
    for (std::size_t b = 0; b < times->size(); ++b) {
      std::int64_t& best = facts.blocks[b].step_us[format];
      const std::int64_t us = std::max<std::int64_t>(1, (*times)[b]);
      best = run == 0 ? us : std::min(best, us);
      run_us += us;
    }
    if (run == 0) first_us = run_us;
    std::int64_t fp32_us = 0;
    for (const BlockFormats& block : facts.blocks) fp32_us += block.step_us[0];
    if (format > 0 && first_us > kHopeless * fp32_us) break;
  }
  return ok_status();
}

}  // namespace cox::detail
