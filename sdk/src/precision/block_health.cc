#include "sdk/src/precision/block_health.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "sdk/src/blocks/measurement.h"

namespace cox::detail {
namespace {

// Returns the sum over all backward passes over a boundary.
TensorScan gradient_of(const Boundary& boundary) {
  TensorScan all;
  for (const PendingScan& each : boundary.gradients) all += each.scan;
  return all;
}

TensorScan gradients_of(const BoundaryList& boundaries) {
  TensorScan all;
  for (const Boundary* boundary : boundaries) all += gradient_of(*boundary);
  return all;
}

std::int64_t bad_gradients(const BoundaryList& boundaries) {
  return gradients_of(boundaries).nonfinite;
}

std::int64_t bad_values(const BoundaryList& boundaries) {
  std::int64_t bad = 0;
  for (const Boundary* boundary : boundaries) bad += boundary->forward.scan.nonfinite;
  return bad;
}

// Returns the time when all incoming gradients of the call had arrived; 0 = never. The backward
// pass of the last call begins when the call has ended.
Moment backward_at(const BlockCallRecord& call) {
  if (call.outputs.empty()) return call.end_at;
  Moment last = 0;
  for (const Boundary* boundary : call.outputs) last = std::max(last, boundary->gradient_at);
  return last;
}

// Returns the time when the first bad gradient left the call; 0 = never.
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

// Calls that share an input share its gradient. A call with bad parameter gradients comes first.
bool is_before(const Candidate& a, const Candidate& b) {
  return std::tuple(a.evidence, a.at, a.in_parameters == 0) <
         std::tuple(b.evidence, b.at, b.in_parameters == 0);
}

// Returns the earliest candidate that happened.
std::optional<Candidate> earliest(std::vector<Candidate> candidates) {
  std::erase_if(candidates, [](const Candidate& each) { return each.at == 0; });
  if (candidates.empty()) return std::nullopt;
  return *std::ranges::min_element(candidates, is_before);
}

constexpr std::size_t kMostLate = 4;  // steps

// Returns whether the reducer found a non-finite value.
bool has_trouble(const StepTrouble& trouble) {
  const auto is_bad = [](std::int64_t count) { return count > 0; };
  return trouble.has_bad_loss || trouble.outside > 0 ||
         std::ranges::any_of(trouble.in_parameters, is_bad);
}

// Returns whether a gradient or the loss was not finite.
bool came_of_it(std::span<const BlockCallRecord> calls, const StepTrouble& trouble) {
  return has_trouble(trouble) || std::ranges::any_of(calls, [](const BlockCallRecord& call) {
           return bad_gradients(call.outputs) > 0 || bad_gradients(call.inputs) > 0;
         });
}

class Judge {
 public:
  Judge(std::span<const BlockCallRecord> calls, const StepTrouble& trouble)
      : calls_(calls), trouble_(trouble), has_clean_incoming_(trouble.in_parameters.size(), true) {
    for (const BlockCallRecord& call : calls_) {
      if (bad_gradients(call.outputs) > 0) has_clean_incoming_[call.block.value()] = false;
    }
  }

  HealthVerdict verdict() const {
    if (const auto call = spoiled_before()) {
      const BlockId block = calls_[*call].block;
      return {HealthVerdict::Where::parameters, block, trouble_.parameters[block.value()]};
    }
    const auto forward = forward_fault();
    const auto backward = backward_fault();
    if (forward && (!backward || forward->at < backward->at))
      return of(*forward, HealthVerdict::Where::forward);
    if (backward) return of(*backward, HealthVerdict::Where::backward);
    return {HealthVerdict::Where::outside, nearest(), 0};
  }

 private:
  HealthVerdict of(const Candidate& fault, HealthVerdict::Where where) const {
    return {where, calls_[fault.call].block, fault.values};
  }

  // Returns the first call whose block had non-finite parameters before the step and spread them: a
  // result is not finite, or an outgoing gradient is not finite although the incoming ones are.
  std::optional<std::size_t> spoiled_before() const {
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      const BlockCallRecord& call = calls_[c];
      const std::size_t block = call.block.value();
      if (trouble_.parameters[block] == 0) continue;
      const bool came_clean = bad_gradients(call.outputs) == 0;
      const bool left_bad = trouble_.in_parameters[block] > 0 || bad_gradients(call.inputs) > 0;
      if (bad_values(call.outputs) > 0 || (came_clean && left_bad)) return c;
    }
    return std::nullopt;
  }

