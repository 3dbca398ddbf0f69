#include "sdk/src/precision/fp8_watch.h"

#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "coordinator/core/text.h"
#include "sdk/src/precision/fp8_kernels.h"
#include "sdk/src/precision/fp8_operator.h"

namespace cox::detail {
namespace {

bool may_use_fp8(const PrecisionConfig& config) {
  const bool is_forced = std::ranges::any_of(
      config.force, [](const FormatRule& rule) { return rule.value == Precision::fp8; });
  return is_forced || config.format.value_or(Precision::fp8) == Precision::fp8;
}

// Done before the first step, because compiling takes a second or two.
void compile_fp8_kernels(c10::Device device, Log& log) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const auto kernels = Fp8Kernels::of(device, type);
    if (kernels.ok()) continue;
    log.on_change(LogLevel::warning, "fp8 kernels",
                  concat("fp8: LibTorch's operations quantise, which takes several times as long "
                         "as kernels would: ",
                         kernels.status().text()));
  }
}

}  // namespace

Fp8Reading::Fp8Reading(const Fp8Blocks& blocks) {
  std::vector<at::Tensor> pending;
  for (const auto& block : blocks) {
    for (const Fp8Waiting& one : block->take_waiting()) {
      pending.push_back(one.seen.pending);
      parts_.push_back({block, one});
    }
  }
  if (!pending.empty()) copy_ = HostCopy(at::stack(pending));
}

bool Fp8Reading::finish() {
  if (parts_.empty()) return true;
  if (!copy_.has_come()) return false;
  const double* numbers = copy_.tensor().const_data_ptr<double>();
  for (const Part& part : std::exchange(parts_, {})) {
    part.block->add(part.waiting, completed(part.waiting.seen, numbers));
    numbers += 3;
  }
  copy_ = HostCopy();
  return true;
}

void Fp8Reading::wait() const {
  if (!parts_.empty()) copy_.wait();
}

void Fp8Watch::equip(VisitParts& visits) {
  release();
  const std::shared_ptr<Fp8Shapes> shapes = Fp8Shapes::of(visits.device);
  if (shapes && may_use_fp8(config_)) compile_fp8_kernels(visits.device, log_);
  for (std::size_t b = 0; b < visits.steering.size(); ++b) {
    blocks_.push_back(std::make_shared<Fp8Block>(fp8_recipe(config_), shapes));
    visits.steering.set_fp8(BlockId(static_cast<BlockId::rep>(b)),
                            std::make_shared<Fp8Products>(blocks_.back()));
  }
}

void Fp8Watch::release() {
  blocks_.clear();
  reading_ = {};
}

void Fp8Watch::count(Fp8Count counting) {
  for (const auto& block : blocks_) block->count(counting);
}

void Fp8Watch::forget_run() {
  for (const auto& block : blocks_) block->drop_step();
}

void Fp8Watch::skip_step() {
  reading_.finish();
  forget_run();
}

// Counts on a device arrive one step late, so that no step waits. Delayed scaling waits, because
// the counts scale the next step. While a reading is pending, the counts of further steps are
// dropped.
void Fp8Watch::read() {
  const bool is_free = reading_.finish();
  Fp8Reading fresh(blocks_);
  if (config_.fp8_scaling == Fp8Scaling::delayed) {
    fresh.wait();
    while (!fresh.finish()) {
    }
  } else if (is_free) {
    reading_ = std::move(fresh);
  }
}

void Fp8Watch::end_step(float scale, std::span<BlockEvidence> evidence) {
  read();
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    const Fp8Counts counts = blocks_[b]->take_counts();
    blocks_[b]->end_step();
    if (counts.sampled == 0) continue;
    BlockEvidence seen;
    seen.sampled = saturated(counts.sampled);
    seen.underflow = saturated(counts.underflow);
    seen.saturated = saturated(counts.saturated);
    if (counts.activation_amax > 0) seen.activation = {counts.activation_amax, rank_};
    if (counts.gradient_amax > 0) seen.gradient = {counts.gradient_amax / scale, rank_};
    merge_into(evidence[b], seen);
  }
}

// Histories of delayed scaling; each rank has its own.
const SavedRow* Fp8Watch::saved_row() const {
  static constexpr SavedRow kRow{"fp8", "FP8 scaling"};
  return !blocks_.empty() && config_.fp8_scaling == Fp8Scaling::delayed ? &kRow : nullptr;
}

}  // namespace cox::detail
