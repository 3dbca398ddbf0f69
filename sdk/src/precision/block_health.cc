#include "sdk/src/precision/block_health.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <unordered_map>

#include "sdk/src/blocks/block_registry.h"

namespace cox::detail {
namespace {

using Where = HealthVerdict::Where;

// All backward passes over a boundary together.
TensorScan gradient_of(const Boundary& boundary) {
  TensorScan all;
  for (const PendingScan& each : boundary.gradients) all += each.scan;
  return all;
}

std::int64_t bad_values(const BoundaryList& boundaries) {
  std::int64_t bad = 0;
  for (const Boundary* boundary : boundaries) bad += boundary->forward.scan.nonfinite;
  return bad;
}

std::int64_t bad_gradients(const BoundaryList& boundaries) {
  std::int64_t bad = 0;
  for (const Boundary* boundary : boundaries) bad += gradient_of(*boundary).nonfinite;
  return bad;
}

// When the backward pass of a call began: all its incoming gradients were there. 0: it never did.
Moment backward_at(const BlockCallRecord& call) {
  Moment last = 0;
  for (const Boundary* boundary : call.outputs) last = std::max(last, boundary->gradient_at);
  return last;
}

// When the first bad gradient left the call. 0: none did.
Moment went_bad_at(const BlockCallRecord& call) {
  Moment first = 0;
  for (const Boundary* boundary : call.inputs) {
    if (gradient_of(*boundary).nonfinite == 0) continue;
    if (first == 0 || boundary->gradient_at < first) first = boundary->gradient_at;
  }
  return first;
}

enum class Evidence { passed_on, own_parameters };  // the better one first

struct Candidate {
  std::size_t call = 0;
  Moment at = 0;
  std::int64_t values = 0;
  Evidence evidence = Evidence::passed_on;
  std::int64_t in_parameters = 0;
};

// Two calls that share an input share its gradient: the one whose parameters went bad as well.
bool is_before(const Candidate& a, const Candidate& b) {
  return std::tuple(a.evidence, a.at, a.in_parameters == 0) <
         std::tuple(b.evidence, b.at, b.in_parameters == 0);
}

// The earliest; of nested calls the innermost.
class Earliest {
 public:
  explicit Earliest(std::span<const BlockCallRecord> calls) : calls_(calls) {}

  void offer(const Candidate& candidate) {
    if (candidate.at == 0) return;
    all_.push_back(candidate);
  }

  std::optional<Candidate> innermost() const {
    const Candidate* best = earliest_inside(std::nullopt);
    while (best != nullptr) {
      const Candidate* inner = earliest_inside(best->call);
      if (inner == nullptr) return *best;
      best = inner;
    }
    return std::nullopt;
  }

 private:
  bool is_inside(std::size_t call, std::size_t of) const {
    for (auto outer = calls_[call].outer; outer; outer = calls_[*outer].outer) {
      if (*outer == of) return true;
    }
    return false;
  }

  const Candidate* earliest_inside(std::optional<std::size_t> of) const {
    const Candidate* best = nullptr;
    for (const Candidate& each : all_) {
      if (of && !is_inside(each.call, *of)) continue;
      if (best == nullptr || is_before(each, *best)) best = &each;
    }
    return best;
  }

  std::span<const BlockCallRecord> calls_;
  std::vector<Candidate> all_;
};

// Whether a gradient or the loss was not finite.
bool came_of_it(std::span<const BlockCallRecord> calls, const StepTrouble& trouble) {
  if (trouble.has_bad_loss || trouble.outside > 0) return true;
  if (std::any_of(trouble.in_parameters.begin(), trouble.in_parameters.end(),
                  [](std::int64_t bad) { return bad > 0; })) {
    return true;
  }
  return std::any_of(calls.begin(), calls.end(), [](const BlockCallRecord& call) {
    return bad_gradients(call.outputs) > 0 || bad_gradients(call.inputs) > 0;
  });
}

class Judge {
 public:
  Judge(std::span<const BlockCallRecord> calls, const StepTrouble& trouble)
      : calls_(calls),
        trouble_(trouble),
        has_clean_incoming_(trouble.in_parameters.size(), true),
        bad_inside_(calls.size()) {
    for (const BlockCallRecord& call : calls_) {
      const std::int64_t bad = bad_gradients(call.outputs);
      if (bad == 0) continue;
      has_clean_incoming_[call.block.value()] = false;
      for (auto outer = call.outer; outer; outer = calls_[*outer].outer) bad_inside_[*outer] += bad;
    }
  }

