#include "sdk/src/precision/block_health.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <unordered_map>

#include "sdk/src/blocks/block_registry.h"

namespace cox::detail {
namespace {

std::uint32_t clamped(std::int64_t count) {
  constexpr std::int64_t kMost = std::numeric_limits<std::uint32_t>::max();
  return static_cast<std::uint32_t>(std::min(count, kMost));
}

void add(std::uint32_t& to, std::int64_t count) {
  to = clamped(static_cast<std::int64_t>(to) + count);
}

void raise(Magnitude& most, float value, RankId rank) {
  if (most.rank.value() >= 0 && value <= most.value) return;
  most = {value, rank};
}

TensorScan gradients_of(const BoundaryList& boundaries) {
  TensorScan all;
  for (const Boundary* boundary : boundaries) all += gradient_of(*boundary);
  return all;
}

std::int64_t flushed_zeros(const TensorScan& outgoing, const TensorScan& incoming) {
  const bool is_all_zero = outgoing.zeros == outgoing.values && incoming.zeros < incoming.values;
  if (outgoing.tiny == 0 && !is_all_zero) return 0;
  const double share = incoming.values == 0 ? 0.0
                                            : static_cast<double>(incoming.zeros) /
                                                  static_cast<double>(incoming.values);
  const auto meant = static_cast<std::int64_t>(share * static_cast<double>(outgoing.values));
  return std::max<std::int64_t>(0, outgoing.zeros - meant);
}

// One read for all. A tensor that is not finite has no say: the step is skipped anyway.
float largest_of(const std::vector<at::Tensor>& on_device) {
  if (on_device.empty()) return 0;
  const torch::NoGradGuard no_grad;
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor norms =
      at::stack(at::_foreach_norm(on_device, infinity, at::kFloat)).to(at::kCPU);
  float largest = 0;
  for (std::int64_t i = 0; i < norms.numel(); ++i) {
    const float norm = norms.const_data_ptr<float>()[i];
    if (std::isfinite(norm)) largest = std::max(largest, norm);
  }
  return largest;
}

bool is_around(const std::string& outer, const std::string& inner) {
  return inner.starts_with(outer + ".") || (outer == "model" && inner != outer);
}

std::vector<BlockId> innermost(const BlockRegistry& registry, const std::vector<BlockId>& blocks) {
  std::vector<BlockId> inner;
  for (const BlockId block : blocks) {
    const bool has_inner = std::any_of(blocks.begin(), blocks.end(), [&](BlockId other) {
      return is_around(registry.name(block), registry.name(other));
    });
    if (!has_inner) inner.push_back(block);
  }
  return inner;
}

}  // namespace

std::vector<std::vector<BlockId>> owners_of(const BlockRegistry& registry,
                                            std::span<const at::Tensor> parameters) {
  std::unordered_map<const void*, std::vector<BlockId>> blocks_of;
  for (std::size_t b = 0; b < registry.size(); ++b) {
    const BlockId block(static_cast<BlockId::rep>(b));
    const auto module = registry.module(block);
    if (!module) continue;
    for (const at::Tensor& parameter : module->parameters()) {
      std::vector<BlockId>& blocks = blocks_of[parameter.unsafeGetTensorImpl()];
      if (blocks.empty() || blocks.back() != block) blocks.push_back(block);
    }
  }
  std::vector<std::vector<BlockId>> owners;
  for (const at::Tensor& parameter : parameters) {
    owners.push_back(innermost(registry, blocks_of[parameter.unsafeGetTensorImpl()]));
  }
  return owners;
}

void BlockHealth::attach(BlockRegistry& registry, std::span<const at::Tensor> parameters) {
  ledger_ = std::make_shared<HealthLedger>();
  parameters_.assign(parameters.begin(), parameters.end());
  owners_ = owners_of(registry, parameters);
  evidence_.assign(registry.size(), {});
  registry.set_health(ledger_);
}

void BlockHealth::detach(BlockRegistry& registry) {
  if (!ledger_) return;
  registry.set_health(nullptr);
  ledger_->close();
  ledger_.reset();
  parameters_.clear();
}

void BlockHealth::begin_step(float scale) {
  if (!ledger_) return;
  scale_ = scale;
  trouble_.in_parameters.assign(evidence_.size(), 0);
  trouble_.outside = 0;
  trouble_.has_bad_loss = false;
  ledger_->open();
}

void BlockHealth::parameter_gradients(std::span<const std::int64_t> nonfinite) {
  if (!ledger_ || !ledger_->is_open()) return;
  for (std::size_t p = 0; p < std::min(nonfinite.size(), owners_.size()); ++p) {
    for (const BlockId block : owners_[p]) trouble_.in_parameters[block.value()] += nonfinite[p];
    if (owners_[p].empty()) trouble_.outside += nonfinite[p];
  }
}

void BlockHealth::loss(double value) {
  trouble_.has_bad_loss = trouble_.has_bad_loss || !std::isfinite(value);
}

float BlockHealth::amax_scaled_fp16() {
  if (!ledger_ || !ledger_->is_open()) return 0;
  float amax = 0;
  std::vector<bool> is_in_fp16(evidence_.size());
  bool is_any = false;
  for (const BlockCallRecord& call : ledger_->read()) {
    if (!call.is_fp16) continue;
    is_any = is_in_fp16[call.block.value()] = true;
    amax = std::max({amax, gradients_of(call.inputs).amax, gradients_of(call.outputs).amax});
  }
  return is_any ? std::max(amax, amax_of_parameters(is_in_fp16)) : 0;
}

float BlockHealth::amax_of_parameters(const std::vector<bool>& is_in_fp16) const {
  float amax = 0;
  std::vector<at::Tensor> on_devices;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const at::Tensor& gradient = parameters_[p].grad();
    const bool is_wanted = gradient.defined() && gradient.numel() > 0 &&
                           std::any_of(owners_[p].begin(), owners_[p].end(),
                                       [&](BlockId block) { return is_in_fp16[block.value()]; });
    if (!is_wanted) continue;
    if (!gradient.is_cpu()) {
      on_devices.push_back(gradient);
    } else {
      amax = std::max(amax, scan(gradient, ScanKind::extent).amax);
    }
  }
  return std::max(amax, largest_of(on_devices));
}