  std::optional<Candidate> forward_fault() const {
    std::vector<Candidate> faults;
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      if (bad_values(calls_[c].inputs) > 0) continue;
      const std::int64_t bad = bad_values(calls_[c].outputs);
      if (bad > 0) faults.push_back({c, calls_[c].end_at, bad});
    }
    if (faults.empty() && trouble_.has_bad_loss) return fault_in_loss();
    return earliest(std::move(faults));
  }

  // The result of the last call is the loss.
  std::optional<Candidate> fault_in_loss() const {
    if (calls_.empty() || bad_values(calls_.back().inputs) > 0) return std::nullopt;
    return Candidate{calls_.size() - 1, calls_.back().end_at, 1};
  }

  std::optional<Candidate> backward_fault() const {
    std::vector<Candidate> faults;
    for (std::size_t c = 0; c < calls_.size(); ++c) {
      const std::size_t block = calls_[c].block.value();
      if (calls_[c].end_at == 0 || bad_gradients(calls_[c].outputs) > 0) continue;
      const std::int64_t own = has_clean_incoming_[block] ? trouble_.in_parameters[block] : 0;
      const Moment passed_on = went_bad_at(calls_[c]);
      if (passed_on != 0) {
        const std::int64_t bad = bad_gradients(calls_[c].inputs) + own;
        faults.push_back({c, passed_on, bad, Evidence::passed_on, own});
      } else if (own > 0) {
        faults.push_back({c, backward_at(calls_[c]), own, Evidence::own_parameters, own});
      }
    }
    return earliest(std::move(faults));
  }

  // Returns the first block with trouble from elsewhere.
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
    if (met == nullptr) return std::nullopt;
    return met->block;
  }

  std::span<const BlockCallRecord> calls_;
  const StepTrouble& trouble_;
  std::vector<bool> has_clean_incoming_;  // by block, over all of its calls
};

// Returns the block in which a step's trouble began. The rule, over the calls of one rank in order
// of time:
// - parameters: the first call of a block whose parameters were not finite at the start of the
//   step, and whose results or gradients are not finite either. No pass of the step is to blame
//   then.
// - forward: the first call, by its end, with finite inputs and a non-finite result. The result of
//   the last call is the loss.
// - backward: the first call with finite incoming gradients and a non-finite outgoing gradient or
//   parameter gradient. Calls are ordered by the time when a bad gradient left. Calls with bad
//   gradients only in their parameters come last. A tensor read by several blocks has one gradient,
//   the sum of theirs. Among these blocks the rule picks one with bad parameter gradients, else the
//   one called first.
// - The earlier of forward and backward counts. If there is neither, the trouble began outside of
//   all blocks (code before the first block, the data), and the verdict names the nearest block.
//
// A block is blamed only in a step with a non-finite gradient or loss. A parameter's gradient sums
// over all calls, so it is evidence against a block only if all incoming gradients of the block's
// calls are finite. Pure. REQUIRES: all scans are read, and in_parameters has an entry for every
// block.
HealthVerdict judge(std::span<const BlockCallRecord> calls, const StepTrouble& trouble) {
  return came_of_it(calls, trouble) ? Judge(calls, trouble).verdict() : HealthVerdict();
}

void add(std::uint32_t& to, std::int64_t count) {
  to = saturated(std::uint64_t{to} + static_cast<std::uint64_t>(count));
}

void raise(Magnitude& most, float value, RankId rank) {
  if (most.rank.value() >= 0 && value <= most.value) return;
  most = {value, rank};
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

// Adds the largest of some fp64 numbers on a device, all of which are finite.
void add(const at::Tensor& numbers, Largest& to) {
  const at::Tensor largest = numbers.max();
  to.on_device = to.on_device.defined() ? at::maximum(to.on_device, largest) : largest;
}

// Skips non-finite tensors: the step is skipped anyway.
void add_largest(const std::vector<at::Tensor>& on_device, Largest& to) {
  if (on_device.empty()) return;
  const double infinity = std::numeric_limits<double>::infinity();
  const at::Tensor norms =
      at::stack(at::_foreach_norm(on_device, infinity, at::kFloat)).to(at::kDouble);
  add(at::where(at::isfinite(norms), norms, at::zeros({}, norms.options())), to);
}

// Adds the gradients at boundaries. Figures of scans on a device stay there.
void add_boundaries(const BlockCallRecord& call, Largest& to, std::vector<at::Tensor>& figures) {
  for (const auto* side : {&call.inputs, &call.outputs}) {
    for (const Boundary* boundary : *side) {
      for (const PendingScan& each : boundary->gradients) {
        to.here = std::max(to.here, each.scan.amax);
        if (each.on_device.defined()) figures.push_back(each.on_device);
      }
    }
  }
}

}  // namespace