  HealthVerdict verdict() const {
    const auto forward = forward_fault();
    const auto backward = backward_fault();
    if (forward && (!backward || forward->at < backward->at)) return of(*forward, Where::forward);
    if (backward) return of(*backward, Where::backward);
    return {Where::outside, nearest(), 0};
  }

 private:
  HealthVerdict of(const Candidate& fault, Where where) const {
    return {where, calls_[fault.call].block, fault.values};
  }

  std::optional<Candidate> forward_fault() const {
    Earliest earliest(calls_);
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      if (bad_values(calls_[c].inputs) > 0) continue;
      const std::int64_t bad = bad_values(calls_[c].outputs);
      if (bad > 0) earliest.offer({c, calls_[c].end_at, bad});
    }
    return earliest.innermost();
  }

  std::optional<Candidate> backward_fault() const {
    Earliest earliest(calls_);
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      const std::size_t block = calls_[c].block.value();
      if (calls_[c].end_at == 0 || bad_gradients(calls_[c].outputs) > 0) continue;
      const std::int64_t own = has_clean_incoming_[block] ? trouble_.in_parameters[block] : 0;
      const Moment passed_on = went_bad_at(calls_[c]);
      if (passed_on != 0) {
        const std::int64_t bad = bad_gradients(calls_[c].inputs) + own;
        earliest.offer({c, passed_on, bad, Evidence::passed_on, own});
      } else if (own + bad_inside_[c] > 0) {
        const std::int64_t bad = own > 0 ? own : bad_inside_[c];
        earliest.offer({c, backward_at(calls_[c]), bad, Evidence::own_parameters, own});
      }
    }
    return earliest.innermost();
  }

  // Where trouble from elsewhere first met a block.
  std::optional<BlockId> nearest() const {
    const BlockCallRecord* met = nullptr;
    for (const BlockCallRecord& call : calls_) {
      if (met == nullptr && bad_values(call.inputs) > 0) met = &call;
    }
    if (met != nullptr) return met->block;
    for (const BlockCallRecord& call : calls_) {
      if (bad_gradients(call.outputs) == 0) continue;
      if (met == nullptr || backward_at(call) < backward_at(*met)) met = &call;
    }
    if (met == nullptr && trouble_.has_bad_loss && !calls_.empty()) met = &calls_.back();
    if (met == nullptr) return std::nullopt;
    return met->block;
  }

  std::span<const BlockCallRecord> calls_;
  const StepTrouble& trouble_;
  std::vector<bool> has_clean_incoming_;  // of a block, in all its calls
  std::vector<std::int64_t> bad_inside_;  // gradients that come to calls inside of a call
};

// Returns the block in which a step's trouble began. The rule, over the calls of one rank in the
// order of time:
// - forward: the first call (by its end, so the innermost of nested ones) whose inputs are all
//   finite and some result is not;
// - backward: the first call whose incoming gradients are all finite and an outgoing one, or a
//   gradient of its block's own parameters, or one that comes to a call inside, is not; of nested
//   calls the innermost such. First is when a bad gradient left it; calls that passed none on, but
//   whose parameters have one, come after those. A tensor that several blocks take has one
//   gradient, the sum of theirs: of these it is the block whose parameters have bad gradients too,
//   else the one that was called first;
// - of the two, what happened first; where neither exists it was outside of all blocks (the loss,
//   code between blocks, the data), with the block next to it.
// Only a step in which something came of it is blamed on anybody: a non-finite gradient or loss.
// A parameter's gradient sums over all calls, so it speaks against a block only if all incoming
// gradients of all its calls are finite. Pure. REQUIRES: all scans are read, and in_parameters has
// an entry for every block.
HealthVerdict judge(std::span<const BlockCallRecord> calls, const StepTrouble& trouble) {
  // Without it there is nothing to look for: the ordinary step.
  if (!came_of_it(calls, trouble)) return {};
  return Judge(calls, trouble).verdict();
}

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