void BlockHealth::note(const BlockCallRecord& call, RankId rank) {
  BlockEvidence& evidence = evidence_[call.block.value()];
  for (const Boundary* boundary : call.outputs) {
    const TensorScan& values = boundary->forward.scan;
    if (values.values > 0) raise(evidence.activation, values.amax, rank);
  }
  const TensorScan incoming = gradients_of(call.outputs);
  const TensorScan outgoing = gradients_of(call.inputs);
  if (incoming.values + outgoing.values == 0) return;
  raise(evidence.gradient, std::max(incoming.amax, outgoing.amax) / scale_, rank);
  if (!call.is_fp16) return;
  add(evidence.sampled, incoming.values + outgoing.values);
  add(evidence.underflow, incoming.tiny + outgoing.tiny + flushed_zeros(outgoing, incoming));
}

void BlockHealth::blame(RankId rank) {
  const bool is_forward = verdict_.where == HealthVerdict::Where::forward;
  if (!is_forward && verdict_.where != HealthVerdict::Where::backward) return;
  BlockEvidence& evidence = evidence_[verdict_.block->value()];
  (is_forward ? evidence.overflow_forward : evidence.overflow_backward) = clamped(verdict_.values);
  evidence.rank_of_overflow = rank;
}

std::span<const BlockEvidence> BlockHealth::end_step(RankId rank) {
  if (!ledger_ || !ledger_->is_open()) return {};
  std::fill(evidence_.begin(), evidence_.end(), BlockEvidence{});
  const std::vector<BlockCallRecord>& calls = ledger_->read();
  for (const BlockCallRecord& call : calls) {
    if (call.end_at != 0) note(call, rank);
  }
  verdict_ = judge(calls, trouble_);
  blame(rank);
  ledger_->close();
  return evidence_;
}

}  // namespace cox::detail