std::shared_ptr<HealthLedger> BlockHealth::watch(std::size_t blocks,
                                                 std::span<const at::Tensor> parameters,
                                                 std::vector<std::optional<BlockId>> owners) {
  ledger_ = std::make_shared<HealthLedger>();
  parameters_.assign(parameters.begin(), parameters.end());
  owners_ = std::move(owners);
  evidence_.assign(blocks, {});
  looks_.clear();
  late_.clear();
  return ledger_;
}

void BlockHealth::release() {
  if (!ledger_) return;
  ledger_->close();
  ledger_.reset();
  parameters_.clear();
  looks_.clear();
  late_.clear();
}

void BlockHealth::begin_step(float scale) {
  if (!ledger_) return;
  scale_ = scale;
  trouble_.clear(evidence_.size());
  wrong_.reset();
  looks_.clear();
  ledger_->open();
}

void BlockHealth::parameter_gradients(std::span<const std::int64_t> nonfinite, StepId step) {
  wrong_ = step;
  if (!ledger_ || !ledger_->is_open()) return;
  add_gradients(nonfinite, trouble_);
  const std::vector<at::Tensor> trained = trained_parameters();
  FiniteLook look(trained);
  look.wait();
  std::vector<std::int64_t> counts = look.nonfinite();
  for (std::size_t p = 0; p < counts.size(); ++p) {
    if (counts[p] > 0) counts[p] = count_nonfinite(trained[p]);  // a device does not count
  }
  add_parameters(counts, trouble_);
}

void BlockHealth::add_gradients(std::span<const std::int64_t> nonfinite, StepTrouble& to) const {
  for (std::size_t p = 0; p < std::min(nonfinite.size(), owners_.size()); ++p) {
    (owners_[p] ? to.in_parameters[owners_[p]->value()] : to.outside) += nonfinite[p];
  }
}

void BlockHealth::add_parameters(std::span<const std::int64_t> nonfinite, StepTrouble& to) const {
  for (std::size_t p = 0; p < nonfinite.size(); ++p) {
    if (owners_[p]) to.parameters[owners_[p]->value()] += nonfinite[p];
  }
}

// Undefined for a parameter without a block or a gradient: a mask may hold infinities on purpose.
std::vector<at::Tensor> BlockHealth::trained_parameters() const {
  std::vector<at::Tensor> trained = parameters_;
  for (std::size_t p = 0; p < trained.size(); ++p) {
    if (!owners_[p] || !trained[p].requires_grad()) trained[p] = at::Tensor();
  }
  return trained;
}

// A gradient on a device may turn out bad later, so the parameters are checked now, before an
// update.
void BlockHealth::look_at_gradients(StepId step) {
  if (!ledger_ || !ledger_->is_open() || wrong_) return;
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  GradientLook look{step, FiniteLook(gradients), {}};
  if (!look.gradients.finish() || look.gradients.is_bad())
    look.parameters.emplace(trained_parameters());
  looks_.push_back(std::move(look));
  settle_looks();
}

void BlockHealth::settle_looks() {
  bool is_bad = false;
  std::erase_if(looks_, [&](GradientLook& look) {
    if (!look.finish()) return false;
    is_bad = is_bad || add_if_bad(look, trouble_);  // the first result decides for the step
    if (is_bad) wrong_ = look.step;
    return true;
  });
}

bool BlockHealth::add_if_bad(const GradientLook& look, StepTrouble& to) const {
  if (!look.gradients.is_bad()) return false;
  add_gradients(look.gradients.nonfinite(), to);
  if (look.parameters) add_parameters(look.parameters->nonfinite(), to);
  return true;
}

void BlockHealth::loss(double value) {
  trouble_.has_bad_loss = trouble_.has_bad_loss || !std::isfinite(value);
}

Largest BlockHealth::amax_scaled_fp16() {
  if (!ledger_ || !ledger_->is_open()) return {};
  const torch::NoGradGuard no_grad;
  Largest amax;
  std::vector<at::Tensor> figures;
  std::vector<bool> is_in_fp16(evidence_.size());
  for (const BlockCallRecord& call : ledger_->calls()) {
    if (!call.is_fp16) continue;
    is_in_fp16[call.block.value()] = true;
    add_boundaries(call, amax, figures);
  }
  if (!figures.empty()) add(largest_on_device(figures), amax);
  add_parameters(is_in_fp16, amax);
  return amax;
}

void BlockHealth::add_parameters(const std::vector<bool>& is_in_fp16, Largest& to) const {
  std::vector<at::Tensor> on_devices;
  for (std::size_t p = 0; p < parameters_.size(); ++p) {
    const at::Tensor& gradient = parameters_[p].grad();
    if (!gradient.defined() || gradient.numel() == 0) continue;
    if (!owners_[p] || !is_in_fp16[owners_[p]->value()]) continue;
    if (!gradient.is_cpu()) {
      on_devices.push_back(gradient);
    } else {
      to.here = std::max(to.here, scan(gradient, ScanKind::extent).amax);
    }
  }
  add_largest(on_devices, to);
}

void BlockHealth::note(const BlockCallRecord& call, float scale, RankId rank) {
  BlockEvidence& evidence = evidence_[call.block.value()];
  for (const Boundary* boundary : call.outputs) {
    const TensorScan& values = boundary->forward.scan;
    if (values.values > 0) raise(evidence.activation, values.amax, rank);
  }
  const TensorScan incoming = gradients_of(call.outputs);
  const TensorScan outgoing = gradients_of(call.inputs);
  if (incoming.values + outgoing.values == 0) return;
  raise(evidence.gradient, std::max(incoming.amax, outgoing.amax) / scale, rank);
  if (!call.is_fp16) return;
  add(evidence.sampled, incoming.values + outgoing.values);
  add(evidence.underflow, incoming.tiny + outgoing.tiny + flushed_zeros(outgoing, incoming));
}

void BlockHealth::blame(RankId rank) {
  // Non-finite parameters first show in the forward pass.
  const bool is_forward = verdict_.where == HealthVerdict::Where::forward ||
                          verdict_.where == HealthVerdict::Where::parameters;
  if (!is_forward && verdict_.where != HealthVerdict::Where::backward) return;
  BlockEvidence& evidence = evidence_[verdict_.block->value()];
  (is_forward ? evidence.overflow_forward : evidence.overflow_backward) =
      saturated(static_cast<std::uint64_t>(verdict_.values));
  evidence.rank_of_overflow = rank;
}

void BlockHealth::note(std::span<const BlockCallRecord> calls, float scale, RankId rank) {
  for (const BlockCallRecord& call : calls) {
    if (call.end_at != 0) note(call, scale, rank);
  }
}

bool BlockHealth::Late::is_complete() {
  return page.is_complete() &&
         std::ranges::all_of(looks, [](GradientLook& look) { return look.finish(); });
}

// Stores the open step for later, and records earlier steps whose figures have arrived.
void BlockHealth::note_late(RankId rank) {
  late_.push_back({ledger_->take(), scale_, std::exchange(looks_, {})});
  while (!late_.empty() && late_.front().is_complete()) {
    std::ranges::fill(evidence_, BlockEvidence{});
    note(late_.front().page.calls, late_.front().scale, rank);
    judge_late(rank);
    late_.pop_front();
  }
  if (late_.size() > kMostLate) late_.pop_front();
}

void BlockHealth::judge_late(RankId rank) {
  StepTrouble trouble;
  trouble.clear(evidence_.size());
  const auto bad = std::ranges::find_if(
      late_.front().looks, [&](const GradientLook& look) { return add_if_bad(look, trouble); });
  if (bad == late_.front().looks.end()) return;
  late_step_ = bad->step;
  verdict_ = judge(late_.front().page.calls, trouble);
  blame(rank);
}

std::span<const BlockEvidence> BlockHealth::end_step(RankId rank) {
  if (!ledger_ || !ledger_->is_open()) return {};
  settle_looks();
  std::ranges::fill(evidence_, BlockEvidence{});
  verdict_ = {};
  late_step_.reset();
  if (!has_trouble(trouble_) && (ledger_->is_on_device() || !looks_.empty())) {
    note_late(rank);
    return evidence_;
  }
  late_.clear();
  const std::vector<BlockCallRecord>& calls = ledger_->read();
  note(calls, scale_, rank);
  verdict_ = judge(calls, trouble_);
  blame(rank);
  ledger_->close();
  return evidence_;
}

}  // namespace cox::detail
